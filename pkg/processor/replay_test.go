package processor_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"effectonce/pkg/sink"
	"effectonce/pkg/stream"
)

// Each record takes its time, so that a batch is over the handler's limit and is
// applied in pieces; the last but one hangs and takes the session with it. All pieces
// applied before were applied again in one call, which is over the limit: the
// partition stood still for ever.
func TestAHandlerThatHangsBehindSlowRecords(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.cfg.Table, w.cfg.HandlerTimeout = nil, 400*time.Millisecond
	w.cfg.Handler = func(ctx context.Context, tx sink.Tx, records []stream.Record) ([]sink.Rejection, error) {
		for _, r := range records {
			nap := 60 * time.Millisecond
			if string(r.Key) == "14" {
				nap = time.Minute
			}
			if _, err := tx.Exec(ctx, "INSERT INTO "+w.orders()+" (order_id, amount) SELECT $1, 1 FROM pg_catalog.pg_sleep($2)",
				string(r.Key), nap.Seconds()); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	var docs []string
	for i := range 16 {
		docs = append(docs, fmt.Sprintf(`{"order_id":"o%d"}`, i))
	}
	w.produceDocs(t, docs...)
	w.run(t, w.at(t, 16))
	if got := w.letters(t); len(got) != 1 || !strings.HasPrefix(got[0], "0/14 effect") {
		t.Errorf("dead letters: %v", got)
	}
	if n := w.count(t, "SELECT count(DISTINCT order_id) FROM "+w.orders()); n != 15 || w.count(t, "SELECT count(*) FROM "+w.orders()) != 15 {
		t.Errorf("%d keys", n)
	}
}

// A flood is counted over batches. The first batch applies a record and then fails
// three, the second fails from its beginning: five in a row, with none applied
// between.
func TestAFloodIsCountedOverBatches(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.admin(t)
	w.cfg.StopAfter, w.cfg.BatchRecords = 5, 4
	w.db.Exec(t, "ALTER TABLE "+w.orders()+" ADD CHECK (amount < 10)")
	docs := []string{`{"order_id":"good","amount":1}`}
	for i := range 9 {
		docs = append(docs, fmt.Sprintf(`{"order_id":"o%d","amount":50}`, i))
	}
	w.produceDocs(t, docs...)
	w.run(t, func() bool { return w.stopped("poison_flood")() || w.at(t, 10)() })
	if got := w.letters(t); len(got) != 3 || !w.at(t, 4)() {
		t.Errorf("%d dead letters, want those of the first batch", len(got))
	}
}
