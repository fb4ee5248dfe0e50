package offsets_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtest"
	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
)

// world is a private schema and a session of the runtime role.
type world struct {
	*pgtest.DB
	t     *testing.T
	store *offsets.Store
	conn  *pgx.Conn
	id    int64 // of the pipeline p
}

var (
	gen   = []byte("generation")   //nolint:gochecknoglobals // a constant
	topic = stream.UUID{0xaa, 0x1} //nolint:gochecknoglobals // a constant
)

// patient bounds nothing that a test waits for: machines stall.
var patient = pgtx.Settings{Lock: time.Minute, Statement: time.Minute, Idle: time.Minute} //nolint:gochecknoglobals // a constant

// bare has no pipeline yet.
func bare(t *testing.T) *world {
	t.Helper()
	w := &world{DB: pgtest.New(t), t: t}
	w.store, w.conn = offsets.New(w.Schema), w.session()
	return w
}

// newWorld has a pipeline and a topic whose partition n starts at 100·n.
func newWorld(t *testing.T, partitions int32) *world {
	t.Helper()
	w := bare(t)
	starts := make([]int64, partitions)
	for n := range starts {
		starts[n] = 100 * int64(n)
	}
	err := w.tx(w.conn, func(tx *pgtx.Tx) error {
		p, err := w.store.Register(t.Context(), tx, pipeline("p"), []string{"orders"}, false)
		if err != nil {
			return err
		}
		w.id = p.ID
		return w.store.Create(t.Context(), tx, w.id, ordersTopic(partitions), starts)
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func pipeline(name string) offsets.Pipeline {
	return offsets.Pipeline{
		Name: name, Salt: [16]byte{1, 2, 3}, Generation: gen, Group: name + "-group", ClusterID: "cluster", SystemID: 77,
		SinkTables: []string{"public." + name},
	}
}

func ordersTopic(partitions int32) offsets.Topic {
	return offsets.Topic{ID: topic, Name: "orders", Partitions: partitions, Scope: "partition", Start: "earliest", Generation: gen}
}

// session is one more member's connection. What is tested is locks and guards, not
// a crash, so commits need not reach the disk.
func (w *world) session() *pgx.Conn {
	w.t.Helper()
	conn := w.Conn(w.t)
	if _, err := conn.Exec(w.t.Context(), "SET synchronous_commit = off"); err != nil {
		w.t.Fatal(err)
	}
	return conn
}

// tx runs f in a transaction of its own.
func (w *world) tx(conn *pgx.Conn, f func(*pgtx.Tx) error) error {
	w.t.Helper()
	tx, err := pgtx.Begin(w.t.Context(), conn, patient)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := f(tx); err != nil {
		tx.Rollback(w.t.Context())
		return err
	}
	return tx.Commit(w.t.Context())
}

func part(n int32) stream.Partition { return stream.Partition{Topic: topic, Number: n} }

// taking asks for partition n under the owner named by a letter.
func taking(n int32, owner byte) offsets.Taking {
	return offsets.Taking{Claim: stream.Claim{Partition: part(n), TopicName: "orders", Owner: stream.UUID{owner}, LeaderEpoch: -1}, Generation: gen}
}

func (w *world) takeover(conn *pgx.Conn, holder string, wait bool, ts ...offsets.Taking) []offsets.Answer {
	w.t.Helper()
	answers, err := w.store.Takeover(w.t.Context(), conn, patient, w.id, holder, ts, wait)
	if err != nil {
		w.t.Fatal(err)
	}
	return answers
}

// claim takes partition n over for an owner.
func (w *world) claim(n int32, owner byte) stream.Claim {
	w.t.Helper()
	a := w.takeover(w.conn, "host", false, taking(n, owner))[0]
	if a.Outcome != offsets.Taken {
		w.t.Fatalf("takeover of %d: %s", n, a.Outcome)
	}
	return a.Claim
}

// advance moves a claim's position by n in a transaction of its own.
func (w *world) advance(conn *pgx.Conn, n int64, claims ...stream.Claim) error {
	as := make([]offsets.Advance, len(claims))
	for i, c := range claims {
		as[i] = offsets.Advance{Claim: c, Generation: gen, To: c.Next + n, LeaderEpoch: 4}
	}
	var xact string
	return pgtx.Once(w.t.Context(), conn, patient, w.store.Fence(w.id, as, &xact))
}

// positions is the table as it stands, row by row.
func (w *world) positions() []string {
	w.t.Helper()
	rows, err := w.Owner.Query(w.t.Context(), `SELECT partition || ' at ' || next_offset || ' owner ' ||
		coalesce(left(owner::text, 2), 'none') || ' epoch ' || epoch || ' by ' || holder FROM `+w.Relation("positions")+` ORDER BY 1`)
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func (w *world) want(what string, want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.positions()); diff != "" {
		w.t.Errorf("%s: positions (-want +got):\n%s", what, diff)
	}
}

// waits returns once the session waits for a lock.
func (w *world) waits(conn *pgx.Conn, ended <-chan error) {
	w.t.Helper()
	for waits := false; !waits; {
		select {
		case err := <-ended:
			w.t.Fatalf("it did not wait: %v", err)
		default:
		}
		if err := w.Owner.QueryRow(w.t.Context(), "SELECT cardinality(pg_blocking_pids($1)) > 0", int32(conn.PgConn().PID())).Scan(&waits); err != nil {
			w.t.Fatal(err)
		}
	}
}
