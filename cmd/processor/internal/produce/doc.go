// Package produce makes orders and sends them to Kafka: the input of the demo,
// the benches and the compose file. The stream is a pure function of its seed, so
// whoever knows the seed knows what was sent.
package produce
