package dedup

import (
	"bytes"
	"errors"
	"testing"
)

// TestRenew: wrong digests are found and written, members that hold the log load it
// again, and a log in order keeps its manifest.
func TestRenew(t *testing.T) {
	t.Parallel()
	w, v, keys := mixed(t)
	manifest := func() (m [16]byte) {
		if err := w.Owner.QueryRow(t.Context(), "SELECT manifest FROM "+w.Relation("logs")).Scan(&m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	renewal := func() Renewal {
		r, err := w.store.Renewal(t.Context(), w.conn, patient, v.Log)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	renew := func(r Renewal) {
		if err := w.store.Renew(t.Context(), w.conn, patient, &r); err != nil {
			t.Fatal(err)
		}
	}
	before := manifest()
	r := renewal()
	if r.Digests() != 0 || r.Gate || r.Keys != keys || r.Segments != len(v.live()) || r.Segments < 2 {
		t.Fatalf("%+v", r)
	}
	if renew(r); manifest() != before {
		t.Fatal("nothing was wrong, and the manifest is another")
	}

	// A digest of another version, and one that was never written.
	segs := v.live()
	w.Exec(t, "UPDATE "+w.Relation("segments")+" SET filter_digest = $2 WHERE id = $1", [16]byte(segs[0].ID), bytes.Repeat([]byte{7}, 32))
	w.Exec(t, "UPDATE "+w.Relation("segments")+" SET filter_digest = NULL WHERE id = $1", [16]byte(segs[1].ID))
	w.Exec(t, "INSERT INTO "+w.Relation("gates")+" (log, id, segments, keys, capacity, digest) VALUES ($1, $2, ARRAY[$2::uuid], 1, 10, $3)",
		v.Log, [16]byte(segs[0].ID), bytes.Repeat([]byte{7}, 32))
	if r = renewal(); r.Digests() != 2 || !r.Gate {
		t.Fatalf("%+v", r)
	}
	// A member loads the log and, as far as anybody knows, believes images for these digests.
	member := w.load(0)
	w.rebuild(member)
	// The log moves on between the plan and its execution: digests stay right.
	w.seal(v)
	before = manifest()
	renew(r)
	if manifest() == before {
		t.Error("digests were wrong, and members go on with filters that were believed for them")
	}
	if err := w.catchUp(v, 0); !errors.Is(err, ErrDropView) {
		t.Errorf("the view stays: %v", err)
	}
	again, err := w.store.Load(t.Context(), w.conn, patient, w.id, w.part(0), member)
	if err != nil {
		t.Fatal(err)
	}
	for _, seg := range again.live() {
		if seg.filter != nil || again.gate != nil || again.base != nil {
			t.Error("a view inherits filters that were believed for wrong digests")
		}
	}
	if r = renewal(); r.Digests() != 0 || r.Gate {
		t.Errorf("after it: %+v", r)
	}
	if _, err := w.verify(t, w.Conn(t)); err != nil {
		t.Error(err)
	}
}

// TestRenewRefusesDamage: no filter is made from blocks that are not whole.
func TestRenewRefusesDamage(t *testing.T) {
	t.Parallel()
	w, v, _ := mixed(t)
	w.Exec(t, "DELETE FROM "+w.Relation("blocks")+" WHERE (segment, first) = (SELECT segment, first FROM "+w.Relation("blocks")+" LIMIT 1)")
	var damage *DamageError
	if r, err := w.store.Renewal(t.Context(), w.conn, patient, v.Log); !errors.As(err, &damage) {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestProbe: the gate shows about the rate it was made for at its capacity, and
// nothing is measured as nothing where there is no gate.
func TestProbe(t *testing.T) {
	t.Parallel()
	w, v, _ := mixed(t)
	w.rebuild(v)
	if target, measured := v.Probe(20_000); target != 0.001 || measured > 0.002 {
		t.Errorf("%v, target %v", measured, target)
	}
	if _, measured := w.load(0).Probe(100); measured != 1 {
		t.Errorf("%v without a gate", measured)
	}
	v.mu.Lock()
	v.gate = newFilter(1, shape{rate: 0.5, least: 1})
	for n := range 1000 {
		v.gate.add(slotOf(fpOf(n)))
	}
	v.mu.Unlock()
	if _, measured := v.Probe(20_000); measured < 0.5 {
		t.Errorf("a gate that is far too full shows %v", measured)
	}
}
