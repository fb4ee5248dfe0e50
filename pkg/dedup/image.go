package dedup

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/bits-and-blooms/bloom/v3"
)

// ErrImage says that an image is not the filter it is taken for: build the filter
// from the blocks instead.
var ErrImage = errors.New("filter image does not match its digest or its own length")

// An image is imageMagic, the capacity and the count of keys (big-endian), then
// the filter as bits-and-blooms writes it: m, k, the length of the bit set, its
// words.
const (
	imageMagic  = "eofilt\x00\x01" // the last byte is the version of the positions and of this layout
	imageHeader = len(imageMagic) + 5*8
)

// MarshalBinary returns the filter's image. Its digest is Digest's.
func (f *Filter) MarshalBinary() ([]byte, error) {
	b := bytes.NewBuffer(make([]byte, 0, imageHeader+8*len(f.words)))
	b.WriteString(imageMagic)
	b.Write(binary.BigEndian.AppendUint64(nil, uint64(f.capacity)))
	b.Write(binary.BigEndian.AppendUint64(nil, uint64(f.n)))
	if _, err := f.bloom.WriteTo(b); err != nil {
		return nil, fmt.Errorf("filter image: %w", err)
	}
	return b.Bytes(), nil
}

// Digest is what Postgres keeps about an image.
func Digest(image []byte) [32]byte { return sha256.Sum256(image) }

// ParseFilter reads an image whose digest Postgres keeps. "Surely not in" is a
// decision, so an image counts only if it is exactly the one that was made from
// the blocks; everything else is ErrImage.
func ParseFilter(image []byte, digest [32]byte) (*Filter, error) {
	if Digest(image) != digest {
		return nil, fmt.Errorf("%w: another digest", ErrImage)
	}
	return parseImage(image)
}

// parseImage compares every length with the bytes that are there before anything
// is allocated for it.
func parseImage(image []byte) (*Filter, error) {
	if len(image) < imageHeader || string(image[:len(imageMagic)]) != imageMagic {
		return nil, fmt.Errorf("%w: no filter of this version", ErrImage)
	}
	var head [5]uint64
	for i := range head {
		head[i] = binary.BigEndian.Uint64(image[len(imageMagic)+8*i:])
	}
	capacity, n, m, k, length := head[0], head[1], head[2], head[3], head[4]
	words := uint64(len(image)-imageHeader) / 8
	switch {
	case m == 0, m%blockBits != 0, m != length, m/64 != words, len(image) != imageHeader+int(words)*8:
		return nil, fmt.Errorf("%w: %d bits in %d bytes", ErrImage, m, len(image))
	case k == 0, k > maxBits, capacity > 1<<48, n > 1<<48:
		return nil, fmt.Errorf("%w: %d bits a key, %d of %d keys", ErrImage, k, n, capacity)
	}
	set := make([]uint64, words) // ReadFrom takes twice as long: it copies in small pieces
	for i := range set {
		set[i] = binary.BigEndian.Uint64(image[imageHeader+8*i:])
	}
	return wrap(bloom.FromWithM(set, uint(m), uint(k)), int64(capacity), int64(n)), nil
}
