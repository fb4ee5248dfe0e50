package model

// The sizes of a state. A log has room for more runs than any world has records: a
// commit that moves a position forward has one record at least, so who needs more
// commits than that does not (see endless).
const (
	partitions  = 2
	members     = 3
	claims      = 2 * partitions // of a member: those assigned, then those handed over
	maxRuns     = 6
	maxSegments = 4
)

type (
	id      = uint8 // names an owner, a run, a manifest or a segment; 0 is none, and only equality counts
	keys    = uint8 // a set of business keys, one bit each
	offsets = uint8 // a set of offsets, one bit each
)

// fresh is an id that nothing has yet. rename gives it the next small number.
const fresh id = 63

// state is everything: the database, what a lagging copy of it has, the group, and
// what each member has in memory. It has no pointers, so == and a hash compare it
// whole; what means nothing is zero.
type state struct {
	DB       database
	Replica  database
	Lag      replica
	Assigned [partitions]uint8 // to which member
	Members  [members]member
	Tx       [members + 1]tx // one a member; the last belongs to nobody: its member died
	Left     Budget
	Fault    fault
}

type replica uint8

const (
	follows replica = iota
	lags            // receives nothing any more
	retired         // promoted, or never there
)

type fault uint8

const (
	noFault fault = iota
	doubled
	reordered
	endless
)

// database is what Postgres has committed.
type database struct {
	Next     [partitions]uint8 // the positions
	Owner    [partitions]id
	Applied  [partitions]offsets // the effects, by record
	Head     uint8               // how many runs the log has
	Sealed   uint8               // how many of them are in segments
	Manifest id
	Runs     [maxRuns]run
	Segments [maxSegments]segment
}

type run struct {
	ID     id
	Keys   keys
	Pruned bool // its row is there, its fingerprints are not
}

type segment struct {
	ID    id
	Keys  keys
	State life
}

type life uint8

const (
	absent life = iota
	building
	live
	dead
)

// tx is a transaction as the server has it: invisible to others, but for its locks.
type tx struct {
	Stage stage
	Parts [claims]part
	Keys  keys  // of its run
	Learn keys  // of the runs in between that it looked through
	Late  uint8 // parts whose position did not move, bit by claim: only without GuardsRaise
}

type part struct {
	From, N uint8
	Applied offsets
}

type stage uint8

const (
	none     stage = iota
	prepared       // a batch only: no transaction yet
	fenced         // holds its position rows
	written        // effect and run are there; holds the log's row
	sent           // COMMIT is on its way
)

// member is a process and its memory.
type member struct {
	Hung   bool              // stands still for ever
	Once   id                // the owner of all its claims: only without OwnerPerClaim
	Stray  [partitions]uint8 // where the cursor of a claim that is gone stands: only without QueueOfClaim
	Claims [claims]claim
	View   view
	Load   load
	Batch  batch
	Work   work
}

// claim is the right to commit for a partition, with the queue that belongs to it.
type claim struct {
	Owner id
	Next  uint8 // the position as of the last commit: what the fence expects
	From  uint8 // offset of the first record in the queue
	End   uint8 // behind the last record; of a claim that is assigned, the end of the partition
}

// view is what memory knows of the log.
type view struct {
	State         condition
	Head          uint8
	HeadID        id
	Manifest      id
	Exact, Filter keys
}

type condition uint8

const (
	unloaded condition = iota
	usable
	stale // has to catch up first
)

// batch is the one that the member's committer is at. It works for a scope, so it
// may have a part of every claim.
type batch struct {
	Stage  stage
	N      [claims]uint8
	Dup    keys // seen before, says the view
	Head   uint8
	HeadID id
}

// load is a view on its way into memory.
type load struct {
	Step          loadStep
	Head, Sealed  uint8
	HeadID        id
	Manifest      id
	Exact, Filter keys
	Segments      [maxSegments]id
}

type loadStep uint8

const (
	noLoad loadStep = iota
	rowRead
	runsRead
	segmentsListed
	allRead
)

// work is a seal or a compaction on its way.
type work struct {
	Step     workStep
	Compact  bool
	Segment  id // the one being built
	Manifest id // as read at the start
	Given    id // the one that the swap gave the log
	From, To uint8
	Keys     keys
	Inputs   [maxSegments]id
}

type workStep uint8

const (
	noWork workStep = iota
	registered
	halfWritten
	complete
	unanswered
	swapped
	exactDropped // only without FilterFirst
	learned
)

func (d *database) headID() id {
	if d.Head == 0 {
		return 0
	}
	return d.Runs[d.Head-1].ID
}

// find returns a segment by its id, nil if it is not there.
func (d *database) find(name id) *segment {
	for i := range d.Segments {
		if s := &d.Segments[i]; name != 0 && s.State != absent && s.ID == name {
			return s
		}
	}
	return nil
}

// sealedKeys are those of all live segments.
func (d *database) sealedKeys() (ks keys) {
	for _, s := range d.Segments {
		if s.State == live {
			ks |= s.Keys
		}
	}
	return ks
}

// logged are the keys of the whole log.
func (d *database) logged() keys {
	ks := d.sealedKeys()
	for _, r := range d.Runs[d.Sealed:max(d.Head, d.Sealed)] {
		ks |= r.Keys
	}
	return ks
}

// between returns the keys of the runs behind a head, and whether they prove to be
// just what that head lacks.
func (w *World) between(d *database, head uint8, name id) (ks keys, proven bool) {
	if head > d.Head {
		return 0, false
	}
	proven = true
	switch {
	case head == 0:
		proven = name == 0
	case w.has(NamedHead) && w.has(ChainByID):
		proven = d.Runs[head-1].ID == name
	}
	for _, r := range d.Runs[head:d.Head] {
		if r.Pruned && w.has(ChainNeedsKeys) {
			proven = false
		}
		ks |= r.Keys
	}
	return ks, proven
}

// rowLocked reports whether a transaction, other than that of member except, holds
// a partition's position row.
func (s *state) rowLocked(p, except int) bool {
	for i := range s.Tx {
		t := &s.Tx[i]
		if i != except && t.Stage != none && (t.Parts[p].N > 0 || t.Parts[p+partitions].N > 0) {
			return true
		}
	}
	return false
}

// logLocked is the same of the log's row, for any member.
func (s *state) logLocked(w *World) bool {
	if !w.has(LogHeld) {
		return false
	}
	for i := range s.Tx {
		if s.Tx[i].Stage >= written {
			return true
		}
	}
	return false
}
