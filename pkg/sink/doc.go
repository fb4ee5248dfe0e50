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
// Encode writes the binary COPY format before the transaction opens. From 200
// rows on, insert streams them into COPY; below, and wherever COPY is refused or
// means something else (row security, views, rules), the same bytes are transposed
// into one array a column for INSERT … SELECT FROM unnest: it shares the round trip
// of its neighbours. Upsert always takes the arrays, last value of a key first
// found from the end, ordered by key bytes: two transactions lock shared rows in
// the same order.
package sink
