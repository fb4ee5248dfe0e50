package storm

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// trail is what the audit trail and the members' logs say, read behind the end.
type trail struct {
	commits  []commit // of each partition in the order of its offsets
	claims   map[claim]process
	taken    map[claim]time.Time
	loaded   map[place][]time.Time // views, ascending
	rejected int64                 // stale commits
	handed   int64                 // of these: what the old owner went on with until it was taken over
	ended    int64                 // backends that a takeover ended
}

// commit is one commit of one partition.
type commit struct {
	claim

	at      time.Time // by our clock
	applied int64
}

// claim names one.
type claim struct {
	part  int32
	epoch int64
}

// place is a partition at a process.
type place struct {
	process

	part int32
}

// remember reads the trail.
func (p *play) remember(ctx context.Context) (t trail, err error) {
	rows, err := p.db.Query(ctx, "SELECT partition, epoch, committed_at, applied FROM "+p.relation(p.name, "audit"))
	if err != nil {
		return t, fmt.Errorf("audit trail: %w", err)
	}
	var c commit
	if _, err := pgx.ForEachRow(rows, []any{&c.part, &c.epoch, &c.at, &c.applied}, func() error {
		c.at = c.at.Add(-p.skew)
		t.commits = append(t.commits, c)
		return nil
	}); err != nil {
		return t, fmt.Errorf("audit trail: %w", err)
	}
	slices.SortFunc(t.commits, func(a, b commit) int { return cmp.Or(cmp.Compare(a.part, b.part), a.at.Compare(b.at)) })
	t.claims, t.taken, t.loaded = map[claim]process{}, map[claim]time.Time{}, map[place][]time.Time{}
	for path, who := range p.crew.logs {
		if err := t.log(path, who); err != nil {
			return t, fmt.Errorf("log of member %d: %w", who.slot, err)
		}
	}
	return t, nil
}

// log reads which claims a process made and when, and how often it was refused.
func (t *trail) log(path string, who process) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var said struct {
			Time      time.Time `json:"time"`
			Message   string    `json:"message"`
			Partition int32     `json:"partition"`
			Epoch     int64     `json:"epoch"`
		}
		if !bytes.HasPrefix(lines.Bytes(), []byte("{")) || json.Unmarshal(lines.Bytes(), &said) != nil {
			continue // cut off by a kill, or not of the logger
		}
		switch said.Message {
		case "takeover":
			t.claims[claim{said.Partition, said.Epoch}] = who
			t.taken[claim{said.Partition, said.Epoch}] = said.Time
		case "view loaded":
			at := place{who, said.Partition}
			t.loaded[at] = append(t.loaded[at], said.Time)
		case "stale claim rejected by the fence":
			t.rejected++
		case "handed over":
			t.rejected++
			t.handed++
		case "ended_backend":
			t.ended++
		}
	}
	return lines.Err()
}

// of are one partition's commits.
func (t *trail) of(part int32) []commit {
	from, _ := slices.BinarySearchFunc(t.commits, part, func(c commit, p int32) int { return cmp.Compare(c.part, p) })
	to, _ := slices.BinarySearchFunc(t.commits, part+1, func(c commit, p int32) int { return cmp.Compare(c.part, p) })
	return t.commits[from:to]
}

// applied is how many records were applied in a time.
func (t *trail) applied(from, to time.Time) (n int64) {
	for _, c := range t.commits {
		if c.at.After(from) && !c.at.After(to) {
			n += c.applied
		}
	}
	return n
}
