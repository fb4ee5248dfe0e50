package dedupcmd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"effectonce/cmd/processor/internal/exit"
	"effectonce/internal/pgtest"
	"effectonce/internal/pgtx"
	"effectonce/pkg/dedup"
	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
)

// world is a pipeline orders with some history on partition 0 of two.
type world struct {
	*pgtest.DB
	file string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{DB: pgtest.New(t)}
	w.file = filepath.Join(t.TempDir(), "orders.yaml")
	if err := os.WriteFile(w.file, fmt.Appendf(nil, `
pipeline: orders
kafka: {brokers: ["127.0.0.1:1"], topics: [orders]}
postgres: {dsn: %q, schema: %q}
key: order_id
sink: {table: {schema: %q, name: orders, columns: {order_id: order_id}}}
`, w.RuntimeDSN, w.Schema, w.User), 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

var topic = stream.UUID{0xaa, 1} //nolint:gochecknoglobals // a constant

// start registers the pipeline and gives it two segments, a run and dead letters.
func (w *world) start(t *testing.T) {
	t.Helper()
	ctx, conn, store := t.Context(), w.Conn(t), dedup.New(w.Schema)
	tx := w.begin(t, conn)
	p, err := offsets.New(w.Schema).Register(ctx, tx, offsets.Pipeline{Name: "orders", Generation: []byte("g"), Group: "g", ClusterID: "c"}, []string{"orders"}, false)
	if err == nil {
		err = offsets.New(w.Schema).Create(ctx, tx, p.ID, offsets.Topic{
			ID: topic, Name: "orders", Partitions: 2, Scope: "partition", Start: "earliest", Generation: []byte("g"),
		}, []int64{0, 0})
	}
	if err == nil {
		err = store.Create(ctx, tx, p.ID, topic, 0, 2, []byte("g"))
	}
	if err == nil {
		err = tx.Commit(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	v, err := store.Load(ctx, conn, settings(), p.ID, stream.Partition{Topic: topic}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for run := range 3 {
		w.append(ctx, t, conn, store, v, run)
		if run == 2 {
			break
		}
		if _, err := store.Seal(ctx, conn, settings(), v); err != nil {
			t.Fatal(err)
		}
	}
	w.Exec(t, "UPDATE "+w.Relation("positions")+" SET progress = '2026-01-02' WHERE partition = 0")
	for i, state := range []string{"open", "open", "parked"} {
		w.Exec(t, `INSERT INTO `+w.Relation("dead_letters")+` (pipeline, topic_id, partition, "offset", topic, stage, reason, state)
			VALUES ($1, $2, 1, $3, 'orders', 'key', 'missing_key', $4)`, p.ID, [16]byte(topic), i, state)
	}
}

func (w *world) begin(t *testing.T, conn *pgx.Conn, first ...pgtx.Statement) *pgtx.Tx {
	t.Helper()
	tx, err := pgtx.Begin(t.Context(), conn, settings(), first...)
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// append commits a run of 600 keys.
func (w *world) append(ctx context.Context, t *testing.T, conn *pgx.Conn, store *dedup.Store, v *dedup.View, run int) {
	t.Helper()
	var keys []dedup.Fingerprint
	for i := range 600 {
		sum := sha256.Sum256(fmt.Append(nil, run, i))
		keys = append(keys, dedup.Fingerprint(sum[:16]))
	}
	slices.SortFunc(keys, dedup.Fingerprint.Compare)
	r := dedup.Run{View: v, ID: stream.UUID{byte(run + 1)}, Newest: time.Date(2026, 1, 1+run, 0, 0, 0, 0, time.UTC)}
	for _, k := range keys {
		r.Fingerprints = append(r.Fingerprints, k[:]...)
	}
	var xact string
	tx := w.begin(t, conn, pgtx.Statement{
		SQL: "SELECT pg_catalog.pg_current_xact_id()::text", Row: func(r pgtx.Row) error { return r.Scan(&xact) },
	})
	if err := tx.Commit(ctx, store.Append(xact, []dedup.Run{r})); err != nil {
		t.Fatal(err)
	}
	v.Learn(r.ID, r.Fingerprints)
}

// processor runs the verb and returns its exit code, standard output and error.
func (w *world) processor(t *testing.T, args ...string) (int, string, string) {
	t.Helper()
	cmd := Command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var stdout, stderr bytes.Buffer
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SetArgs(append(args, w.file))
	err := cmd.ExecuteContext(t.Context())
	return exit.Code(err), stdout.String(), fmt.Sprint(stderr.String(), err)
}

func TestStats(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t)
	code, out, text := w.processor(t, "stats", "-o", "json")
	var got stats
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exit.OK || len(got.Logs) != 2 {
		t.Fatalf("%d, %v, %s%s", code, err, out, text)
	}
	l := got.Logs[0]
	if l.Topic != "orders" || l.Partition == nil || *l.Partition != 0 || l.State != "open" || l.Keys != 1800 || l.UnsealedKeys != 600 ||
		l.UnsealedRuns != 1 || l.Segments != 2 || !slices.Equal(l.SegmentsByTier, []int64{2}) || l.Blocks != 6 || l.Head != 3 || l.Sealed != 2 ||
		l.Oldest == nil || l.Oldest.UTC().Day() != 1 || l.Newest == nil || l.Newest.UTC().Day() != 3 || l.Progress == nil || l.Progress.UTC().Day() != 2 || len(l.DeadLetters) != 0 {
		t.Errorf("%+v", l)
	}
	if l = got.Logs[1]; l.Keys != 0 || l.Segments != 0 || l.Oldest != nil || l.Progress != nil || l.DeadLetters["open"] != 2 || l.DeadLetters["parked"] != 1 {
		t.Errorf("%+v", l)
	}
	if got.Size.Keys != 1800 || got.Size.BytesPerKey == nil || *got.Size.BytesPerKey < 17 || got.DeadLetters["open"] != 2 {
		t.Errorf("%+v, %v", got.Size, got.DeadLetters)
	}
	if got.Logs[0].Filter != nil {
		t.Errorf("%+v", got.Logs[0].Filter)
	}
	code, out, text = w.processor(t, "stats", "--filter", "-o", "json")
	got = stats{}
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exit.OK {
		t.Fatalf("%d, %v, %s%s", code, err, out, text)
	}
	if f := got.Logs[0].Filter; f == nil || f.Keys != 1200 || f.Capacity < 1200 || f.Fill <= 0 || f.Fill > 1 || f.Bytes < 1200 ||
		f.TargetRate != 0.001 || f.MeasuredRate > 0.002 {
		t.Errorf("%+v", f)
	}
	code, out, text = w.processor(t, "stats")
	for _, want := range []string{"orders  0          1800  1              600            2                 6", "2 open, 1 parked", "bytes a key"} {
		if code != exit.OK || !strings.Contains(out, want) {
			t.Errorf("%d, no %q in\n%s%s", code, want, out, text)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t)
	code, out, text := w.processor(t, "check", "-o", "json")
	var got checked
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exit.OK || !got.OK || len(got.Logs) != 2 {
		t.Fatalf("%d, %v, %s%s", code, err, out, text)
	}
	if l := got.Logs[0]; !l.OK || l.Keys != 1800 || l.Blocks != 6 || l.Segments != 2 || l.Digests != 2 || l.UnsealedRuns != 1 {
		t.Errorf("%+v", l)
	}
	// One bit of one key.
	w.Exec(t, "UPDATE "+w.Relation("blocks")+" SET fingerprints = set_bit(fingerprints, 16 * 8 + 7, 1 - get_bit(fingerprints, 16 * 8 + 7)) WHERE first = "+
		"(SELECT first FROM "+w.Relation("blocks")+" ORDER BY first LIMIT 1)")
	code, out, text = w.processor(t, "check")
	if code != exit.Refused || !strings.Contains(out, "damaged") || !strings.Contains(text, "orders/0: segment ") || strings.Contains(text, "orders/1") {
		t.Errorf("%d\n%s%s", code, out, text)
	}
	code, out, _ = w.processor(t, "check", "-o", "json")
	got = checked{}
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exit.Refused || got.OK || got.Logs[0].OK || got.Logs[0].Place == "" || !got.Logs[1].OK {
		t.Errorf("%d, %v, %s", code, err, out)
	}
}

// TestNothingThere: the verbs say what is missing, with the code for it.
func TestNothingThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, verb := range []string{"stats", "check", "rebuild"} {
		if code, _, text := w.processor(t, verb); code != exit.Refused || !strings.Contains(text, "never started") {
			t.Errorf("%s: %d, %s", verb, code, text)
		}
		if code, _, text := w.processor(t, verb, "--set", "postgres.schema=nowhere"); code != exit.Refused || !strings.Contains(text, "migrate up") {
			t.Errorf("%s: %d, %s", verb, code, text)
		}
		if code, _, text := w.processor(t, verb, "--set", "postgres.dsn=postgres://nobody@127.0.0.1:1/nothing"); code != exit.Unavailable {
			t.Errorf("%s: %d, %s", verb, code, text)
		}
	}
}
