package rediscache

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// ErrReply says that the server began a reply that no honest one would give us.
var ErrReply = errors.New("reply is larger than what was asked for can be")

// frames is how much of a reply may be headers, short lines and members of lists:
// a hundred times what COMMAND and CLUSTER SLOTS take.
const frames = 2 << 20

// guarded ends a connection whose server announces a reply that is too large. The
// client gives memory for a string or list as soon as its length is there, before
// its bytes: one line of a confused or hostile server would end the process, and
// Redis must never do more than slow it down.
type guarded struct {
	net.Conn
	max  int64        // bytes of a string
	left atomic.Int64 // bytes of lines and members of lists until the next request
	skip int64        // bytes of the string at hand, with its line end
	line []byte       // what came of the line at hand
}

// guard also keeps the view of the socket by which the pool finds a connection
// that the server has closed meanwhile; TLS has none.
func guard(conn net.Conn, limit int64) net.Conn {
	g := &guarded{Conn: conn, max: limit}
	g.left.Store(frames)
	if socket, ok := conn.(syscall.Conn); ok {
		return struct {
			*guarded
			syscall.Conn
		}{g, socket}
	}
	return g
}

func (g *guarded) Write(p []byte) (int, error) {
	g.left.Store(frames)
	return g.Conn.Write(p)
}

func (g *guarded) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if refused := g.scan(p[:n]); refused != nil {
		_ = g.Close() // the reply is not read to its end
		return 0, refused
	}
	return n, err
}

// scan follows the protocol's frames: a line, and behind the header of a string
// its bytes.
func (g *guarded) scan(b []byte) error {
	for len(b) > 0 {
		if g.skip > 0 {
			n := min(g.skip, int64(len(b)))
			b, g.skip = b[n:], g.skip-n
			continue
		}
		end := bytes.IndexByte(b, '\n') + 1
		whole := end > 0
		if !whole {
			end = len(b)
		}
		g.line, b = append(g.line, b[:end]...), b[end:]
		if g.left.Add(-int64(end)) < 0 {
			return fmt.Errorf("%w: more than %d bytes of lines", ErrReply, frames)
		}
		if whole {
			if err := g.header(bytes.TrimRight(g.line, "\r\n")); err != nil {
				return err
			}
			g.line = g.line[:0]
		}
	}
	return nil
}

// header looks at a whole line.
func (g *guarded) header(line []byte) error {
	if len(line) == 0 || strings.IndexByte("$=!*~>%|", line[0]) < 0 {
		return nil
	}
	n, err := strconv.ParseInt(string(line[1:]), 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		n = math.MaxInt64
	}
	switch line[0] {
	case '$', '=', '!':
		if n > g.max {
			return fmt.Errorf("%w: a string of %d bytes", ErrReply, n)
		}
		if err == nil && n >= 0 {
			g.skip = n + 2
		}
	default:
		if n > 0 && g.left.Add(-min(n, frames+1)) < 0 {
			return fmt.Errorf("%w: a list of %d", ErrReply, n)
		}
	}
	return nil
}
