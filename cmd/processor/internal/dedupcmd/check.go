package dedupcmd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/exit"
	"effectonce/pkg/dedup"
)

func checkCommand() *cobra.Command {
	return bind(&cobra.Command{
		Use:   "check",
		Short: "Prove that the key history is in order: exit 3 and the exact place if it is not",
		Long: `Check reads all logs of the pipeline, one after another, each as of one moment, and
proves that blocks are sorted, that segments have the blocks and keys they should,
that the runs behind them have no gap and end at the log's head, that no key is there
twice, and that every key passes the filter a member would build.
It reads 16 bytes a key and takes about 5 bytes of memory a key of the largest log;
while a log is read, rows that the pipeline changes cannot be vacuumed.
Exit codes: 0 everything is in order, 3 something is not, 69 the database is down.`,
	}, func(ctx context.Context, p *pipeline) (result, error) { return p.check(ctx) })
}

// checked is what the verb prints.
type checked struct {
	Pipeline string       `json:"pipeline"`
	OK       bool         `json:"ok"`
	Logs     []logChecked `json:"logs"`
}

// logChecked is one log.
type logChecked struct {
	Scope        string `json:"-"`
	Topic        string `json:"topic"`
	Partition    *int32 `json:"partition"` // null in scope topic
	OK           bool   `json:"ok"`
	Place        string `json:"place,omitempty"` // of the first damage
	Problem      string `json:"problem,omitempty"`
	Keys         int64  `json:"keys"` // read, up to the damage
	Blocks       int64  `json:"blocks"`
	Segments     int    `json:"segments"`
	Digests      int    `json:"digests"` // segments whose filter's digest was compared
	UnsealedRuns int64  `json:"unsealed_runs"`
}

func (p *pipeline) check(ctx context.Context) (*checked, error) {
	logs, err := p.store.Standings(ctx, p.conn, settings(), p.id)
	if err != nil {
		return nil, fmt.Errorf("list logs: %w", err)
	}
	second, err := pgx.ConnectConfig(ctx, p.pool)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	defer func() { _ = second.Close(context.WithoutCancel(ctx)) }() // only reads were made
	res := &checked{Pipeline: p.name, OK: true, Logs: []logChecked{}}
	for i := range logs {
		l := &logs[i]
		if !l.Open {
			continue // its keys were moved to another
		}
		found, err := p.store.Verify(ctx, p.conn, second, settings(), p.id, *l)
		c := logChecked{
			Scope: p.scope(l), Topic: p.topic(l), Keys: found.Keys, Blocks: found.Blocks, Segments: found.Segments, Digests: found.Digests,
			UnsealedRuns: found.Runs,
		}
		if l.Partition.Number != dedup.WholeTopic {
			c.Partition = &l.Partition.Number
		}
		var damage *dedup.DamageError
		switch {
		case errors.As(err, &damage):
			c.Place, c.Problem, res.OK = damage.Place, damage.Problem, false
		case err != nil:
			return nil, fmt.Errorf("%s: %w", c.Scope, err)
		default:
			c.OK = true
		}
		res.Logs = append(res.Logs, c)
	}
	return res, nil
}

// err is what is not in order, nil if everything is.
func (c *checked) err() error {
	var lines []string
	for _, l := range c.Logs {
		if !l.OK {
			lines = append(lines, fmt.Sprintf("%s: %s: %s", l.Scope, l.Place, l.Problem))
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return exit.With(exit.Refused, errors.New(strings.Join(lines, "\n")))
}

// rows leaves the damage to err, which is printed once.
func (c *checked) rows() [][]string {
	table := [][]string{{"TOPIC", "PARTITION", "STATE", "KEYS", "BLOCKS", "SEGMENTS", "DIGESTS", "UNSEALED RUNS"}}
	for _, l := range c.Logs {
		table = append(table, []string{
			l.Topic, number(l.Partition), map[bool]string{true: "ok", false: "damaged"}[l.OK], fmt.Sprint(l.Keys), fmt.Sprint(l.Blocks),
			fmt.Sprint(l.Segments), fmt.Sprint(l.Digests), fmt.Sprint(l.UnsealedRuns),
		})
	}
	return table
}
