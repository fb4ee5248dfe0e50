// Package decode turns a record's bytes into the values that a pipeline needs:
// the parts of its business key and the columns of its sink.
//
// A [Source] names one value: a member of the document, a header, or something
// Kafka keeps beside the document. [New] compiles a fixed list of sources into
// a [Plan]; a [Decoder] runs the plan over one record after the other.
//
// # What is promised
//
//   - Strict. The whole document is checked, also behind the last member that a
//     source needs and inside members that none needs: grammar, UTF-8, repeated
//     names, nesting, size, nothing after its end. Two parsers that disagree on
//     a document would give one record two keys, so a document on which parsers
//     are known to disagree is refused.
//   - Exact. A number is the literal as written, digit by digit; it never passes
//     through a float. An object or array is its text as written.
//   - Missing is not null. See [stream.Kind].
//   - No allocation a record, once the buffers have grown, for objects of up to
//     64 members whose names take up to 1 KiB together; larger ones cost a hash
//     map for the check of repeated names.
//   - A refused record is a [stream.Fault] that says where it went wrong and
//     never shows a value of the payload.
//
// # How a path is followed
//
// A path descends through objects only. It ends as [stream.Missing] when a
// member is absent, and also when a member on the way is something else than an
// object: a number, an array, or null. So {"order": null} has no order.id, while
// {"order": {"id": null}} has one, and it is null. Elements of arrays cannot be
// selected; the whole array can.
//
// # Records without a document
//
// A plan whose sources are all headers or Kafka's own (topic, key, timestamp, …)
// does not look at the document: any bytes pass, also none. As soon as one source
// is in the document, a null document (a tombstone) is the fault "tombstone".
//
// # Formats
//
// JSON is the only format. The walk over a document (document.go) and what its
// errors mean (fault.go) know it; sources, plans and the values beside the
// document do not.
package decode
