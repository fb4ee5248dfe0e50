// Package sink is the effect of a batch: what happens in the user's tables, in
// the transaction that also moves the positions. There are two sinks. Table maps
// fields to the columns of one table. Handler hands the open transaction and the
// records to the user's own Go code. Records that cannot be applied become rows
// of dead_letters, which this package writes too, in the same transaction.
//
// # What a column takes
//
// Nothing is converted silently: what a column cannot hold exactly is a dead
// letter of stage "encode", with the reason in brackets.
//
//	column              takes
//	text, varchar, char any value: text and bytes as they are (UTF-8 [bad_utf8], no U+0000 [nul_in_text]),
//	                    numbers, booleans and JSON as written. The length is judged by the server (22001)
//	boolean             true and false; the bytes "true" and "false" of a header or Kafka key
//	int2, int4, int8    numbers without a fraction, 1.0 and 1e2 too [not_integer, out_of_range]
//	numeric(p,s)        numbers, exact; a digit other than 0 beyond the scale is refused instead of rounded
//	                    [would_round]; more digits than the precision is judged by the server (22003)
//	float4, float8      numbers, to the nearest; beyond the largest or below the smallest: [out_of_range]
//	uuid                text, with or without hyphens [not_uuid]
//	date                text YYYY-MM-DD, the years 0001 to 9999 [not_date]
//	timestamptz         RFC 3339 text with an offset, years 0001 to 9999; digits beyond the microsecond are cut
//	                    off, epoch numbers are refused [not_timestamp, wrong_type]
//	json, jsonb         any value: objects and arrays as they are, others as JSON scalars; bytes are parsed
//	                    [not_json]. jsonb holds no U+0000 [nul_in_text], no lone surrogate [bad_escape], and no
//	                    more than 1,000 levels [too_deep]
//	bytea               bytes as they are; text as standard base64, or as hex behind \x [not_base64, not_hex]
//
// Domains over these take what their base type takes, and their constraints are
// judged by the server (23514). Numbers come from JSON numbers, or from the bytes
// of a header or of the Kafka key, digit by digit; JSON text is never taken for a
// number [wrong_type], since "007" and 7 may be two things to the sender.
//
// A field that is missing and one that is null are both NULL, except that in a
// json or jsonb column null is JSON's null: there the difference can be kept.
// NULL in a NOT NULL column is refused [null_in_not_null], and in a conflict
// column of an upsert too [null_in_key]: it would conflict with nothing.
//
// # How rows travel
//
// Encode writes the binary COPY format before the transaction opens. Insert
// streams it into COPY. Where COPY is refused or means something else (row
// security, views, rules), and for upsert, the same bytes are transposed into one
// array a column for INSERT … SELECT FROM unnest.
//
// COPY is not only for many rows. Measured with six columns on PostgreSQL 15,
// transactions of BEGIN, the effect and ROLLBACK, CPU of client and server
// together, medians of the time (see BenchmarkPath):
//
//	rows    COPY             arrays
//	   1    195 µs, 0.37 ms    248 µs, 0.38 ms
//	  10    225 µs, 0.42 ms    320 µs, 0.47 ms
//	  50    225 µs, 0.36 ms    333 µs, 0.42 ms
//	 200    392 µs, 0.60 ms    627 µs, 1.04 ms
//	5000    3.4 ms             7.3 ms
//
// pgx sends the rows right behind the COPY statement, without waiting for the
// server to ask for them, so COPY takes the one round trip that the arrays take.
// Arrays would gain only where they share a round trip with the fence before
// them, which Sink does not offer: a sink's effect is judged on its own.
//
// Of an upsert's records with one table key the last counts. Its rows are ordered
// by the bytes of that key, so two transactions lock shared rows in one order.
package sink
