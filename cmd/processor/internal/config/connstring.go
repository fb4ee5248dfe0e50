package config

import (
	"errors"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// errConnString stands in for everything the driver says about a connection
// string it cannot read, because what it quotes may be the password.
var errConnString = errors.New("is not a connection string: wants postgres://user@host:5432/database or host=… user=… dbname=…")

// ConnString returns the one string to hand to the driver, whichever way the
// database was configured. Where nobody named an sslmode it adds verify-full
// for hosts that are not loopback: the DSN, postgres.sslmode and PGSSLMODE
// count as naming one, a service file does not. The error never quotes the
// string; Load has already asked, so after Load there is none.
func (p Postgres) ConnString() (DSN, error) {
	raw := p.DSN.Reveal()
	if p.DSN.IsZero() {
		raw = p.keywords()
	}
	parsed, err := pgconn.ParseConfig(raw)
	if err != nil {
		return DSN{}, connStringFault(err)
	}
	named, err := namesSSLMode(raw)
	if err != nil {
		return DSN{}, err
	}
	if !named && os.Getenv("PGSSLMODE") == "" && !allLoopback(parsed) {
		raw = withSSLMode(raw, "verify-full")
		// With the mode come the certificates: they must be readable too.
		if _, err := pgconn.ParseConfig(raw); err != nil {
			return DSN{}, connStringFault(err)
		}
	}
	return NewDSN(raw), nil
}

// keywords writes the parts in the keyword form.
func (p Postgres) keywords() string {
	var b strings.Builder
	add := func(key, value string) {
		if value == "" {
			return
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(key + "='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) + "'")
	}
	add("host", p.Host)
	if p.Port != 0 {
		add("port", strconv.Itoa(p.Port))
	}
	add("dbname", p.Database)
	add("user", p.User)
	add("password", p.Password.Reveal())
	add("sslmode", p.SSLMode)
	add("sslrootcert", p.SSLRootCert)
	add("sslcert", p.SSLCert)
	add("sslkey", p.SSLKey)
	return b.String()
}

// connStringFault keeps the reason when it is about a file, which quotes the
// path only, or one of the driver's own sentences, which quote nothing. It
// drops everything else.
func connStringFault(err error) error {
	if path, ok := errors.AsType[*os.PathError](err); ok {
		return path
	}
	for _, reason := range []string{
		"invalid port", "sslmode is invalid", "invalid connect_timeout", "unknown target_session_attrs value", "invalid sslcertmode",
		"unable to add CA to cert pool", "unterminated quoted string", "unable to find service", "invalid keyword/value",
		`both "sslcert" and "sslkey" are required`,
	} {
		if strings.Contains(err.Error(), reason) {
			return errors.New("is not a usable connection string: " + reason)
		}
	}
	return errConnString
}

// allLoopback reports whether every host is this machine.
func allLoopback(c *pgconn.Config) bool {
	if !isLoopback(c.Host) {
		return false
	}
	for _, f := range c.Fallbacks {
		if !isLoopback(f.Host) {
			return false
		}
	}
	return true
}

// isLoopback reports whether a host is localhost, a loopback address or a unix socket.
func isLoopback(host string) bool {
	if host == "localhost" || strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

func isURL(s string) bool {
	return strings.HasPrefix(s, "postgres://") || strings.HasPrefix(s, "postgresql://")
}

func namesSSLMode(raw string) (bool, error) {
	if isURL(raw) {
		u, err := url.Parse(raw)
		if err != nil {
			return false, errConnString
		}
		q := u.Query()
		return q.Has("sslmode") || q.Has("ssl"), nil
	}
	pairs, err := scanKeywords(raw)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(pairs, func(p pair) bool { return p.key == "sslmode" }), nil
}

func withSSLMode(raw, mode string) string {
	switch {
	case !isURL(raw):
		return raw + " sslmode=" + mode
	case strings.Contains(raw, "?"):
		return raw + "&sslmode=" + mode
	default:
		return raw + "?sslmode=" + mode
	}
}

// printable are the settings whose values say nothing secret. What is not in
// this list is masked, so that a misspelt password keyword is masked too.
func printable(key string) bool {
	switch key {
	case "host", "hostaddr", "port", "dbname", "database", "user", "sslmode", "ssl", "sslrootcert", "sslcert", "sslkey",
		"sslnegotiation", "sslsni", "application_name", "connect_timeout", "target_session_attrs", "search_path", "service",
		"channel_binding", "pool_max_conns", "pool_min_conns":
		return true
	}
	return false
}

// redactConnString shows a connection string without its secrets, or nothing
// but Mask when it cannot tell for certain where they are.
func redactConnString(raw string) string {
	if raw == "" {
		return ""
	}
	if isURL(raw) {
		return redactURL(raw)
	}
	pairs, err := scanKeywords(raw)
	if err != nil {
		return Mask
	}
	out := make([]string, len(pairs))
	for i, p := range pairs {
		if !printable(p.key) {
			p.value = Mask
		}
		if strings.ContainsAny(p.value, ` '\`) || p.value == "" {
			p.value = "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(p.value) + "'"
		}
		out[i] = p.key + "=" + p.value
	}
	return strings.Join(out, " ")
}

// redactURL rebuilds a URL from the parts that are surely not secret. A second
// @ means that a password with / or ? in it was not escaped, and the parts are
// not where they seem to be.
func redactURL(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Opaque != "" || u.Fragment != "" || strings.Count(raw, "@") > 1 || (u.User == nil && strings.Contains(raw, "@")) {
		return Mask
	}
	var b strings.Builder
	b.WriteString(u.Scheme + "://")
	if u.User != nil {
		b.WriteString(url.User(u.User.Username()).String())
		if _, has := u.User.Password(); has {
			b.WriteString(":" + Mask)
		}
		b.WriteByte('@')
	}
	b.WriteString(u.Host + u.EscapedPath())
	for i, setting := range strings.FieldsFunc(u.RawQuery, func(r rune) bool { return r == '&' }) {
		key, value, _ := strings.Cut(setting, "=")
		if !printable(key) {
			value = Mask
		}
		if !keyword.MatchString(key) {
			key = Mask
		}
		b.WriteByte("&?"[btoi(i == 0)])
		b.WriteString(key + "=" + value)
	}
	return b.String()
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

var keyword = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_.]*$`)

type pair struct {
	key, value string
}

// scanKeywords reads the keyword form the way the driver does: key = value,
// spaces around the sign allowed, values quoted by ', escaped by \.
func scanKeywords(s string) ([]pair, error) {
	const space = " \t\n\r\v\f"
	var pairs []pair
	for s = strings.TrimLeft(s, space); s != ""; s = strings.TrimLeft(s, space) {
		key, rest, found := strings.Cut(s, "=")
		key = strings.TrimRight(key, space)
		if !found || !keyword.MatchString(key) {
			return nil, errConnString
		}
		value, after, ok := scanValue(strings.TrimLeft(rest, space))
		if !ok {
			return nil, errConnString
		}
		pairs, s = append(pairs, pair{key, value}), after
	}
	return pairs, nil
}

func scanValue(s string) (value, rest string, ok bool) {
	quoted := strings.HasPrefix(s, "'")
	var b strings.Builder
	i := btoi(quoted)
	for ; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\':
			if i++; i < len(s) {
				b.WriteByte(s[i])
			}
		case quoted && c == '\'':
			return b.String(), s[i+1:], true
		case !quoted && strings.IndexByte(" \t\n\r\v\f", c) >= 0:
			return b.String(), s[i:], true
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), "", !quoted
}
