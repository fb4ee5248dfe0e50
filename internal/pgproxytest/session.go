package pgproxytest

import (
	"bufio"
	"net"
	"sync"
)

const buffer = 64 << 10

// session is one client connection and its server connection. Two goroutines
// serve it; the first that ends closes both connections, which ends the other.
type session struct {
	proxy          *Proxy
	client, server net.Conn
	application    string
	ended          chan struct{}
	end            func() // closes everything, once
	statements     []string

	mu     sync.Mutex // guards what follows
	syncs  int        // messages sent that are answered with ReadyForQuery
	readys int        // ReadyForQuery received
	shot   shot       // the fault that waits for its COMMIT's answer
}

// shot is a fault on its way: it hits the answer that ends with ReadyForQuery
// number ready.
type shot struct {
	fault  Fault
	filter Filter
	ready  int
}

// serve runs one client from its start-up packet to its end.
func (p *Proxy) serve(client net.Conn) {
	stop := make(chan struct{})
	defer close(stop)
	p.running.Go(func() { // the end of the test ends a client that still starts up
		select {
		case <-p.done:
			_ = client.Close() // both sides are dropped on purpose
		case <-stop:
		}
	})
	defer func() { _ = client.Close() }() // likewise
	r := bufio.NewReaderSize(client, buffer)
	code, packet, err := readStartup(r)
	for ; err == nil && (code == codeSSL || code == codeGSS); code, packet, err = readStartup(r) {
		if _, err := client.Write([]byte{'N'}); err != nil {
			return
		}
	}
	if err != nil {
		return
	}
	server, err := net.Dial("tcp", p.upstream)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }() // dropped on purpose
	if _, err := server.Write(packet); err != nil {
		return
	}
	if code == codeCancel {
		_, _ = server.Read(make([]byte, 1)) // the server closes when it has passed the signal on
		return
	}
	newSession(p, client, server, parameter(packet, "application_name")).run(r)
}

func newSession(p *Proxy, client, server net.Conn, application string) *session {
	s := &session{proxy: p, client: client, server: server, application: application,
		ended: make(chan struct{}), syncs: 1} // start-up is answered with ReadyForQuery too
	s.end = sync.OnceFunc(func() {
		close(s.ended)
		_ = client.Close() // both sides are dropped on purpose
		_ = server.Close()
	})
	return s
}

func (s *session) run(r *bufio.Reader) {
	var both sync.WaitGroup
	both.Go(func() { defer s.end(); s.frontend(r, bufio.NewWriterSize(s.server, buffer)) })
	both.Go(func() {
		defer s.end()
		s.backend(bufio.NewReaderSize(s.server, buffer), bufio.NewWriterSize(s.client, buffer))
	})
	both.Go(func() { // the end of the test ends a session that is idle
		select {
		case <-s.proxy.done:
			s.end()
		case <-s.ended:
		}
	})
	both.Wait()
}

func (s *session) fire(f Fault) { s.proxy.fired <- Event{f, s.application} }

// frontend passes the client's messages on until a side ends or COMMIT is cut.
func (s *session) frontend(r *bufio.Reader, w *bufio.Writer) {
	behind := false // hold once the statement is executed
	for {
		h, err := readHeader(r)
		if err != nil {
			return
		}
		body, fault, err := s.sends(r, h)
		if err != nil {
			return
		}
		if fault == CutBeforeCommit {
			_ = w.Flush() // the server may have what came before
			s.end()
			s.fire(fault)
			return
		}
		if fault == HoldBefore && !s.hold(w, fault) || forward(w, r, h, body) != nil {
			return
		}
		behind = behind || fault == HoldBehind
		if behind && (h.kind == 'Q' || h.kind == 'E') {
			if behind = false; !s.hold(w, HoldBehind) {
				return
			}
		}
	}
}

// hold lets the server have what came so far, waits for Release, and reports
// whether the session goes on.
func (s *session) hold(w *bufio.Writer, f Fault) bool {
	released := s.proxy.releases()
	if w.Flush() != nil {
		return false
	}
	s.fire(f)
	select {
	case <-released:
		return true
	case <-s.ended:
		return false
	}
}

// sends looks at one message of the client's: its body, if it was read for that,
// and the fault that hits it.
func (s *session) sends(r *bufio.Reader, h header) (body []byte, fault Fault, err error) {
	if h.kind == 'Q' || h.kind == 'P' {
		if body, err = readBody(r, h); err != nil {
			return nil, 0, err
		}
		fault = s.statement(statementText(h, body))
	}
	if h.kind == 'Q' || h.kind == 'S' || h.kind == 'F' {
		s.mu.Lock()
		s.syncs++
		s.mu.Unlock()
	}
	return body, fault, nil
}

// statement remembers the open transaction's statements and returns the fault
// that hits this one.
func (s *session) statement(sql string) Fault {
	if isBegin(sql) {
		s.statements = s.statements[:0]
	}
	if !isCommit(sql) {
		s.statements = append(s.statements, sql)
		return s.proxy.takeHold(sql)
	}
	fault, filter := s.proxy.take(s.statements)
	s.statements = s.statements[:0]
	if fault == CutAfterCommit || fault == HoldReply {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.shot = shot{fault, filter, s.syncs + 1}
	}
	return fault
}

// backend passes the server's messages on until a side ends or an answer is cut.
func (s *session) backend(r *bufio.Reader, w *bufio.Writer) {
	for {
		h, err := readHeader(r)
		if err != nil {
			return
		}
		var body []byte
		if h.kind == 'C' || h.kind == 'Z' {
			if body, err = readBody(r, h); err != nil {
				return
			}
			if h.kind == 'Z' {
				s.ready()
			} else if string(body) == "COMMIT\x00" && !s.committed(r, w) {
				return
			}
		}
		if forward(w, r, h, body) != nil {
			return
		}
	}
}

// ready counts an answer that ended; a fault whose answer brought no COMMIT goes
// back to wait for another.
func (s *session) ready() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readys++
	if s.shot.fault != 0 && s.readys >= s.shot.ready {
		s.proxy.giveBack(s.shot.fault, s.shot.filter)
		s.shot = shot{}
	}
}

// committed injects the fault that waits for this COMMIT, if any, and reports
// whether the session goes on.
func (s *session) committed(r *bufio.Reader, w *bufio.Writer) bool {
	s.mu.Lock()
	fault := s.shot.fault
	if fault != 0 && s.shot.ready != s.readys+1 { // the answer to an earlier COMMIT
		fault = 0
	} else {
		s.shot = shot{}
	}
	s.mu.Unlock()
	switch fault {
	case HoldReply:
		released := s.proxy.releases()
		s.fire(fault)
		select {
		case <-released:
			return true
		case <-s.ended:
			return false
		}
	case CutAfterCommit:
		_ = w.Flush() // what came before COMMIT's answer may be known
		drainReady(r) // the server is done with it
		s.end()
		s.fire(fault)
		return false
	default:
		return true
	}
}

// drainReady reads up to and with ReadyForQuery.
func drainReady(r *bufio.Reader) {
	for {
		h, err := readHeader(r)
		if err != nil {
			return
		}
		if _, err := readBody(r, h); err != nil || h.kind == 'Z' {
			return
		}
	}
}
