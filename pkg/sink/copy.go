package sink

import (
	"io"

	"effectonce/pkg/stream"
)

// copyReader is the binary COPY stream of some rows of a batch. It copies
// nothing but what is read: rows that lie side by side are one piece.
type copyReader struct {
	pieces [][]byte
}

// The signature, no flags, no header extension; and the count of columns that ends it.
const (
	copyHeader  = "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	copyTrailer = "\xff\xff"
)

func newCopyReader(b *stream.Batch, picks []int) *copyReader {
	r := &copyReader{pieces: [][]byte{[]byte(copyHeader)}}
	from, to := 0, 0
	for _, i := range picks {
		end := b.Ends[i]
		start := end - len(b.Bytes(i))
		if start != to {
			r.add(b.Encoded[from:to])
			from = start
		}
		to = end
	}
	r.add(b.Encoded[from:to])
	r.add([]byte(copyTrailer))
	return r
}

func (r *copyReader) add(piece []byte) {
	if len(piece) > 0 {
		r.pieces = append(r.pieces, piece)
	}
}

// Read fills p, over pieces: a short read would be a short message.
func (r *copyReader) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) && len(r.pieces) > 0 {
		c := copy(p[n:], r.pieces[0])
		n += c
		if r.pieces[0] = r.pieces[0][c:]; len(r.pieces[0]) == 0 {
			r.pieces = r.pieces[1:]
		}
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}
