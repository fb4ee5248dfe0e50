package dedup

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"effectonce/pkg/stream"
)

// shelf is a cache in memory that does what a test tells it.
type shelf struct {
	mu     sync.Mutex // guards images
	images map[stream.UUID][]byte
	load   func(id stream.UUID, image []byte) ([]byte, error) // nil: what is there
	stored func(id stream.UUID)                               // nil: nothing happens then
	fails  bool                                               // Store does
}

func newShelf() *shelf { return &shelf{images: map[stream.UUID][]byte{}} }

var errShelf = errors.New("the shelf is broken")

func (s *shelf) Load(_ context.Context, id stream.UUID) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	image := bytes.Clone(s.images[id])
	if s.load != nil {
		return s.load(id, image)
	}
	return image, nil
}

func (s *shelf) Store(_ context.Context, id stream.UUID, image []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails {
		return errShelf
	}
	if image == nil {
		delete(s.images, id)
		return nil
	}
	s.images[id] = bytes.Clone(image)
	if s.stored != nil {
		s.stored(id)
	}
	return nil
}

func (w *world) offer(v *View) {
	w.t.Helper()
	if err := w.store.Offer(w.t.Context(), w.conn, patient, v); err != nil {
		w.t.Fatal(err)
	}
}

// scans is how many keys a rebuild of a view that was just loaded reads.
func (w *world) scans(v *View) int64 {
	w.t.Helper()
	read := int64(-1)
	if err := w.store.Rebuild(w.t.Context(), w.conn, patient, v, func(done, _ int64) { read = done }); err != nil {
		w.t.Fatal(err)
	}
	if s := v.Stats(); s.Rebuild || s.Ready != 1 {
		w.t.Fatalf("after a rebuild: %+v", s)
	}
	return read
}

// numbers is [from, to).
func numbers(from, to int) (n []int) {
	for ; from < to; from++ {
		n = append(n, from)
	}
	return n
}

// grow seals these keys as one segment.
func (w *world) grow(v *View, id byte, from, to int) {
	w.t.Helper()
	w.write(v, id, numbers(from, to)...)
	w.seal(v)
}

// knowsExactly fails unless the view knows the numbers below n and no others.
func (w *world) knowsExactly(v *View, n int) {
	w.t.Helper()
	want := map[int]bool{}
	for i := range n {
		want[i] = true
	}
	w.knows(v, n+100, want)
}

// tierWorld is a log of 1000 keys in two segments, all of whose images are on the
// shelf.
func tierWorld(t *testing.T) (*world, *shelf, *View) {
	t.Helper()
	w, s := newWorld(t, 2), newShelf()
	w.store = w.store.Cached(s)
	v := w.load(0)
	w.grow(v, 'a', 0, 500)
	w.grow(v, 'b', 500, 1000)
	w.offer(v)
	if len(s.images) != 3 {
		t.Fatalf("%d images are stored, not two segments' and the gate's", len(s.images))
	}
	return w, s, v
}

// TestRecall: a new owner takes all filters from the cache and reads no block; what
// was sealed since is read, and nothing else.
func TestRecall(t *testing.T) {
	t.Parallel()
	w, s, v := tierWorld(t)
	next := w.load(0)
	if read := w.scans(next); read != 0 {
		t.Errorf("%d keys were read although the cache has everything", read)
	}
	w.knowsExactly(next, 1000)
	if got := w.store.CacheStats(); got != (CacheStats{Hits: 3, Stores: 3}) {
		t.Errorf("%+v", got)
	}

	w.grow(v, 'c', 1000, 1050) // less than a tenth: the gate's image stays
	w.offer(v)
	if len(s.images) != 4 {
		t.Errorf("%d images", len(s.images))
	}
	next = w.load(0)
	if read := w.scans(next); read != 50 {
		t.Errorf("%d keys were read, 50 are not in the gate's image", read)
	}
	w.knowsExactly(next, 1050)

	w.grow(next, 'd', 1050, 1200) // more than a tenth
	w.offer(next)
	if len(s.images) != 5 {
		t.Errorf("%d images: the gate's old one is to be taken back", len(s.images))
	}
	next = w.load(0)
	if read := w.scans(next); read != 0 {
		t.Errorf("%d keys were read behind a new image", read)
	}
	w.knowsExactly(next, 1200)
}

// TestRecallAfterMerge: the images of merged segments are taken back.
func TestRecallAfterMerge(t *testing.T) {
	t.Parallel()
	w, s, v := tierWorld(t)
	w.store.sizes.merge = 2
	if w.compact(v) != 2 {
		t.Fatal("nothing merged")
	}
	w.offer(v)
	if len(s.images) != 2 {
		t.Errorf("%d images, of one segment and a gate", len(s.images))
	}
	next := w.load(0)
	if read := w.scans(next); read != 0 {
		t.Errorf("%d keys were read", read)
	}
	w.knowsExactly(next, 1000)
}

// TestLyingCache holds one row for each way in which a cache can be wrong. The
// blocks are read then, and the view is exact.
func TestLyingCache(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		lie  func(w *world, s *shelf, v *View)
		want CacheStats // without stores
	}{
		{"flushed", func(_ *world, s *shelf, _ *View) { clear(s.images) }, CacheStats{Misses: 3}},
		{"fails", func(_ *world, s *shelf, _ *View) {
			s.load = func(stream.UUID, []byte) ([]byte, error) { return nil, errShelf }
		}, CacheStats{Errors: 3}},
		{"empty images", func(_ *world, s *shelf, _ *View) {
			s.load = func(stream.UUID, []byte) ([]byte, error) { return []byte{}, nil }
		}, CacheStats{Rejected: 3}},
		{"half of each", func(_ *world, s *shelf, _ *View) {
			s.load = func(_ stream.UUID, image []byte) ([]byte, error) { return image[:len(image)/2], nil }
		}, CacheStats{Rejected: 3}},
		{"a flipped bit", func(_ *world, s *shelf, _ *View) {
			s.load = func(_ stream.UUID, image []byte) ([]byte, error) {
				at := slices.IndexFunc(image[imageHeader:], func(b byte) bool { return b != 0 })
				image[imageHeader+at] &= image[imageHeader+at] - 1
				return image, nil
			}
		}, CacheStats{Rejected: 3}},
		{"another pipeline's images", func(w *world, s *shelf, _ *View) {
			// The other log's segments and gate have the same numbers of keys.
			other, mine := w.load(1), maps.Clone(s.images)
			w.grow(other, 'x', 5000, 5500)
			w.grow(other, 'y', 5500, 6000)
			w.offer(other)
			s.load = func(_ stream.UUID, image []byte) ([]byte, error) {
				for other, theirs := range s.images {
					if mine[other] == nil && len(theirs) == len(image) {
						return bytes.Clone(theirs), nil
					}
				}
				return nil, nil
			}
		}, CacheStats{Rejected: 3}},
		{"each other's images", func(_ *world, s *shelf, v *View) {
			a, b := v.segments[0].ID, v.segments[1].ID
			s.images[a], s.images[b] = s.images[b], s.images[a]
		}, CacheStats{Hits: 1, Rejected: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, s, v := tierWorld(t)
			c.lie(w, s, v)
			w.store = New(w.Schema).Cached(s)
			next := w.load(0)
			if read := w.scans(next); read != 1000 {
				t.Errorf("%d keys were read", read)
			}
			got := w.store.CacheStats()
			if got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			w.knowsExactly(next, 1000)
		})
	}
}

// TestGateOfAnotherLog: the row of another log names an image that is whole and has
// its digest, and holds none of our segments.
func TestGateOfAnotherLog(t *testing.T) {
	t.Parallel()
	w, _, _ := tierWorld(t)
	other := w.load(1)
	w.grow(other, 'x', 5000, 6000)
	w.offer(other)
	w.Exec(t, "UPDATE "+w.Relation("gates")+" g SET id = o.id, segments = o.segments, keys = o.keys, capacity = o.capacity, digest = o.digest FROM "+
		w.Relation("gates")+" o WHERE g.log <> $1 AND o.log = $1", other.Log)
	next := w.load(0)
	if read := w.scans(next); read != 1000 {
		t.Errorf("%d keys were read", read)
	}
	w.knowsExactly(next, 1000)
}

// TestFullGateImage: the image has room for the keys it was made for, and the log
// has more by now. It would be full at once, rebuilt, recalled, full again.
func TestFullGateImage(t *testing.T) {
	t.Parallel()
	w, _, v := tierWorld(t)
	room := v.gate.capacity
	n := 1000
	for ; int64(n) <= room; n += 4000 {
		w.grow(v, 'c', n, n+4000)
	}
	next := w.load(0)
	read := w.scans(next)
	if s := next.Stats(); s.Capacity < int64(n) || read != int64(n) {
		t.Errorf("%d keys in a gate for %d, %d were read", n, s.Capacity, read)
	}
	if v.Stats().Rebuild != true {
		t.Error("the old owner's gate is not full")
	}
	w.offer(v) // a full gate is worth nothing
	if image, err := w.store.gateImage(t.Context(), w.conn, patient, v.Log); err != nil || len(image.segments) != 2 {
		t.Errorf("%+v, %v", image, err)
	}
	w.offer(next)
	last := w.load(0)
	if read := w.scans(last); read != 0 {
		t.Errorf("%d keys were read", read)
	}
	if s := last.Stats(); s.Capacity < int64(n) {
		t.Errorf("%+v", s)
	}
}

// TestStaleGateImage: most keys of the image belong to segments that are gone.
func TestStaleGateImage(t *testing.T) {
	t.Parallel()
	w, _, v := tierWorld(t)
	w.Exec(t, "UPDATE "+w.Relation("segments")+" SET state = 'dead' WHERE id = $1", [16]byte(v.segments[0].ID))
	next := w.load(0)
	if read := w.scans(next); read != 500 || next.gate.n > 500 {
		t.Errorf("%d keys were read, the gate has %d", read, next.gate.n)
	}
}

// TestOtherParameters: an image that some other release made with less bits a key,
// under its right digest.
func TestOtherParameters(t *testing.T) {
	t.Parallel()
	w, s, v := tierWorld(t)
	thin := newFilter(v.gate.capacity, segmentShape)
	for _, n := range numbers(0, 1000) {
		thin.add(slotOf(fpOf(n)))
	}
	image, err := thin.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	digest := Digest(image)
	s.images[v.offered.gate.id] = image
	w.Exec(t, "UPDATE "+w.Relation("gates")+" SET digest = $1", digest[:])
	next := w.load(0)
	if read := w.scans(next); read != 1000 || !next.gate.suits(gateShape) {
		t.Errorf("%d keys were read, the gate has %d bits", read, next.gate.bloom.Cap())
	}
	w.offer(next) // and the next owner finds a right one
	if read := w.scans(w.load(0)); read != 0 {
		t.Errorf("%d keys were read", read)
	}
}

// TestForgottenIsOfferedAgain (B58): a flushed cache costs one owner a scan, and is
// filled behind it; the view of an owner that stays offers again after a day.
func TestForgottenIsOfferedAgain(t *testing.T) {
	t.Parallel()
	w, s, v := tierWorld(t)
	clear(s.images)
	w.offer(v)
	if len(s.images) != 0 {
		t.Errorf("%d images were offered twice", len(s.images))
	}
	next := w.load(0)
	if read := w.scans(next); read != 1000 {
		t.Errorf("%d keys were read", read)
	}
	w.offer(next)
	if read := w.scans(w.load(0)); read != 0 || len(s.images) != 3 {
		t.Errorf("%d keys were read, %d images", read, len(s.images))
	}
	clear(s.images)
	for id := range v.offered.when {
		v.offered.when[id] = time.Now().Add(-again - time.Minute)
	}
	w.offer(v)
	if read := w.scans(w.load(0)); read != 0 || len(s.images) != 3 {
		t.Errorf("the next day: %d keys were read, %d images", read, len(s.images))
	}
}

// TestOfferedTwiceOnce: a second member of the same log does not store what the
// first has.
func TestOfferedTwiceOnce(t *testing.T) {
	t.Parallel()
	w, _, _ := tierWorld(t)
	next := w.load(0)
	w.scans(next)
	before := w.store.CacheStats().Stores
	w.offer(next)
	if after := w.store.CacheStats().Stores; after != before {
		t.Errorf("%d images were stored again", after-before)
	}
}

// TestBrokenCacheBreaksNothing: Offer says so, and the rest goes on.
func TestBrokenCacheBreaksNothing(t *testing.T) {
	t.Parallel()
	w, s, v := tierWorld(t)
	s.fails = true
	w.grow(v, 'c', 1000, 2000)
	if err := w.store.Offer(t.Context(), w.conn, patient, v); !errors.Is(err, errShelf) {
		t.Errorf("%v", err)
	}
	next := w.load(0)
	w.scans(next)
	w.knowsExactly(next, 2000)
	s.fails = false
	w.offer(v)
	if read := w.scans(w.load(0)); read != 0 {
		t.Errorf("%d keys were read", read)
	}
}

// TestWithoutTable: the schema is one migration behind.
func TestWithoutTable(t *testing.T) {
	t.Parallel()
	w, _, v := tierWorld(t)
	w.Exec(t, "DROP TABLE "+w.Relation("gates"))
	next := w.load(0)
	if read := w.scans(next); read != 1000 {
		t.Errorf("%d keys were read", read)
	}
	w.grow(v, 'c', 1000, 2000)
	before := w.store.CacheStats().Stores
	if err := w.store.Offer(t.Context(), w.conn, patient, v); err == nil {
		t.Error("a gate was offered that no row can name")
	}
	if after := w.store.CacheStats().Stores; after != before+1 { // the segment's
		t.Errorf("%d images were stored", after-before)
	}
}

// TestRecalledSegmentsAreWhole: blocks are missing although the manifest is the
// view's. A gate would say maybe, and the look-up would find nothing.
func TestRecalledSegmentsAreWhole(t *testing.T) {
	t.Parallel()
	w, _, _ := tierWorld(t)
	w.Exec(t, "DELETE FROM "+w.Relation("blocks")+" WHERE first = (SELECT first FROM "+w.Relation("blocks")+" ORDER BY first LIMIT 1)")
	next := w.load(0)
	if err := w.store.Rebuild(t.Context(), w.conn, patient, next, nil); !errors.Is(err, ErrDamaged) {
		t.Errorf("%v", err)
	}
	if s := next.Stats(); s.Ready != 0 || !s.Rebuild {
		t.Errorf("%+v", s)
	}
}

// TestRecallUnderAnotherManifest: somebody sealed while the images came. They are of
// segments that are live still, so the view that is loaded next inherits them.
func TestRecallUnderAnotherManifest(t *testing.T) {
	t.Parallel()
	w, s, v := tierWorld(t)
	next := w.load(0)
	second := w.Conn(t)
	s.load = func(_ stream.UUID, image []byte) ([]byte, error) {
		if len(v.segments) == 2 {
			w.write(v, 'c', 1000)
			if _, err := w.store.Seal(t.Context(), second, patient, v); err != nil {
				t.Error(err)
			}
		}
		return image, nil
	}
	w.rebuild(next)
	if err := w.catchUp(next, 0); !errors.Is(err, ErrDropView) {
		t.Errorf("%v", err)
	}
	heir, err := w.store.Load(t.Context(), w.conn, patient, w.id, w.part(0), next)
	if err != nil || heir.base == nil {
		t.Fatalf("nothing inherited: %v", err)
	}
	w.knowsExactly(heir, 1001)
	w.rebuild(heir)
	w.knowsExactly(heir, 1001)
}

// TestRecallIsCancelled: the partition went away meanwhile.
func TestRecallIsCancelled(t *testing.T) {
	t.Parallel()
	w, s, _ := tierWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	s.load = func(stream.UUID, []byte) ([]byte, error) {
		cancel()
		return nil, context.Canceled
	}
	conn, err := pgx.ConnectConfig(t.Context(), w.conn.Config())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	next := w.load(0)
	if err := w.store.Rebuild(ctx, conn, patient, next, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	s.load = nil
	if read := w.scans(next); read != 0 {
		t.Errorf("%d keys were read", read)
	}
}

// TestGateIsListedBeforeItIsCopied: a segment that is sealed while the gate's image
// is on its way is not one of those whose keys are in it. Nobody seals this view as
// long as it is being offered; if somebody could, this is when.
func TestGateIsListedBeforeItIsCopied(t *testing.T) {
	t.Parallel()
	w, s, v := tierWorld(t)
	second := w.Conn(t)
	w.grow(v, 'c', 1000, 2000)
	w.write(v, 'd', numbers(2000, 2100)...)
	s.stored = func(id stream.UUID) {
		if len(v.task) > 0 || slices.ContainsFunc(v.segments, func(seg *Segment) bool { return seg.ID == id }) {
			return
		}
		if _, err := w.store.Seal(t.Context(), second, patient, v); err != nil {
			t.Error(err)
		}
	}
	w.offer(v)
	s.stored = nil
	w.seal(v)
	w.offer(v) // the filter of the last segment; the gate's image stays
	next := w.load(0)
	if read := w.scans(next); read != 100 {
		t.Errorf("%d keys were read, 100 are not in the gate's image", read)
	}
	w.knowsExactly(next, 2100)
}
