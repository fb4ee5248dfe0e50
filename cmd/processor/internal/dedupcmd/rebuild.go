package dedupcmd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/exit"
	"effectonce/pkg/dedup"
)

func rebuildCommand() *cobra.Command {
	var j rebuild
	cmd := bind(&cobra.Command{
		Use:   "rebuild",
		Short: "Make what Postgres says about filters anew from the blocks; without --yes the plan is printed",
		Long: `Rebuild reads a scope's log as check does, and compares the stored digest of each
segment's filter with the filter that its blocks make. It writes the digests that
differ, and gives up the gate's image, so that the next takeover makes the gate from
the blocks. Where a digest was wrong, running members load the scope again; they may
run meanwhile, and their commits go on.
Filters are hints that can be made again. Blocks are not: where they are damaged,
rebuild changes nothing of that scope, says where, and ends with 3; restore them from
a backup.
Exit codes: 0 done or planned, 3 blocks or runs are damaged, 69 the database is down.`,
	}, func(ctx context.Context, p *pipeline) (result, error) { return p.rebuild(ctx, &j) })
	f := cmd.Flags()
	f.StringVar(&j.scope, "scope", "", "the scope, as `TOPIC/PARTITION`, or TOPIC where it is a whole topic")
	f.BoolVar(&j.all, "all", false, "all scopes of the pipeline")
	f.BoolVar(&j.yes, "yes", false, "do it; without it the plan is printed")
	return cmd
}

// rebuild is what was asked for.
type rebuild struct {
	scope    string
	all, yes bool
}

// rebuilt is what the verb prints.
type rebuilt struct {
	Pipeline string       `json:"pipeline"`
	Done     bool         `json:"done"` // false: it is a plan
	Logs     []logRebuilt `json:"logs"`
}

// logRebuilt is one log.
type logRebuilt struct {
	Scope    string `json:"scope"`
	Keys     int64  `json:"keys"` // read
	Segments int    `json:"segments"`
	Digests  int    `json:"digests"`    // that were wrong
	Gate     bool   `json:"gate_image"` // there was one
	Place    string `json:"place,omitempty"`
	Problem  string `json:"problem,omitempty"`
}

func (p *pipeline) rebuild(ctx context.Context, j *rebuild) (*rebuilt, error) {
	if j.all == (j.scope != "") {
		return nil, exit.With(exit.UsageError, errors.New("which scope? Give --scope TOPIC/PARTITION, or --all"))
	}
	logs, err := p.store.Standings(ctx, p.conn, settings(), p.id)
	if err != nil {
		return nil, fmt.Errorf("list logs: %w", err)
	}
	res := &rebuilt{Pipeline: p.name, Done: j.yes, Logs: []logRebuilt{}}
	for i := range logs {
		scope := p.scope(&logs[i])
		if !logs[i].Open || !j.all && scope != j.scope {
			continue
		}
		l, err := p.rebuildLog(ctx, logs[i].Log, j.yes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", scope, err)
		}
		l.Scope = scope
		res.Logs = append(res.Logs, l)
	}
	if len(res.Logs) == 0 && !j.all {
		return nil, exit.With(exit.Refused, fmt.Errorf("pipeline %s has no log of scope %s: processor dedup stats lists them", p.name, j.scope))
	}
	return res, nil
}

// rebuildLog does nothing to a log that is damaged.
func (p *pipeline) rebuildLog(ctx context.Context, log int64, yes bool) (logRebuilt, error) {
	wrong, err := p.store.Renewal(ctx, p.conn, settings(), log)
	l := logRebuilt{Keys: wrong.Keys, Segments: wrong.Segments, Digests: wrong.Digests(), Gate: wrong.Gate}
	var damage *dedup.DamageError
	switch {
	case errors.As(err, &damage):
		l.Place, l.Problem = damage.Place, damage.Problem
		return l, nil
	case err != nil || !yes:
		return l, err
	}
	return l, p.store.Renew(ctx, p.conn, settings(), &wrong)
}

// err is the damage.
func (r *rebuilt) err() error {
	var lines []string
	for _, l := range r.Logs {
		if l.Problem != "" {
			lines = append(lines, fmt.Sprintf("%s: %s: %s", l.Scope, l.Place, l.Problem))
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return exit.With(exit.Refused, errors.New(strings.Join(lines, "\n")))
}

func (r *rebuilt) rows() [][]string {
	table := [][]string{{"SCOPE", "SEGMENTS", "KEYS", "WRONG DIGESTS", "GATE IMAGE", "STATE"}}
	for _, l := range r.Logs {
		gate, state := "none", "nothing to do"
		if l.Gate {
			gate = "to be given up"
		}
		switch {
		case l.Problem != "":
			state = "damaged, not touched"
		case l.Digests == 0 && !l.Gate:
		case r.Done:
			state = "done"
		default:
			state = "planned: add --yes"
		}
		table = append(table, []string{l.Scope, fmt.Sprint(l.Segments), fmt.Sprint(l.Keys), fmt.Sprint(l.Digests), gate, state})
	}
	return table
}
