package storm

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	"effectonce/cmd/processor/internal/embedded"
	"effectonce/cmd/processor/internal/naive"
)

// slot is a place in the group: a process of ours, and one of the naive group that
// suffers the same.
type slot struct {
	number int
	ours   *embedded.Child // nil while the place is empty
	naive  *embedded.Child
	frozen bool
}

func (s *slot) pid() int { return s.ours.PID() }

// crew are all places. One goroutine has it.
type crew struct {
	stage    *stage
	slots    []*slot
	leaving  []*embedded.Child // told to end
	starts   int
	restarts int // of naive consumers that gave up by themselves
	logs     map[string]process
}

// process is one process that was started as a member.
type process struct{ slot, pid int }

func newCrew(s *stage) *crew {
	c := &crew{stage: s, logs: map[string]process{}}
	for i := range s.members + 1 {
		c.slots = append(c.slots, &slot{number: i})
	}
	return c
}

// start fills a place.
func (c *crew) start(ctx context.Context, s *slot) error {
	port, err := embedded.FreePort(ctx)
	if err != nil {
		return err
	}
	c.starts++
	log := filepath.Join(c.stage.logs, fmt.Sprintf("member-%d-%03d.log", s.number, c.starts))
	s.frozen = false
	s.ours, err = embedded.Start(embedded.Spec{
		Name: fmt.Sprintf("member %d", s.number), Path: c.stage.binary,
		Args: []string{"run", c.stage.file, "--set", fmt.Sprintf("admin.listen=127.0.0.1:%d", port)},
		Env:  embedded.PlainEnv(), Log: log, Orphaned: syscall.SIGKILL,
	})
	if err != nil {
		return err
	}
	c.logs[log] = process{s.number, s.pid()}
	return c.startNaive(s)
}

func (c *crew) startNaive(s *slot) (err error) {
	o := c.stage
	if o.naiveRate == 0 {
		return nil
	}
	s.naive, err = embedded.Start(embedded.Spec{
		Name: fmt.Sprintf("naive consumer %d", s.number), Path: o.binary, Args: []string{naive.Verb}, Env: embedded.PlainEnv(),
		Log: filepath.Join(o.logs, fmt.Sprintf("naive-%d-%03d.log", s.number, c.starts)), Orphaned: syscall.SIGKILL,
		Orders: naive.Orders{
			Brokers: o.Brokers, DSN: o.DSN, Topic: o.naiveTopic(), Group: o.naiveTopic(), Protocol: o.protocol,
			Session: o.session, Heartbeat: o.heartbeat, Schema: o.data(), Table: naiveTable,
		},
	})
	return err
}

// both are a place's processes.
func (s *slot) both() []*embedded.Child {
	var all []*embedded.Child
	for _, c := range []*embedded.Child{s.ours, s.naive} {
		if c != nil {
			all = append(all, c)
		}
	}
	return all
}

// leave has the place's processes end in order, and empties it.
func (c *crew) leave(s *slot) error {
	for _, child := range s.both() {
		child.Hush()
		if err := child.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		c.leaving = append(c.leaving, child)
	}
	s.ours, s.naive = nil, nil
	return nil
}

// kill is kill -9 of both, and empties the place.
func (c *crew) kill(s *slot) error {
	var errs []error
	for _, child := range s.both() {
		errs = append(errs, child.Kill())
	}
	s.ours, s.naive = nil, nil
	return errors.Join(errs...)
}

func (c *crew) freeze(s *slot) error {
	s.frozen = true
	return s.signal(syscall.SIGSTOP)
}

func (c *crew) thaw(s *slot) error {
	s.frozen = false
	return s.signal(syscall.SIGCONT)
}

func (s *slot) signal(what syscall.Signal) error {
	var errs []error
	for _, child := range s.both() {
		errs = append(errs, child.Signal(what))
	}
	return errors.Join(errs...)
}

// check fails if a member ended that should not have. A naive consumer that gave up
// is started again, as a supervisor would. Those told to end are let go when they have.
func (c *crew) check() error {
	for _, s := range c.slots {
		if s.ours != nil && ended(s.ours) {
			return s.ours.Died()
		}
		if s.naive != nil && ended(s.naive) {
			c.restarts++
			if err := errors.Join(s.naive.Kill(), c.startNaive(s)); err != nil {
				return err
			}
		}
	}
	var still []*embedded.Child
	for _, child := range c.leaving {
		if !ended(child) {
			still = append(still, child)
		} else if err := child.Kill(); err != nil { // gives back what it had
			return err
		}
	}
	c.leaving = still
	return nil
}

func ended(c *embedded.Child) bool {
	select {
	case <-c.Done():
		return true
	default:
		return false
	}
}

// awake are the places whose processes run.
func (c *crew) awake() []*slot {
	var all []*slot
	for _, s := range c.slots {
		if s.ours != nil && !s.frozen {
			all = append(all, s)
		}
	}
	return all
}

// empty are the places without a process.
func (c *crew) empty() []*slot {
	var all []*slot
	for _, s := range c.slots {
		if s.ours == nil {
			all = append(all, s)
		}
	}
	return all
}

// pids are those of all members, frozen ones among them.
func (c *crew) pids() []int {
	var all []int
	for _, s := range c.slots {
		if s.ours != nil {
			all = append(all, s.pid())
		}
	}
	return all
}

// end ends every process: in order with grace, at once without.
func (c *crew) end(grace time.Duration) error {
	var errs []error
	for _, s := range c.slots {
		if grace > 0 {
			for _, child := range s.both() {
				errs = append(errs, child.Stop(grace))
			}
			s.ours, s.naive = nil, nil
			continue
		}
		errs = append(errs, c.kill(s))
	}
	for _, child := range c.leaving {
		errs = append(errs, child.Kill())
	}
	c.leaving = nil
	return errors.Join(errs...)
}
