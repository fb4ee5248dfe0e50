package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/cli"
	"effectonce/cmd/processor/internal/exit"
)

// history measures the dedup store with and without a long history of keys.
type history struct {
	dsn    string
	redis  string // host:port; empty: not measured
	keys   int64
	memory int64
	rounds int
	seed   uint64

	config   *pgx.ConnConfig
	progress io.Writer
	rng      *rand.Rand
	res      DedupResult
}

// DedupResult is what the measurement prints, medians over the rounds. A ratio is
// the median of the rounds' own ratios.
type DedupResult struct {
	History     int64 `json:"history"` // keys
	BaseHistory int64 `json:"base_history"`
	SealKeys    int64 `json:"seal_keys"` // in memory until they are sealed
	Memory      int64 `json:"memory"`    // bytes, as dedup.memory
	Records     int64 `json:"records"`   // a run
	Rounds      int   `json:"rounds"`

	HistoryRatio         float64 `json:"history_ratio"`
	RecordsPerSecond     float64 `json:"records_per_second"`      // with the history
	BaseRecordsPerSecond float64 `json:"base_records_per_second"` // with the base history
	BytesPerKey          float64 `json:"bytes_per_key"`
	CompactBytesPerKey   float64 `json:"compact_bytes_per_key"` // without room that the next segments will fill
	MemoryBytesPerKey    float64 `json:"memory_bytes_per_key"`
	GateFill             float64 `json:"gate_fill"` // when the next two were measured
	FalsePositiveRate    float64 `json:"false_positive_rate"`
	SegmentFilterBytes   float64 `json:"segment_filter_bytes_per_key"`
	FirstCommitSeconds   float64 `json:"first_commit_seconds"`
	FirstCommitRecords   int     `json:"first_commit_records"`
	RebuildOverScan      float64 `json:"rebuild_over_scan"`
	RebuildKeysPerSecond float64 `json:"rebuild_keys_per_second"`
	RedisOverPostgres    float64 `json:"redis_over_postgres,omitempty"` // 0: not measured
	ReplaySpeedup        float64 `json:"replay_speedup"`
	ReplayRecords        int64   `json:"replay_records"`
	OldDuplicatesRatio   float64 `json:"old_duplicates_ratio"`

	BuildKeysPerSecond float64         `json:"build_keys_per_second"` // appended and sealed, without an effect
	Segments           int             `json:"segments"`
	LoadAverage        string          `json:"load_average,omitempty"`     // before
	LoadAverageEnd     string          `json:"load_average_end,omitempty"` // behind
	Seconds            float64         `json:"seconds"`                    // all of it
	Measurements       []historySample `json:"measurements"`
}

// historySample is one measurement.
type historySample struct {
	Round int     `json:"round"`
	What  string  `json:"what"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

func dedupCommand() *cobra.Command {
	var h history
	cmd := &cobra.Command{
		Use:   "dedup",
		Short: "What a long history of keys costs: rates, bytes, memory, takeover, rebuild, replay",
		Long: `Dedup appends and seals a history of keys in temporary schemas, without Kafka, and
commits transactions of 10,000 records on top of it as a pipeline does: fence, COPY
into a small table, log, COMMIT. It measures

  the transaction rate over the rate with a fiftieth of the history (at most 1 M
  keys), random keys, 1 % of them old duplicates; the time counts until the
  background has sealed, merged and cleaned up what the transactions left
  bytes a key in Postgres and in memory, and false positives of the full gate
  the first commit after a takeover, while no filter is ready
  a rebuild over a bare scan of the same blocks
  a rebuild whose filters come from Redis over one that reads all blocks
  a replay of old records over applying them the first time
  the rate with 10 % of old duplicates over the rate with none

Every duplicate is counted: a run that finds one more or less than it sent fails.
The default takes 20 minutes at most and 10 GB.`,
	}
	f := cmd.Flags()
	f.StringVar(&h.dsn, "dsn", or(os.Getenv("EFFECTONCE_TEST_POSTGRES"), "postgres://postgres@127.0.0.1:5432/postgres"),
		"connection string of a role that may create schemas")
	f.StringVar(&h.redis, "redis", os.Getenv("EFFECTONCE_TEST_REDIS"), "host:port of a Redis; without one a rebuild from it is not measured")
	f.Int64Var(&h.keys, "history", 50_000_000, "keys of history")
	mib := f.Int64("memory", 512, "MiB of memory, as dedup.memory")
	f.IntVar(&h.rounds, "rounds", 3, "rounds, each of everything that is repeated")
	f.Uint64Var(&h.seed, "seed", 1, "of the choice of duplicates")
	out := cli.BindOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := out.JSON(cmd)
		if err != nil {
			return err
		}
		if h.keys < leastHistory || h.rounds < 1 {
			return exit.With(exit.UsageError, fmt.Errorf("--history wants at least %d keys, and --rounds 1", leastHistory))
		}
		h.memory = *mib << 20
		h.progress = cmd.ErrOrStderr()
		if err := h.run(cmd.Context()); err != nil {
			return err
		}
		if asJSON {
			return cli.WriteJSON(cmd.OutOrStdout(), h.res)
		}
		return cli.WriteTable(cmd.OutOrStdout(), h.res.rows())
	}
	return cmd
}

const (
	leastHistory = 50_000
	sealsARun    = 8    // so that each run has one merge of eight
	takeoverSize = 1000 // records of the first commit, while every key is looked up
	baseKeys     = 1_000_000
)

// errDuplicates says that the store found other duplicates than were sent: that is
// never a matter of speed.
var errDuplicates = errors.New("duplicates sent and found differ")

func (h *history) run(ctx context.Context) (err error) {
	start := time.Now()
	if h.config, err = pgx.ParseConfig(h.dsn); err != nil {
		return exit.With(exit.UsageError, errors.New("--dsn is not a connection string"))
	}
	h.rng = rand.New(rand.NewPCG(h.seed, 0)) // the choice of duplicates is repeatable
	h.res = DedupResult{
		History: h.keys, BaseHistory: min(h.keys/10, baseKeys), SealKeys: min(h.keys/50, baseKeys), Memory: h.memory, Rounds: h.rounds,
		FirstCommitRecords: takeoverSize, LoadAverage: LoadAverage(),
	}
	h.res.Records = sealsARun * h.res.SealKeys
	h.res.ReplayRecords = h.keys / 5 / int64(h.rounds)
	h.say("load average %s", h.res.LoadAverage)
	l, err := openLedger(ctx, h.config, schemaName("long"))
	if err != nil {
		return err
	}
	defer l.remove(ctx)
	for _, step := range []func(context.Context, *ledger) error{
		h.build, h.gate, h.bytes, h.takeovers, h.fromRedis, h.rates, h.oldDuplicates, h.replay, h.compact,
	} {
		if err := step(ctx, l); err != nil {
			return err
		}
	}
	h.res.LoadAverageEnd, h.res.Seconds = LoadAverage(), time.Since(start).Seconds()
	return nil
}

// say tells how far it is.
func (h *history) say(format string, args ...any) {
	_, _ = fmt.Fprintf(h.progress, format+"\n", args...) // progress only
}

// note keeps a measurement.
func (h *history) note(round int, what string, value float64, unit string) {
	h.res.Measurements = append(h.res.Measurements, historySample{round, what, value, unit})
	h.say("round %d  %-28s  %12.4g %s", round, what, value, unit)
}

// middle is the median of what was noted.
func (h *history) middle(what string) float64 { return median(h.noted(what)) }

func (h *history) noted(what string) []float64 {
	var v []float64
	for _, m := range h.res.Measurements {
		if m.What == what {
			v = append(v, m.Value)
		}
	}
	return v
}

// ratio is the median of the rounds' own ratios of two notes.
func (h *history) ratio(over, under string) float64 {
	a, b := h.noted(over), h.noted(under)
	var v []float64
	for i := range min(len(a), len(b)) {
		v = append(v, a[i]/b[i])
	}
	return median(v)
}

// sequence is a source of count records from number first on, oldShare of them
// repeats of numbers below old at random places.
type sequence struct {
	rng     *rand.Rand
	next    int64 // number of the next new record
	left    int64 // records
	old     int64
	share   float64
	repeats int64 // made
}

// batch appends the next batch's numbers.
func (q *sequence) batch(numbers []int64) []int64 {
	for q.left > 0 && len(numbers) < batchRecords {
		q.left--
		if q.share > 0 && q.rng.Float64() < q.share {
			numbers = append(numbers, q.rng.Int64N(q.old))
			q.repeats++
			continue
		}
		numbers = append(numbers, q.next)
		q.next++
	}
	return numbers
}

// apply commits count records on top of the ledger, share of them old duplicates,
// and returns their rate.
func (h *history) apply(ctx context.Context, l *ledger, d duty, count int64, share float64, effect bool) (float64, error) {
	q := sequence{rng: h.rng, next: l.next, left: count, old: l.view.Stats().Sealed, share: share}
	before := l.found
	took, err := l.commits(ctx, d, effect, q.batch)
	if err != nil {
		return 0, err
	}
	l.next = q.next
	if found := l.found - before; found != q.repeats {
		return 0, fmt.Errorf("%w: %d and %d", errDuplicates, q.repeats, found)
	}
	return float64(count) / took.Seconds(), nil
}

func (r *DedupResult) fromRedis() string {
	if r.RedisOverPostgres == 0 {
		return "not measured: no Redis"
	}
	return fmt.Sprintf("%.2f", r.RedisOverPostgres)
}

func (r *DedupResult) rows() [][]string {
	f := func(format string, v float64) string { return fmt.Sprintf(format, v) }
	return [][]string{
		{"FIGURE", "VALUE", ""},
		{"rate over the rate with the base history", f("%.2f", r.HistoryRatio), fmt.Sprintf("%.0f and %.0f records/s", r.RecordsPerSecond, r.BaseRecordsPerSecond)},
		{"bytes a key in Postgres", f("%.1f", r.BytesPerKey), f("%.1f without room for the next segments", r.CompactBytesPerKey)},
		{"bytes a key of the gate", f("%.2f", r.MemoryBytesPerKey), fmt.Sprintf("%.2f %% false positives, %.0f %% full", 100*r.FalsePositiveRate, 100*r.GateFill)},
		{"bytes a key of the segments' filters", f("%.2f", r.SegmentFilterBytes), fmt.Sprintf("%d segments", r.Segments)},
		{"first commit after a takeover", f("%.3f s", r.FirstCommitSeconds), fmt.Sprintf("%d records, no filter ready", r.FirstCommitRecords)},
		{"rebuild over a bare scan", f("%.2f", r.RebuildOverScan), f("%.1f M keys/s", r.RebuildKeysPerSecond/1e6)},
		{"rebuild from Redis over one from Postgres", r.fromRedis(), ""},
		{"replay over the first time", f("%.2f", r.ReplaySpeedup), fmt.Sprintf("%d records a round", r.ReplayRecords)},
		{"rate with 10 % old duplicates over none", f("%.2f", r.OldDuplicatesRatio), ""},
		{fmt.Sprintf("medians of %d rounds; %d keys of history, base %d; %d MiB of memory; %.0f s; load %s before, %s behind",
			r.Rounds, r.History, r.BaseHistory, r.Memory>>20, r.Seconds, r.LoadAverage, r.LoadAverageEnd)},
	}
}
