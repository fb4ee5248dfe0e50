package pgproxytest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Codes that stand in place of a protocol version in a start-up packet.
const (
	codeCancel = 80877102
	codeSSL    = 80877103
	codeGSS    = 80877104
)

// maxText bounds the messages that are kept in memory: statements and answers
// that are looked at. Anything else is streamed.
const maxText = 64 << 20

var errFrame = errors.New("not a message of protocol v3")

// header is the type and the body's length of a message.
type header struct {
	kind byte
	size int
}

func readHeader(r *bufio.Reader) (header, error) {
	var b [5]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return header{}, err
	}
	n := int32(binary.BigEndian.Uint32(b[1:]))
	if n < 4 {
		return header{}, fmt.Errorf("%w: type %q, length %d", errFrame, b[0], n)
	}
	return header{b[0], int(n) - 4}, nil
}

func readBody(r *bufio.Reader, h header) ([]byte, error) {
	if h.size > maxText {
		return nil, fmt.Errorf("%w: type %q of %d bytes", errFrame, h.kind, h.size)
	}
	body := make([]byte, h.size)
	_, err := io.ReadFull(r, body)
	return body, err
}

func writeHeader(w *bufio.Writer, h header) error {
	var b [5]byte
	b[0] = h.kind
	binary.BigEndian.PutUint32(b[1:], uint32(h.size+4))
	_, err := w.Write(b[:])
	return err
}

// forward passes one message on: body is its body if it was read, else the body
// is streamed from r. The writer is flushed when the reader would have to wait.
func forward(w *bufio.Writer, r *bufio.Reader, h header, body []byte) error {
	if err := writeHeader(w, h); err != nil {
		return err
	}
	if body == nil {
		if _, err := io.CopyN(w, r, int64(h.size)); err != nil {
			return err
		}
	} else if _, err := w.Write(body); err != nil {
		return err
	}
	if r.Buffered() == 0 {
		return w.Flush()
	}
	return nil
}

// readStartup reads a packet without a type byte: the code and the whole packet.
func readStartup(r *bufio.Reader) (uint32, []byte, error) {
	size, err := r.Peek(4)
	if err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(size)
	if n < 8 || n > 1<<16 {
		return 0, nil, fmt.Errorf("%w: start-up packet of %d bytes", errFrame, n)
	}
	packet := make([]byte, n)
	if _, err := io.ReadFull(r, packet); err != nil {
		return 0, nil, err
	}
	return binary.BigEndian.Uint32(packet[4:]), packet, nil
}

// parameter is a run-time parameter of a start-up packet.
func parameter(packet []byte, name string) string {
	words := strings.Split(string(packet[8:]), "\x00")
	for i := 0; i+1 < len(words); i += 2 {
		if words[i] == name {
			return words[i+1]
		}
	}
	return ""
}

// statementText is the SQL of a Query or Parse message.
func statementText(h header, body []byte) string {
	if h.kind == 'P' {
		_, body, _ = bytes.Cut(body, []byte{0}) // the statement's name
	}
	text, _, _ := bytes.Cut(body, []byte{0})
	return string(text)
}

// verb is the first word of a statement, in upper case.
func verb(sql string) string {
	word, _, _ := strings.Cut(strings.TrimSpace(sql), " ")
	return strings.ToUpper(strings.TrimRight(word, ";"))
}

func isBegin(sql string) bool  { return verb(sql) == "BEGIN" || verb(sql) == "START" }
func isCommit(sql string) bool { return verb(sql) == "COMMIT" || verb(sql) == "END" }
