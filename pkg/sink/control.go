package sink

import (
	"errors"
	"fmt"
	"strings"
)

// ErrTransactionControl says that a handler tried to begin, end or divide the
// transaction it was given. Nothing was sent. It is the set-up's fault, never a
// record's: the caller stops visibly.
var ErrTransactionControl = errors.New("transaction control inside a handler")

// forbidControl returns an error if a statement of sql would begin, end or divide
// a transaction. backslashes says that plain strings have backslash escapes too
// (standard_conforming_strings is off).
func forbidControl(sql string, backslashes bool) error {
	if strings.ContainsRune(sql, 0) {
		return errors.New("SQL text holds U+0000")
	}
	s := scanner{sql: sql, backslashes: backslashes}
	first, create := true, false
	var body bodyDepth
	for {
		word, ok := s.next()
		switch {
		case !ok:
			return nil
		case word == ";":
			first = body == 0
			continue
		case first && s.control(word):
			return fmt.Errorf("%w: %s", ErrTransactionControl, strings.ToUpper(word))
		case first:
			first, create = false, word == "create"
		case create:
			body.step(word, s.peek)
		}
	}
}

// control reports whether a statement that begins with word controls the
// transaction.
func (s *scanner) control(word string) bool {
	switch word {
	case "begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release":
		return true
	case "prepare":
		return s.peek() == "transaction"
	}
	return false
}

// bodyDepth counts the open BEGIN ATOMIC and CASE of an SQL-standard function
// body, whose semicolons and END belong to the CREATE statement around it.
type bodyDepth int

func (d *bodyDepth) step(word string, peek func() string) {
	switch {
	case word == "begin" && peek() == "atomic", word == "case" && *d > 0:
		*d++
	case word == "end" && *d > 0:
		*d--
	}
}

// scanner yields the words and semicolons of SQL text as Postgres's lexer sees
// them: lower-cased, without strings, quoted identifiers and comments.
type scanner struct {
	sql         string
	at          int
	backslashes bool
}

// peek is the next token, without taking it.
func (s *scanner) peek() string {
	ahead := *s
	word, _ := ahead.next()
	return word
}

// next returns a word, ";", or "?" for anything else that is not blank.
func (s *scanner) next() (string, bool) {
	for s.at < len(s.sql) {
		rest := s.sql[s.at:]
		switch c := rest[0]; {
		case strings.HasPrefix(rest, "--"):
			s.skip(strings.IndexAny(rest, "\r\n"))
		case strings.HasPrefix(rest, "/*"):
			s.skipComment()
		case c == ' ', c == '\t', c == '\n', c == '\r', c == '\f', c == '\v':
			s.at++
		case c == ';':
			s.at++
			return ";", true
		case c == '\'':
			s.skipQuoted('\'', s.backslashes)
			return "?", true
		case c == '"':
			s.skipQuoted('"', false)
			return "?", true
		case c == '$':
			s.skipDollar()
			return "?", true
		case wordStart(c):
			return s.word(), true
		default:
			s.at++
			return "?", true
		}
	}
	return "", false
}

// skip moves n bytes on, to the end if n is negative.
func (s *scanner) skip(n int) {
	if n < 0 {
		n = len(s.sql) - s.at
	}
	s.at += n
}

// word takes a word, and the string behind it if it is a string's prefix.
func (s *scanner) word() string {
	start := s.at
	for s.at < len(s.sql) && (wordStart(s.sql[s.at]) || s.sql[s.at] >= '0' && s.sql[s.at] <= '9' || s.sql[s.at] == '$') {
		s.at++
	}
	word := strings.ToLower(s.sql[start:s.at])
	if word == "e" && strings.HasPrefix(s.sql[s.at:], "'") {
		s.skipQuoted('\'', true)
		for s.continued() {
			s.skipQuoted('\'', true)
		}
	}
	return word
}

// continued moves to the quote that continues a string on another line: it has
// the escapes of the string's first part.
func (s *scanner) continued() bool {
	ahead, lines := *s, false
	for ahead.at < len(ahead.sql) {
		switch rest := ahead.sql[ahead.at:]; {
		case strings.HasPrefix(rest, "--"):
			ahead.skip(strings.IndexAny(rest, "\r\n"))
		case strings.IndexByte(" \t\f\v", rest[0]) >= 0:
			ahead.at++
		case rest[0] == '\n', rest[0] == '\r':
			ahead.at++
			lines = true
		case rest[0] == '\'' && lines:
			*s = ahead
			return true
		default:
			return false
		}
	}
	return false
}

// skipComment passes a comment; they nest.
func (s *scanner) skipComment() {
	depth := 0
	for s.at < len(s.sql) {
		switch rest := s.sql[s.at:]; {
		case strings.HasPrefix(rest, "/*"):
			depth++
			s.at += 2
		case strings.HasPrefix(rest, "*/"):
			depth--
			s.at += 2
		default:
			s.at++
		}
		if depth == 0 {
			return
		}
	}
}

// skipQuoted passes a string or a quoted identifier. A doubled quote ends one and
// begins the next at once, which is the same to us.
func (s *scanner) skipQuoted(quote byte, backslashes bool) {
	for s.at++; s.at < len(s.sql); s.at++ {
		switch {
		case s.sql[s.at] == '\\' && backslashes:
			s.at++
		case s.sql[s.at] == quote:
			s.at++
			if s.at < len(s.sql) && s.sql[s.at] == quote {
				continue
			}
			return
		}
	}
}

// skipDollar passes $tag$ … $tag$, or the dollar of a parameter.
func (s *scanner) skipDollar() {
	rest := s.sql[s.at:]
	end := 1
	for end < len(rest) && (wordStart(rest[end]) || end > 1 && rest[end] >= '0' && rest[end] <= '9') {
		end++
	}
	if end >= len(rest) || rest[end] != '$' {
		s.at++
		return
	}
	tag := rest[:end+1]
	body := strings.Index(rest[len(tag):], tag)
	if body < 0 {
		s.skip(-1)
		return
	}
	s.skip(body + 2*len(tag))
}

// wordStart reports whether a word may begin with c; bytes of UTF-8 count as
// letters.
func wordStart(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' || c >= 0x80 }
