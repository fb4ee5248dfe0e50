// Package cuttest is a TCP proxy for tests whose traffic can be cut as a network is
// that loses every packet: connections stand, new ones are accepted, and nothing comes
// through. It knows no protocol. A broker behind it must advertise its address.
package cuttest

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy forwards connections to one server. It is safe for concurrent use.
type Proxy struct {
	listener net.Listener
	target   string
	done     sync.WaitGroup

	mu    sync.Mutex // guards what follows
	cond  *sync.Cond
	cut   bool
	slow  time.Duration
	over  bool
	conns map[net.Conn]bool
}

// Start proxies to target, a host:port whose server may start later, until the test
// ends.
func Start(tb testing.TB, target string) *Proxy {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("listen: %v", err)
	}
	p := &Proxy{listener: listener, target: target, conns: map[net.Conn]bool{}}
	p.cond = sync.NewCond(&p.mu)
	p.done.Go(p.accept)
	tb.Cleanup(p.close)
	return p
}

// Addr is its host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut has nothing come through any more, in either direction.
func (p *Proxy) Cut() { p.set(true) }

// Mend ends the cut: what was sent meanwhile arrives late, as after a partition of the
// network.
func (p *Proxy) Mend() { p.set(false) }

// Slow has everything that comes through, in either direction, come later by d.
func (p *Proxy) Slow(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slow = d
}

func (p *Proxy) set(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	p.cond.Broadcast()
}

// open waits out a cut. It returns false when the proxy is closed.
func (p *Proxy) open() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.cut && !p.over {
		p.cond.Wait()
	}
	return !p.over
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		if !p.keep(client) {
			return
		}
		p.done.Go(func() { p.serve(client) })
	}
}

// keep remembers a connection for the end, and refuses it behind it.
func (p *Proxy) keep(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		_ = conn.Close() // nobody reads it
		return false
	}
	p.conns[conn] = true
	return true
}

func (p *Proxy) serve(client net.Conn) {
	defer p.drop(client)
	if !p.open() {
		return
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil || !p.keep(server) {
		return
	}
	defer p.drop(server)
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		both.Go(func() {
			_, _ = io.Copy(way[1], &gated{way[0], p}) // its end is the connection's
			_ = errors.Join(way[0].Close(), way[1].Close())
		})
	}
	both.Wait()
}

// gated reads through the proxy's cuts.
type gated struct {
	net.Conn

	p *Proxy
}

// Read implements io.Reader.
func (g *gated) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if g.p.wait(); !g.p.open() {
		return 0, net.ErrClosed
	}
	return n, err
}

func (p *Proxy) wait() {
	p.mu.Lock()
	d := p.slow
	p.mu.Unlock()
	<-time.After(d)
}

func (p *Proxy) drop(conn net.Conn) {
	_ = conn.Close() // both sides are done with it
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
}

func (p *Proxy) close() {
	_ = p.listener.Close() // nobody comes any more
	p.mu.Lock()
	p.over = true
	for conn := range p.conns {
		_ = conn.Close() // wakes who reads
	}
	p.cond.Broadcast()
	p.mu.Unlock()
	p.done.Wait()
}
