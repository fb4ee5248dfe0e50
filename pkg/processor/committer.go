package processor

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"effectonce/internal/mutant"
	"effectonce/internal/pgtx"
	"effectonce/pkg/decode"
	"effectonce/pkg/dedup"
	"effectonce/pkg/offsets"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/sink"
	"effectonce/pkg/stream"
)

// committer takes ready partitions and commits them, one transaction at a time.
// Its buffers live from batch to batch.
type committer struct {
	p       *Processor
	batch   stream.Batch
	decoder *decode.Decoder
	hasher  *dedup.Hasher
	blank   []stream.Value // one row of Missing

	faults  []stream.Fault // one a dead record
	dead    []bool         // record → has a fault
	applied []bool         // record → applied in this transaction
	picks   []int          // records the effect applies, ascending
	horizon time.Time      // record times beyond it do not count
}

func (p *Processor) newCommitter() *committer {
	return &committer{
		p: p, decoder: p.plan.NewDecoder(), hasher: dedup.NewHasher(p.pipeline.Salt),
		blank: make([]stream.Value, p.width),
	}
}

// run commits until the list is closed. What is in flight then is finished, as long
// as ctx lives.
func (c *committer) run(ctx context.Context) error {
	for w := c.p.list.take(); w != nil; w = c.p.list.take() {
		limited, cancel := context.WithTimeout(ctx, c.p.cfg.BatchTime)
		c.do(limited, w)
		cancel()
	}
	return nil
}

// do takes one transaction from its records to its outcome.
func (c *committer) do(ctx context.Context, w *work) {
	if !c.current(ctx, w) {
		return
	}
	start, err := time.Now(), errOvertaken
	for errors.Is(err, errOvertaken) { // memory knows by now what others applied
		if !c.prepare(ctx, w) {
			return
		}
		if w = c.moving(w); len(w.parts) == 0 {
			return
		}
		start = time.Now()
		if err = c.commit(ctx, w); errors.Is(err, errOvertaken) {
			c.p.metrics.failed(LogMoved)
		}
	}
	if err != nil {
		c.failed(ctx, w, err)
		return
	}
	for _, p := range w.parts {
		if p.done.Applied > 0 { // isolation counts by itself: what failed last was behind what applied
			p.q.blame.poison = 0
		}
	}
	c.committed(w, time.Since(start))
}

// current catches up the views that the watch or an unknown COMMIT left in doubt.
// It returns false when the work was put back.
func (c *committer) current(ctx context.Context, w *work) bool {
	for _, s := range w.logs {
		if !s.scope.stale {
			continue
		}
		if len(w.logs) > 1 { // one by one, so that none holds up the others
			c.again(w, 0)
			return false
		}
		return c.catchUp(ctx, w)
	}
	return true
}

// moving leaves out the parts that have nothing to commit: records below the
// position, or a first record that stops the partition.
func (c *committer) moving(w *work) *work {
	var parts []*part
	for _, p := range w.parts {
		if p.moves() {
			parts = append(parts, p)
			continue
		}
		p.leaderEpoch = p.q.claim.LeaderEpoch
		c.finish(p)
	}
	return of(parts)
}

// finish returns a part to the list after its position moved, or when it had
// nothing to move, and stops the partition if a record said so.
func (c *committer) finish(p *part) {
	if c.p.list.committed(p) {
		c.p.resume(p.q.name)
	}
	if p.stop != nil {
		c.p.group.Stop(p.q.claim, c.p.fits(*p.stop, p))
	}
}

// commit is the transaction of a batch, in the order that the promise rests on:
// fence, effect, log, write, COMMIT. Memory learns behind it.
func (c *committer) commit(ctx context.Context, w *work) error {
	conn, err := c.p.commits.Acquire(ctx)
	if err != nil {
		return &pgtx.StepError{Step: pgtx.StepBegin, Err: err}
	}
	defer conn.Release()
	for {
		var xact string
		tx, err := pgtx.Begin(ctx, conn.Conn(), c.p.settings, c.fence(w, &xact))
		if err != nil {
			return err
		}
		faults, err := c.p.sink.Apply(ctx, tx, &c.batch, c.picks)
		if err != nil {
			tx.Rollback(ctx)
			return err
		}
		if len(faults) > 0 { // the sink refused some: again without them
			tx.Rollback(ctx)
			for _, f := range faults {
				c.bury(f)
			}
			c.pick(w)
			continue
		}
		for _, i := range c.picks {
			c.applied[i] = true
		}
		return c.conclude(ctx, tx, w, xact)
	}
}

// conclude is steps 3 and 4 and COMMIT, in one round trip behind the check of
// deferred constraints; then memory learns.
func (c *committer) conclude(ctx context.Context, tx *pgtx.Tx, w *work, xact string) error {
	last := []pgtx.Statement{setConstraints}
	if s := w.shared(); s != nil {
		if err := c.hold(ctx, tx, s); err != nil {
			tx.Rollback(ctx)
			return err
		}
		last = nil
	}
	runs := w.runs(c.dead, c.applied)
	if mutant.LearnEarly {
		for _, r := range runs {
			r.View.LearnKeys(r.Fingerprints)
		}
	}
	last = append(last, c.p.log.Append(xact, runs))
	if letters, some := sink.DeadLetters(c.p.cfg.Schema, c.p.pipeline.ID, c.letters()); some {
		last = append(last, letters)
	}
	if err := tx.Commit(ctx, last...); err != nil {
		return err
	}
	for _, r := range runs {
		r.View.Learn(r.ID, r.Fingerprints)
	}
	return nil
}

// hold is step 3 for a log with many writers, where a moved head is the normal case:
// it locks the log until COMMIT and learns what others have appended meanwhile. Keys
// of the batch among it are errOvertaken; also those of records that the effect
// refused, since what refused them may be the other copy's row.
func (c *committer) hold(ctx context.Context, tx *pgtx.Tx, s *share) error {
	if err := c.p.log.Hold(ctx, tx, s.scope.view, setConstraints, pgtx.LockTimeout(pgtx.StepLog, c.p.cfg.Grace)); err != nil {
		return err
	}
	if s.fold.Overtaken(func(i int) bool { return c.applied[i] || c.dead[i] }) && !mutant.IgnoreOvertaken {
		return errOvertaken
	}
	return nil
}

// errOvertaken says that another member applied a key of this batch since the batch
// was checked. The view knows it now: check again.
var errOvertaken = errors.New("a key of the batch was applied by another member meanwhile")

var setConstraints = pgtx.Statement{Step: pgtx.StepEffect, SQL: "SET CONSTRAINTS ALL IMMEDIATE"}

func (c *committer) fence(w *work, xact *string) pgtx.Statement {
	advances := make([]offsets.Advance, len(w.parts))
	for i, p := range w.parts {
		advances[i] = p.advance(c.p.topics[p.q.name.Topic])
	}
	return c.p.offsets.Fence(c.p.pipeline.ID, advances, xact)
}

// committed tells everyone about a transaction that COMMIT was answered for.
func (c *committer) committed(w *work, took time.Duration) {
	for _, p := range w.parts {
		c.p.metrics.committed(p.done)
		c.p.mark(p)
		c.tellDead(p)
		c.finish(p)
	}
	c.p.metrics.ok.Inc()
	c.p.metrics.took.Observe(took.Seconds())
}

// failed acts on the verdict. After a combined transaction failed, its partitions
// commit alone until each succeeded once, so one never holds up the others.
func (c *committer) failed(ctx context.Context, w *work, err error) {
	step := stepOf(err)
	v := verdict(step, err)
	if v == Fenced && len(w.parts) == 1 && c.handedOver(w.parts[0]) {
		return
	}
	c.p.metrics.failed(v)
	w.late(ctx)
	if v == Unknown {
		c.resolve(ctx, w, err)
		return
	}
	switch {
	case v == LogMoved && len(w.logs) == 1:
		c.catchUpAgain(ctx, w)
	case accuses(v) && w.shared() != nil && c.overtaken(ctx, w):
	case step == pgtx.StepLog && pgtx.Code(err) == lockNotAvailable && w.shared() != nil:
		c.p.freeLog(ctx, w.shared().scope)
		c.back(w)
	case len(w.parts) > 1:
		c.again(w, 0)
	default:
		c.judge(ctx, w.parts[0], v, step, err)
	}
}

// overtaken reports whether an effect may have been refused because another member
// has applied the same key meanwhile: then no record is to blame, and the batch was
// put back.
func (c *committer) overtaken(ctx context.Context, w *work) bool {
	if !c.catchUp(ctx, w) {
		return true
	}
	if !w.shared().fold.Overtaken(func(int) bool { return true }) {
		return false
	}
	c.back(w)
	return true
}

// stepOf is the step an error happened in; before the first it is BEGIN.
func stepOf(err error) pgtx.Step {
	if at, ok := errors.AsType[*pgtx.StepError](err); ok {
		return at.Step
	}
	return pgtx.StepBegin
}

// judge acts on a verdict against one partition.
func (c *committer) judge(ctx context.Context, p *part, v Verdict, step pgtx.Step, err error) {
	b := &p.q.blame
	switch {
	case v == Suspect && b.suspect+1 < suspectAfter, v == Retry:
	case v == Suspect, v == Isolate:
		c.isolate(ctx, p)
		return
	case v == Fenced:
		c.p.say(p.q).Warn().Str("step", string(step)).Err(err).Msg("stale claim rejected by the fence")
		c.p.group.Fenced(ctx, p.q.claim.Owner, false)
		c.p.list.release(p)
		return
	case v == Privilege:
		c.privilege(ctx, p, err)
		return
	case v == Reload && !b.reloaded:
		if c.reload(ctx) == nil {
			b.reloaded = true
		}
	case v == Doubt && b.doubt+1 < doubtAfter:
		b.doubt++
	default:
		c.stop(p, step, err)
		return
	}
	if v == Suspect {
		b.suspect++
	}
	b.tries++
	c.p.say(p.q).Warn().Str("step", string(step)).Int("tries", b.tries).Err(err).Msg("batch rolled back, trying again")
	c.p.list.again(p, backoff(b.tries))
}

func (c *committer) stop(p *part, step pgtx.Step, err error) {
	cause := rebalance.Cause{Code: "setup", Text: fmt.Sprintf("the batch fails at step %s: %v", step, err), Fix: "mend the cause, then restart this member"}
	c.halt(p, cause)
}

// halt stops a partition whose part is in flight and lets go of the part.
func (c *committer) halt(p *part, cause rebalance.Cause) {
	c.p.group.Stop(p.q.claim, cause)
	c.p.list.release(p)
}

func (c *committer) again(w *work, wait time.Duration) {
	for _, p := range w.parts {
		c.p.list.again(p, wait)
	}
}

// back returns parts that were not tried.
func (c *committer) back(w *work) {
	for _, p := range w.parts {
		c.p.list.back(p)
	}
}

// backoff doubles from 50 ms to 10 s, with a half of jitter.
func backoff(tries int) time.Duration {
	d := min(50*time.Millisecond<<min(tries-1, 20), 10*time.Second)
	return d/2 + mathrand.N(d/2)
}

// catchUp brings the view of a work's only log up to it, in flight. It returns false
// when the work was put back.
func (c *committer) catchUp(ctx context.Context, w *work) bool {
	s := w.logs[0].scope
	err := c.p.withConn(ctx, c.p.commits, func(conn *pgxpool.Conn) error {
		return c.p.log.CatchUp(ctx, conn.Conn(), c.p.settings, c.p.pipeline.ID, s.name, s.view)
	})
	switch {
	case err == nil:
		s.stale = false
		return true
	case errors.Is(err, dedup.ErrDropView):
		c.p.aboutScope(s).Debug().Err(err).Msg("view dropped, loading it again")
		c.p.list.dropView(s)
		c.back(w)
	case errors.Is(err, dedup.ErrLogClosed):
		for _, p := range w.parts {
			c.p.group.Fenced(ctx, p.q.claim.Owner, true)
			c.p.list.release(p)
		}
	case errors.Is(err, dedup.ErrNoLog):
		for _, p := range w.parts {
			c.halt(p, rebalance.Cause{Code: "no_log", Text: err.Error(), Fix: "connect the right database"})
		}
	default:
		s.stale = true
		c.unanswered(ctx, w, err)
	}
	return false
}

// unanswered is failed for a question to Postgres beside the batch's transaction.
// Nothing of the batch was in it, so a lost answer is not an unknown COMMIT: settled
// as one, a position where the batch begins could pass for its end, which is not
// known before the batch is prepared.
func (c *committer) unanswered(ctx context.Context, w *work, err error) {
	if errors.Is(err, pgtx.ErrCommitUnknown) {
		err = &pgtx.StepError{Step: pgtx.StepLog, Err: fmt.Errorf("%w: %v", errNoAnswer, err)} //nolint:errorlint // it must not be found
	}
	c.failed(ctx, w, err)
}

var errNoAnswer = errors.New("no answer")

// catchUpAgain answers "log moved": learn what lies between and check again.
func (c *committer) catchUpAgain(ctx context.Context, w *work) {
	if c.catchUp(ctx, w) {
		c.back(w)
	}
}

// reload has the sink read its table's catalog once more.
func (c *committer) reload(ctx context.Context) error {
	t, ok := c.p.sink.(*sink.Table)
	if !ok {
		return errNoCatalog
	}
	return c.p.withConn(ctx, c.p.commits, func(conn *pgxpool.Conn) error { return t.Reload(ctx, conn.Conn()) })
}

var errNoCatalog = errors.New("this sink has no catalog to read again")

// privilege tells a refused row (row-level security) from a missing right: both
// are SQLSTATE 42501. Where the right is there, it is the record's fault.
func (c *committer) privilege(ctx context.Context, p *part, err error) {
	t, ok := c.p.sink.(*sink.Table)
	if !ok {
		c.stop(p, pgtx.StepEffect, err)
		return
	}
	has := false
	asked := c.p.withConn(ctx, c.p.commits, func(conn *pgxpool.Conn) (err error) {
		has, err = t.Permitted(ctx, conn.Conn())
		return err
	})
	switch {
	case asked != nil:
		p.q.blame.tries++
		c.p.list.again(p, backoff(p.q.blame.tries))
	case has:
		c.isolate(ctx, p)
	default:
		c.stop(p, pgtx.StepEffect, err)
	}
}
