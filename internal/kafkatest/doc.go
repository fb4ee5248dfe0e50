// Package kafkatest helps tests that talk to Kafka. Three brokers can be had:
//
//	Broker         the shared real one that scripts/services keeps up; topics are private, settings are not
//	StartPrivate   a real one of the test's own, with its own listeners and settings, in about 6 s
//	Fake           one in the test's process, in no time
package kafkatest
