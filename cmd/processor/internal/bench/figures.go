package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"effectonce/internal/pgtx"
	"effectonce/pkg/dedup"
	"effectonce/pkg/stream"
)

// usual is what the background does while a pipeline runs.
func (h *history) usual() duty {
	return duty{seal: h.res.SealKeys, compact: true, rebuild: true, memory: h.memory}
}

// build appends and seals two thirds of the history and makes a gate for half as
// much again, then adds the rest: the gate is as full as it may become.
func (h *history) build(ctx context.Context, l *ledger) error {
	var took time.Duration
	for _, part := range []struct {
		upTo int64
		duty duty
	}{
		{h.keys / 3 * 2, h.usual()},
		{h.keys, duty{seal: h.res.SealKeys, compact: true, memory: h.memory}},
	} {
		for l.next < part.upTo {
			count := min(part.upTo-l.next, max(h.keys/10, batchRecords))
			rate, err := h.apply(ctx, l, part.duty, count, 0, false)
			if err != nil {
				return fmt.Errorf("history: %w", err)
			}
			took += time.Duration(float64(count) / rate * float64(time.Second))
			h.say("history  %d keys, %.0f a second", l.next, rate)
		}
		if err := l.sealNow(ctx); err != nil {
			return err
		}
		if part.duty.rebuild { // by another owner: a gate that is good is not made anew
			if err := l.takeOver(ctx); err != nil {
				return err
			}
			if err := l.rebuild(ctx); err != nil {
				return err
			}
		}
	}
	h.res.BuildKeysPerSecond = float64(h.keys) / took.Seconds()
	return nil
}

// gate measures memory, and false positives with keys that nobody ever sent.
func (h *history) gate(_ context.Context, l *ledger) error {
	s := l.view.Stats()
	h.res.Segments = s.Segments
	h.res.GateFill = float64(s.Gate) / float64(s.Capacity)
	h.res.MemoryBytesPerKey = float64(s.GateBytes) / float64(s.Capacity)
	h.res.SegmentFilterBytes = float64(l.view.FilterBytes()) / float64(s.Sealed)
	probes, maybe := max(h.keys/10, 200_000), 0
	var f dedup.Fold
	for n := int64(0); n < probes; {
		f.Reset(0)
		for range min(batchRecords, probes-n) {
			key, err := l.hasher.Key(stream.Value{Kind: stream.Text, Data: strconv.AppendInt([]byte("probe-"), n, 10)})
			if err != nil {
				return fmt.Errorf("fingerprint: %w", err)
			}
			f.Add(key)
			n++
		}
		f.Check(l.view)
		maybe += f.Asked
	}
	h.res.FalsePositiveRate = float64(maybe) / float64(probes)
	h.note(0, "false positives", 100*h.res.FalsePositiveRate, "%")
	return nil
}

// bytes measures the tables behind clean-up, pruning and vacuum.
func (h *history) bytes(ctx context.Context, l *ledger) (err error) {
	if err := l.tidy(ctx, "VACUUM (ANALYZE) "); err != nil {
		return err
	}
	h.res.BytesPerKey, err = h.perKey(ctx, l, "bytes a key")
	return err
}

// compact is the last: merged segments leave room that the next ones fill, and a
// vacuum that moves every row says what there would be without it.
func (h *history) compact(ctx context.Context, l *ledger) (err error) {
	if err := l.tidy(ctx, "VACUUM (FULL) "); err != nil {
		return err
	}
	h.res.CompactBytesPerKey, err = h.perKey(ctx, l, "bytes a key, compact")
	return err
}

func (h *history) perKey(ctx context.Context, l *ledger, what string) (float64, error) {
	z, err := l.log.Size(ctx, l.behind, behindSettings())
	if err != nil {
		return 0, fmt.Errorf("measure: %w", err)
	}
	perKey := float64(z.Bytes()) / float64(z.Keys)
	h.note(0, what, perKey, "B")
	h.note(0, what+", blocks alone", float64(z.Blocks)/float64(z.Keys), "B")
	return perKey, nil
}

// tidy cleans up, prunes and vacuums.
func (l *ledger) tidy(ctx context.Context, vacuum string) error {
	if err := l.clean(ctx); err != nil {
		return err
	}
	for {
		n, err := l.log.Prune(ctx, l.behind, behindSettings(), l.view.Log, 0)
		if err != nil {
			return fmt.Errorf("prune: %w", err)
		}
		if n == 0 {
			break
		}
	}
	for _, table := range []string{"logs", "runs", "segments", "blocks"} {
		if _, err := l.behind.Exec(ctx, vacuum+l.relation(table)); err != nil {
			return fmt.Errorf("vacuum: %w", err)
		}
	}
	return nil
}

func (l *ledger) relation(name string) string { return pgx.Identifier{l.schema, name}.Sanitize() }

// takeovers measures the first commit of a new owner, half a seal's keys being in
// no segment; and a rebuild against a scan, each with the machine to itself.
func (h *history) takeovers(ctx context.Context, l *ledger) error {
	for round := 1; round <= h.rounds; round++ {
		if _, err := h.apply(ctx, l, duty{seal: 2 * h.keys}, h.res.SealKeys/2, 0, false); err != nil {
			return err
		}
		first, err := h.firstCommit(ctx, l)
		if err != nil {
			return err
		}
		h.note(round, "first commit", first, "s")
		scan, err := l.scan(ctx)
		if err != nil {
			return err
		}
		h.note(round, "scan", scan, "s")
		if err := l.takeOver(ctx); err != nil {
			return err
		}
		start := time.Now()
		if err := l.rebuild(ctx); err != nil {
			return err
		}
		h.note(round, "rebuild", time.Since(start).Seconds(), "s")
		h.note(round, "rebuilt", float64(l.view.Stats().Sealed)/time.Since(start).Seconds(), "keys/s")
		if err := l.sealNow(ctx); err != nil {
			return err
		}
	}
	h.res.FirstCommitSeconds = h.middle("first commit")
	h.res.RebuildOverScan = h.ratio("rebuild", "scan")
	h.res.RebuildKeysPerSecond = h.middle("rebuilt")
	return nil
}

// firstCommit is from the beginning of a takeover to the answer of the first
// COMMIT. The rebuild goes on beside it, and to its end behind it.
func (h *history) firstCommit(ctx context.Context, l *ledger) (float64, error) {
	numbers := make([]int64, takeoverSize)
	for i := range numbers {
		numbers[i] = l.next + int64(i)
	}
	start := time.Now()
	if err := l.takeOver(ctx); err != nil {
		return 0, err
	}
	if s := l.view.Stats(); !s.Rebuild || s.Ready > 0 {
		return 0, fmt.Errorf("takeover: a filter is ready already: %+v", s)
	}
	rebuilt := make(chan error, 1)
	go func() { rebuilt <- l.rebuild(ctx) }()
	err := l.commit(ctx, numbers, true)
	took := time.Since(start).Seconds()
	if err2 := <-rebuilt; err == nil {
		err = err2
	}
	if err != nil {
		return 0, fmt.Errorf("first commit: %w", err)
	}
	l.next += takeoverSize
	return took, nil
}

// scan reads all blocks and does nothing with them.
func (l *ledger) scan(ctx context.Context) (float64, error) {
	start, keys := time.Now(), int64(0)
	err := pgtx.Once(ctx, l.behind, behindSettings(), pgtx.Statement{
		Step: pgtx.StepLog,
		SQL:  "SELECT fingerprints FROM " + l.relation("blocks"),
		Row: func(r pgtx.Row) error {
			var block pgtype.DriverBytes
			err := r.Scan(&block)
			keys += int64(len(block) / 16)
			return err
		},
	})
	took := time.Since(start).Seconds()
	if sealed := l.view.Stats().Sealed; err == nil && keys != sealed {
		err = fmt.Errorf("%d keys, and %d are sealed", keys, sealed)
	}
	if err != nil {
		return 0, fmt.Errorf("scan: %w", err)
	}
	return took, nil
}

// rates compares the long history with a short one that is made anew each round.
func (h *history) rates(ctx context.Context, l *ledger) error {
	const share = 0.01
	for round := 1; round <= h.rounds; round++ {
		base, err := h.baseRate(ctx, round, share)
		if err != nil {
			return err
		}
		h.note(round, "base history", base, "records/s")
		if err := l.fresh(ctx); err != nil {
			return err
		}
		long, err := h.apply(ctx, l, h.usual(), h.res.Records, share, true)
		if err != nil {
			return err
		}
		h.note(round, "long history", long, "records/s")
	}
	h.res.RecordsPerSecond, h.res.BaseRecordsPerSecond = h.middle("long history"), h.middle("base history")
	h.res.HistoryRatio = h.ratio("long history", "base history")
	return nil
}

func (h *history) baseRate(ctx context.Context, round int, share float64) (float64, error) {
	l, err := openLedger(ctx, h.config, schemaName(fmt.Sprintf("base%d", round)))
	if err != nil {
		return 0, err
	}
	defer l.remove(ctx)
	if _, err := h.apply(ctx, l, h.usual(), h.res.BaseHistory, 0, false); err != nil {
		return 0, err
	}
	if err := l.sealNow(ctx); err != nil {
		return 0, err
	}
	if err := l.rebuild(ctx); err != nil {
		return 0, err
	}
	if err := l.fresh(ctx); err != nil {
		return 0, err
	}
	return h.apply(ctx, l, h.usual(), h.res.Records, share, true)
}

// oldDuplicates compares runs of two seals each. Merges wait until the clock is
// stopped: they would meet one side more often than the other.
func (h *history) oldDuplicates(ctx context.Context, l *ledger) error {
	for round := 1; round <= h.rounds; round++ {
		for _, side := range []struct {
			what  string
			share float64
		}{{"no duplicates", 0}, {"old duplicates", 0.1}} {
			if err := l.keep(ctx, h.usual()); err != nil {
				return err
			}
			if err := l.fresh(ctx); err != nil {
				return err
			}
			rate, err := h.apply(ctx, l, duty{seal: h.res.SealKeys, memory: h.memory}, 2*h.res.SealKeys, side.share, true)
			if err != nil {
				return err
			}
			h.note(round, side.what, rate, "records/s")
		}
	}
	h.res.OldDuplicatesRatio = h.ratio("old duplicates", "no duplicates")
	return nil
}

// replay applies records and, once they are all in segments, the same again.
func (h *history) replay(ctx context.Context, l *ledger) error {
	for round := 1; round <= h.rounds; round++ {
		if err := l.fresh(ctx); err != nil {
			return err
		}
		first := l.next
		rate, err := h.apply(ctx, l, h.usual(), h.res.ReplayRecords, 0, true)
		if err != nil {
			return err
		}
		h.note(round, "first time", rate, "records/s")
		if err := l.sealNow(ctx); err != nil {
			return err
		}
		if err := l.keep(ctx, h.usual()); err != nil {
			return err
		}
		before := l.found
		again := sequence{next: first, left: h.res.ReplayRecords}
		took, err := l.commits(ctx, h.usual(), true, again.batch)
		if err != nil {
			return err
		}
		if found := l.found - before; found != h.res.ReplayRecords {
			return fmt.Errorf("%w: %d and %d", errDuplicates, h.res.ReplayRecords, found)
		}
		h.note(round, "replay", float64(h.res.ReplayRecords)/took.Seconds(), "records/s")
		h.note(round, "held whole", float64(l.view.Stats().Whole)/(1<<20), "MiB")
	}
	h.res.ReplaySpeedup = h.ratio("replay", "first time")
	return nil
}
