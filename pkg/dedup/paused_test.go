package dedup

import (
	"bytes"
	"encoding/binary"
	"net"
	"sync/atomic"
	"time"
)

// paused holds a pipeline of statements back in the middle: the server has run those
// before, and waits for the next.
type paused struct {
	net.Conn

	world  *world
	pid    uint32
	armed  atomic.Bool
	behind int    // this many statements
	do     func() // meanwhile
}

func (p *paused) over(c net.Conn) net.Conn {
	p.Conn = c
	return p
}

func (p *paused) Write(b []byte) (int, error) {
	if !p.armed.Load() {
		return p.Conn.Write(b)
	}
	at, sql := p.cut(b)
	if at == 0 {
		return p.Conn.Write(b)
	}
	p.armed.Store(false)
	if n, err := p.Conn.Write(b[:at]); err != nil {
		return n, err
	}
	p.reached(sql)
	p.do()
	n, err := p.Conn.Write(b[at:])
	return at + n, err
}

// cut returns where the messages of the first statements end, and the text of the
// last of them. 0: there are not so many.
func (p *paused) cut(b []byte) (at int, sql string) {
	for executed := 0; executed < p.behind; {
		if len(b)-at < 5 {
			return 0, ""
		}
		body := b[at+5 : at+1+int(binary.BigEndian.Uint32(b[at+1:]))]
		switch b[at] {
		case 'P': // the statement's name, which is empty, and its text
			sql = string(body[1 : 1+bytes.IndexByte(body[1:], 0)])
		case 'E':
			executed++
		}
		at += 5 + len(body)
	}
	return at, sql
}

// reached waits until the server has run this statement and waits for more.
func (p *paused) reached(sql string) {
	const waits = `SELECT EXISTS (SELECT FROM pg_stat_activity
		WHERE pid = $1 AND state = 'active' AND wait_event = 'ClientRead' AND query = left($2, length(query)) AND query <> '')`
	for there := false; !there; time.Sleep(2 * time.Millisecond) { //nolint:forbidigo // nothing tells what a server waits for
		if err := p.world.Runtime.QueryRow(p.world.t.Context(), waits, int32(p.pid), sql).Scan(&there); err != nil {
			p.world.t.Error(err)
			return
		}
	}
}
