// Package connect turns the configuration into connections: options for a Kafka
// client and a configuration for a Postgres pool, with TLS, authentication and
// every wait bounded. Nothing is dialled before a client or a pool is made of
// them; CheckKafka and CheckPostgres do, and say whether the other side is one
// this program can work with.
//
// Errors name the address and the reason, and never a secret: what a token
// endpoint or a parser says about its input is left out.
package connect
