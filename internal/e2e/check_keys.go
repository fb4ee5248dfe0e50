package e2e

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
)

// checkKeys: the run of each commit has the fingerprints of what was applied in its
// ranges, and the segments of a log have those of the runs that were sealed into
// them: sorted, each once, and no others. A pipeline without a key has none.
func checkKeys(f facts) (found []finding) {
	effects := map[int32][]effect{}
	for _, e := range f.effects {
		effects[e.part] = append(effects[e.part], e)
	}
	for _, es := range effects {
		slices.SortStableFunc(es, func(a, b effect) int { return cmp.Compare(a.offset, b.offset) })
	}
	upTo, want := map[int64]int64{}, map[int64][][]byte{}
	for _, s := range f.sealed {
		upTo[s.log] = s.upTo
	}
	for _, r := range f.runs {
		keys := f.keysOf(r, effects)
		if r.seq <= upTo[r.log] {
			want[r.log] = append(want[r.log], keys...)
			if r.keys == nil {
				continue
			}
		}
		if r.keys == nil || !bytes.Equal(sorted(keys), r.keys) {
			found = append(found, finding{torn, fmt.Sprintf("log %d, run %d %v: its %d fingerprints are not those of the %d effects", r.log, r.seq, r.spans, len(r.keys)/16, len(keys))})
		}
	}
	for _, s := range f.sealed {
		if !bytes.Equal(sorted(want[s.log]), s.keys) {
			found = append(found, finding{torn, fmt.Sprintf("log %d: the %d fingerprints in its segments are not the %d of its sealed runs", s.log, len(s.keys)/16, len(want[s.log]))})
		}
	}
	return found
}

// keysOf are the fingerprints of the effects in a run's ranges.
func (f facts) keysOf(r run, effects map[int32][]effect) (keys [][]byte) {
	byOffset := func(e effect, offset int64) int { return cmp.Compare(e.offset, offset) }
	for _, s := range r.spans {
		if es := effects[s.part]; f.keyed {
			from, _ := slices.BinarySearchFunc(es, s.from, byOffset)
			to, _ := slices.BinarySearchFunc(es, s.to, byOffset)
			for _, e := range es[from:max(from, to)] {
				keys = append(keys, fingerprint(f.salt, e.Event))
			}
		}
	}
	return keys
}

func sorted(keys [][]byte) []byte {
	slices.SortFunc(keys, bytes.Compare)
	return bytes.Join(keys, nil)
}

// fingerprint is the documented one of a business key that is one text: written
// down again here, so that a change of the encoding does not go unseen.
func fingerprint(salt []byte, text string) []byte {
	const domainKey, partText = 1, 1
	b := append(slices.Clone(salt), domainKey, partText)
	b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
	sum := sha256.Sum256(append(b, text...))
	return sum[:16]
}
