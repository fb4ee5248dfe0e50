package demo

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"effectonce/cmd/processor/internal/naive"
	"effectonce/cmd/processor/internal/produce"
	"effectonce/internal/pgtest"
)

// The tally of a table that is as it should be, and of tables somebody tampered
// with: each fault shows, and only that one.
func TestTallySeesEveryFault(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	sent := ledger{seed: 3, records: 1000, distinct: 900}
	honest := Tally{Rows: 900}
	const copyOf = `INSERT INTO @ (order_id, kafka_partition, kafka_offset) SELECT order_id, kafka_partition, `
	for name, tc := range map[string]struct {
		tamper string
		want   func(*Tally)
	}{
		"honest":                 {`SELECT 1`, func(*Tally) {}},
		"one order lost":         {`DELETE FROM @ WHERE seq = 17`, func(t *Tally) { t.Rows, t.Lost = 899, 1 }},
		"all lost":               {`DELETE FROM @`, func(t *Tally) { t.Rows, t.Lost = 0, 900 }},
		"a record applied twice": {copyOf + `kafka_offset FROM @ WHERE seq = 900`, func(t *Tally) { t.Rows, t.Doubled, t.Replayed = 901, 1, 1 }},
		"a redelivery applied":   {copyOf + `100000 FROM @ WHERE seq = 17`, func(t *Tally) { t.Rows, t.Doubled = 901, 1 }},
		"an order three times":   {copyOf + `100000 + g FROM @, generate_series(1, 2) g WHERE seq = 17`, func(t *Tally) { t.Rows, t.Doubled = 902, 2 }},
		"one order behind its partition": {
			`WITH gone AS (DELETE FROM @ WHERE seq = 17 RETURNING *) ` +
				`INSERT INTO @ (order_id, kafka_partition, kafka_offset) SELECT order_id, kafka_partition, kafka_offset FROM gone`,
			func(t *Tally) { t.OutOfOrder = 1 },
		},
		"an order nobody sent": {`INSERT INTO @ (order_id, kafka_partition, kafka_offset) VALUES ('00000000deadbeef', 0, 100000)`, func(t *Tally) { t.Rows, t.Unknown = 901, 1 }},
		"no order at all":      {`INSERT INTO @ (kafka_partition, kafka_offset) VALUES (0, 100000)`, func(t *Tally) { t.Rows, t.Unknown = 901, 1 }},
		"one for another":      {`UPDATE @ SET order_id = 'x' WHERE seq = 17`, func(t *Tally) { t.Lost, t.Unknown = 1, 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			table := db.Table(t, name, naive.Columns)
			var ids []string
			var offsets []int64
			for o := range produce.Orders(sent.seed, repeatPercent) {
				if !o.Repeat {
					ids, offsets = append(ids, string(o.Key)), append(offsets, int64(len(offsets)))
				}
				if int64(len(ids)) == sent.distinct {
					break
				}
			}
			db.Exec(t, `INSERT INTO `+table+` (order_id, kafka_partition, kafka_offset)
				SELECT id, o % 8, o FROM unnest($1::text[], $2::bigint[]) u (id, o) ORDER BY o`, ids, offsets)
			db.Exec(t, strings.ReplaceAll(tc.tamper, "@", table))

			got, err := tally(t.Context(), db.Owner, table, sent)
			if err != nil {
				t.Fatal(err)
			}
			want := honest
			tc.want(&want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("tally (-want +got):\n%s", diff)
			}
		})
	}
}
