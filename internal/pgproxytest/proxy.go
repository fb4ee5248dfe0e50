package pgproxytest

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
)

// Fault is what happens around a COMMIT or another statement.
type Fault int

// The faults. The zero Fault is none.
const (
	CutBeforeCommit Fault = iota + 1
	CutAfterCommit
	HoldReply
	HoldBefore
	HoldBehind
)

// Filter chooses the COMMIT that is hit, or for HoldBefore and HoldBehind the
// statement.
type Filter struct {
	SQL string // only transactions in which a statement with this text was sent before; empty: all. A hold: the statement has this text
	Nth int    // the how many-th of these, counted from Arm; 0 and 1: the first
}

// Event tells of a fault that was injected.
type Event struct {
	Fault       Fault
	Application string // application_name the client connected with
}

// events bounds how many faults may happen before a test reads Fired.
const events = 64

// Proxy forwards connections to one server. It is safe for concurrent use.
type Proxy struct {
	upstream string
	listener net.Listener
	fired    chan Event
	done     chan struct{} // closed at the end of the test
	running  sync.WaitGroup

	mu      sync.Mutex // guards what follows
	armed   Fault
	filter  Filter
	release chan struct{} // closed by Release
}

// Start proxies to upstream, a host:port, until the test ends. Other processes
// may connect to it as long as the test runs.
func Start(tb testing.TB, upstream string) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("listen: %v", err)
	}
	p := &Proxy{upstream: upstream, listener: l, fired: make(chan Event, events),
		done: make(chan struct{}), release: make(chan struct{})}
	p.running.Go(p.accept)
	tb.Cleanup(func() {
		close(p.done)
		_ = l.Close() // nothing is left to lose
		p.running.Wait()
	})
	return p
}

// Addr is the proxy's host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Arm replaces the fault that waits for its COMMIT. It hits once.
func (p *Proxy) Arm(f Fault, filter Filter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed, p.filter = f, filter
}

// Disarm takes back a fault that has not found its COMMIT.
func (p *Proxy) Disarm() { p.Arm(0, Filter{}) }

// Fired receives an event after each fault: for a cut when both sides are
// closed, for HoldReply when the server has committed and its answer is held, for
// the other holds when what goes before is on its way to the server.
func (p *Proxy) Fired() <-chan Event { return p.fired }

// Release lets everything go that is held.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.release)
	p.release = make(chan struct{})
}

// take hands the armed fault to a COMMIT behind the statements in sql, if it is
// the one the filter means.
func (p *Proxy) take(sql []string) (Fault, Filter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.armed == 0 || p.armed.holdsStatement() || !p.filter.hits(sql) {
		return 0, Filter{}
	}
	f, filter := p.armed, p.filter
	p.armed = 0
	return f, filter
}

// takeHold hands the armed hold to a statement, if it is the one the filter means.
func (p *Proxy) takeHold(sql string) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.armed.holdsStatement() || !p.filter.hits([]string{sql}) {
		return 0
	}
	f := p.armed
	p.armed = 0
	return f
}

// giveBack arms a fault again whose COMMIT was refused, unless the test armed
// another meanwhile.
func (p *Proxy) giveBack(f Fault, filter Filter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.armed == 0 {
		p.armed, p.filter = f, filter
	}
}

func (p *Proxy) releases() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.release
}

func (f Fault) holdsStatement() bool { return f == HoldBefore || f == HoldBehind }

// hits counts a match and reports whether it is the one that is meant.
func (f *Filter) hits(sql []string) bool {
	if !f.matches(sql) {
		return false
	}
	if f.Nth > 1 {
		f.Nth--
		return false
	}
	return true
}

func (f *Filter) matches(sql []string) bool {
	for _, s := range sql {
		if strings.Contains(s, f.SQL) {
			return true
		}
	}
	return f.SQL == ""
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // this client is gone; the next may live
		}
		p.running.Go(func() { p.serve(client) })
	}
}
