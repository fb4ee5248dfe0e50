package dedupcmd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"effectonce/internal/pgtx"
	"effectonce/pkg/dedup"
)

func statsCommand() *cobra.Command {
	var filter bool
	cmd := bind(&cobra.Command{
		Use:   "stats",
		Short: "Keys, segments and bytes of each partition's key history",
		Long: `Stats counts what the tables hold of each log: keys, runs that are not sealed,
segments by tier, blocks, dead letters. Bytes a key are those of all dedup tables of
the schema, indexes and space that waits for vacuum included, over all keys in them.
With --filter it also makes the filter that a member makes when it takes over, and
measures its false positives with keys that nobody sent: that reads 16 bytes a key and
takes about 4 bytes of memory a key of the largest log. How full the filter of a
running member is, its metrics say.`,
	}, func(ctx context.Context, p *pipeline) (result, error) { return p.stats(ctx, filter) })
	cmd.Flags().BoolVar(&filter, "filter", false, "make each log's filter, and measure it")
	return cmd
}

// stats is what the verb prints.
type stats struct {
	Pipeline    string           `json:"pipeline"`
	Schema      string           `json:"schema"`
	Logs        []logStats       `json:"logs"`
	DeadLetters map[string]int64 `json:"dead_letters"` // by state
	Size        sizeStats        `json:"size"`
}

// logStats is one log.
type logStats struct {
	Topic          string           `json:"topic"`
	Partition      *int32           `json:"partition"` // null in scope topic
	State          string           `json:"state"`
	Keys           int64            `json:"keys"`
	UnsealedRuns   int64            `json:"unsealed_runs"`
	UnsealedKeys   int64            `json:"unsealed_keys"`
	Segments       int64            `json:"segments"`
	SegmentsByTier []int64          `json:"segments_by_tier"`
	BuildingOrDead int64            `json:"segments_building_or_dead"`
	Blocks         int64            `json:"blocks"`
	Head           int64            `json:"head"`
	Sealed         int64            `json:"sealed"`
	Oldest         *time.Time       `json:"oldest_record"`
	Newest         *time.Time       `json:"newest_record"`
	Progress       *time.Time       `json:"progress"`     // a key older than this less the retention may be gone
	DeadLetters    map[string]int64 `json:"dead_letters"` // by state
	Filter         *filterStats     `json:"filter"`       // null unless it was asked for
}

// filterStats is a filter as a member makes it at a takeover.
type filterStats struct {
	Keys         int64   `json:"keys"`
	Capacity     int64   `json:"capacity"`
	Fill         float64 `json:"fill"`
	Bytes        int64   `json:"bytes"`
	TargetRate   float64 `json:"target_false_positive_rate"`
	MeasuredRate float64 `json:"measured_false_positive_rate"`
}

// sizeStats is about all pipelines of the schema.
type sizeStats struct {
	Keys        int64    `json:"keys"`
	Bytes       int64    `json:"bytes"`
	RunBytes    int64    `json:"run_bytes"`
	BlockBytes  int64    `json:"block_bytes"`
	BytesPerKey *float64 `json:"bytes_per_key"` // null without keys
}

// place is where a dead letter came from.
type place struct {
	topic     [16]byte
	partition int32
}

func (p *pipeline) stats(ctx context.Context, filter bool) (*stats, error) {
	logs, err := p.store.Standings(ctx, p.conn, settings(), p.id)
	if err != nil {
		return nil, fmt.Errorf("count logs: %w", err)
	}
	size, err := p.store.Size(ctx, p.conn, settings())
	if err != nil {
		return nil, fmt.Errorf("measure tables: %w", err)
	}
	letters, err := p.letters(ctx)
	if err != nil {
		return nil, fmt.Errorf("count dead letters: %w", err)
	}
	res := &stats{
		Pipeline: p.name, Schema: p.schema, Logs: []logStats{}, DeadLetters: map[string]int64{},
		Size: sizeStats{Keys: size.Keys, Bytes: size.Bytes(), RunBytes: size.Runs, BlockBytes: size.Blocks},
	}
	if size.Keys > 0 {
		perKey := float64(size.Bytes()) / float64(size.Keys)
		res.Size.BytesPerKey = &perKey
	}
	for i := range logs {
		l := p.log(&logs[i], letters)
		if filter && logs[i].Open {
			if l.Filter, err = p.filter(ctx, &logs[i]); err != nil {
				return nil, fmt.Errorf("%s: %w", p.scope(&logs[i]), err)
			}
		}
		res.Logs = append(res.Logs, l)
	}
	for _, states := range letters {
		add(res.DeadLetters, states)
	}
	return res, nil
}

// probes are enough to tell 0.1 % from 0.2 %.
const probes = 1_000_000

// filter makes a log's filter and measures it.
func (p *pipeline) filter(ctx context.Context, l *dedup.Standing) (*filterStats, error) {
	v, err := p.store.Load(ctx, p.conn, settings(), p.id, l.Partition, nil)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	if err := p.store.Rebuild(ctx, p.conn, settings(), v, nil); err != nil {
		return nil, fmt.Errorf("make the filter: %w", err)
	}
	s := v.Stats()
	f := &filterStats{Keys: s.Gate, Capacity: s.Capacity, Bytes: s.GateBytes}
	if f.TargetRate, f.MeasuredRate = v.Probe(probes); s.Capacity > 0 {
		f.Fill = float64(s.Gate) / float64(s.Capacity)
	}
	return f, nil
}

func (p *pipeline) log(l *dedup.Standing, letters map[place]map[string]int64) logStats {
	s := logStats{
		Topic: p.topic(l), State: "open", Keys: l.Keys(), UnsealedRuns: l.Runs, UnsealedKeys: l.RunKeys,
		Segments: l.Segments(), SegmentsByTier: l.Tiers, BuildingOrDead: l.Building + l.Dead, Blocks: l.Blocks,
		Head: l.Head, Sealed: l.Sealed, DeadLetters: map[string]int64{},
	}
	if s.SegmentsByTier == nil {
		s.SegmentsByTier = []int64{}
	}
	if !l.Open {
		s.State = "closed"
	}
	if l.Partition.Number != dedup.WholeTopic {
		s.Partition = &l.Partition.Number
	}
	s.Oldest, s.Newest, s.Progress = known(&l.Oldest), known(&l.Newest), known(&l.Progress)
	for at, states := range letters {
		if l.Open && at.topic == l.Partition.Topic && (s.Partition == nil || at.partition == *s.Partition) {
			add(s.DeadLetters, states)
		}
	}
	return s
}

// known is nil for the zero time.
func known(t *time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return t
}

func add(to, from map[string]int64) {
	for state, n := range from {
		to[state] += n
	}
}

// letters counts dead letters by where they came from and by state.
func (p *pipeline) letters(ctx context.Context) (map[place]map[string]int64, error) {
	found := map[place]map[string]int64{}
	err := pgtx.Once(ctx, p.conn, settings(), pgtx.Statement{
		SQL: `SELECT topic_id, partition, state, count(*) FROM ` + pgx.Identifier{p.schema, "dead_letters"}.Sanitize() + `
			WHERE pipeline = $1 GROUP BY 1, 2, 3`,
		Params: []pgtx.Param{pgtx.Int8(p.id)},
		Row: func(r pgtx.Row) error {
			var at place
			var state string
			var n int64
			err := r.Scan(&at.topic, &at.partition, &state, &n)
			if found[at] == nil {
				found[at] = map[string]int64{}
			}
			found[at][state] = n
			return err
		},
	})
	return found, err
}

func (s *stats) rows() [][]string {
	table := [][]string{{
		"TOPIC", "PARTITION", "KEYS", "UNSEALED RUNS", "UNSEALED KEYS", "SEGMENTS BY TIER", "BLOCKS", "HEAD", "SEALED", "OLDEST", "NEWEST", "PROGRESS",
		"DEAD LETTERS", "FILTER",
	}}
	for _, l := range s.Logs {
		table = append(table, []string{
			l.Topic + map[bool]string{true: " (closed)"}[l.State == "closed"], l.number(), fmt.Sprint(l.Keys), fmt.Sprint(l.UnsealedRuns),
			fmt.Sprint(l.UnsealedKeys), tiers(l.SegmentsByTier), fmt.Sprint(l.Blocks), fmt.Sprint(l.Head), fmt.Sprint(l.Sealed),
			stamp(l.Oldest), stamp(l.Newest), stamp(l.Progress), states(l.DeadLetters), l.Filter.text(),
		})
	}
	perKey := ""
	if s.Size.BytesPerKey != nil {
		perKey = fmt.Sprintf(", %.1f bytes a key", *s.Size.BytesPerKey)
	}
	return append(table, []string{fmt.Sprintf("schema %s: %d keys in %d bytes%s", s.Schema, s.Size.Keys, s.Size.Bytes, perKey)})
}

func (*stats) err() error { return nil }

func (l *logStats) number() string { return number(l.Partition) }

func number(partition *int32) string {
	if partition == nil {
		return "all together"
	}
	return fmt.Sprint(*partition)
}

// text is "-" when the filter was not asked for.
func (f *filterStats) text() string {
	if f == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f %% full, %.2f %% false positives, target %.2f %%", 100*f.Fill, 100*f.MeasuredRate, 100*f.TargetRate)
}

// tiers is "3+1": three segments that were never merged, one that was once.
func tiers(n []int64) string {
	if len(n) == 0 {
		return "0"
	}
	text := make([]string, len(n))
	for i := range n {
		text[i] = fmt.Sprint(n[i])
	}
	return strings.Join(text, "+")
}

func stamp(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

func states(n map[string]int64) string {
	var text []string
	for _, state := range slices.Sorted(maps.Keys(n)) {
		text = append(text, fmt.Sprintf("%d %s", n[state], state))
	}
	if len(text) == 0 {
		return "0"
	}
	return strings.Join(text, ", ")
}
