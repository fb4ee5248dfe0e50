package dedup

import (
	"encoding/binary"

	"effectonce/pkg/stream"
)

// View is what memory knows of one log: exactly the keys of its runs up to
// HeadID. One goroutine at a time uses it: the committer that has its partition
// in flight.
type View struct {
	Log        int64
	Generation []byte
	Head       int64       // number of the last run it contains, for contiguity
	HeadID     stream.UUID // its name: the only thing that is compared
	Manifest   stream.UUID
	keys       *set
}

// Keys is the number of keys in memory.
func (v *View) Keys() int { return v.keys.n }

func (v *View) has(k slot) bool { return v.keys.has(k) }

// Learn adds the run that was just committed on top of this view. Call it only
// after COMMIT was answered.
func (v *View) Learn(id stream.UUID, run []byte) {
	v.learnKeys(run)
	v.Head++
	v.HeadID = id
}

// LearnKeys adds keys without moving the head: right only for the test that shows
// why a view learns after the commit.
func (v *View) LearnKeys(run []byte) { v.learnKeys(run) }

func (v *View) learnKeys(run []byte) {
	for ; len(run) >= 16; run = run[16:] {
		v.keys.add(slot{binary.BigEndian.Uint64(run), binary.BigEndian.Uint64(run[8:])})
	}
}
