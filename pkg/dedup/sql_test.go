package dedup

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"effectonce/internal/pgtest"
	"effectonce/pkg/stream"
)

// asked is a session of the runtime role that asks what the functions answer.
type asked struct {
	t    *testing.T
	db   *pgtest.DB
	conn *pgx.Conn
}

func newAsked(t *testing.T) *asked {
	t.Helper()
	db := pgtest.New(t)
	return &asked{t, db, db.Conn(t)}
}

// pipeline adds one whose name is its salt in hex.
func (a *asked) pipeline(salt [16]byte) string {
	a.t.Helper()
	name := hex.EncodeToString(salt[:])
	a.exec(`INSERT INTO @.pipelines (name, salt, generation, group_name, cluster_id, system_identifier)
		VALUES ($1, $2, '\x01', $1, 'c', 1) ON CONFLICT DO NOTHING`, name, salt[:])
	return name
}

func (a *asked) name(sql string) string {
	return strings.ReplaceAll(sql, "@.", pgx.Identifier{a.db.Schema}.Sanitize()+".")
}

func (a *asked) exec(sql string, args ...any) {
	a.t.Helper()
	if _, err := a.conn.Exec(a.t.Context(), a.name(sql), args...); err != nil {
		a.t.Fatalf("%s: %v", sql, err)
	}
}

func (a *asked) fingerprint(sql string, args ...any) ([]byte, error) {
	var got []byte
	err := a.conn.QueryRow(a.t.Context(), a.name("SELECT @.fingerprint("+sql+")"), args...).Scan(&got)
	return got, err
}

func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// sqlParts spells a key as calls of part: a number as json, which keeps its
// literal, and a text with a NUL, which Postgres does not take, as a bare part.
func sqlParts(parts []stream.Value, args []any) (string, []any) {
	calls := make([]string, len(parts))
	for i, p := range parts {
		var cast string
		arg := any(string(p.Data))
		switch p.Kind {
		case stream.Text, stream.Time:
			cast = "text"
		case stream.Bytes:
			cast, arg = "bytea", p.Data
		case stream.Number:
			cast = "json"
		case stream.Bool:
			cast = "boolean"
			arg = string(p.Data) == "true"
		case stream.Null:
			cast, arg = "text", nil
		default:
			panic("a part that SQL cannot spell")
		}
		if p.Kind == stream.Text && slices.Contains(p.Data, 0) {
			args = append(args, p.Data)
			calls[i] = fmt.Sprintf("ROW(1, $%d::bytea)::@.key_part", len(args))
			continue
		}
		args = append(args, arg)
		calls[i] = fmt.Sprintf("@.part($%d::%s)", len(args), cast)
	}
	return strings.Join(calls, ", "), args
}

// TestSQLVectors: the same bytes as the file's, which another implementation made.
func TestSQLVectors(t *testing.T) {
	t.Parallel()
	a := newAsked(t)
	for _, v := range vectors(t) {
		name := a.pipeline([16]byte(v.hashed))
		var got []byte
		var err error
		if v.coords {
			got, err = a.fingerprint("$1, $2, $3, $4::bigint", name, [16]byte(v.partition.Topic), v.partition.Number, v.offset)
		} else {
			calls, args := sqlParts(v.parts, []any{name})
			got, err = a.fingerprint("$1, "+calls, args...)
		}
		if err != nil || hex.EncodeToString(got) != v.result {
			t.Errorf("%s: %x, %v, want %s", v.name, got, err, v.result)
		}
	}
}

// TestSQLOverloads: what a person writes leads to the key that is meant.
func TestSQLOverloads(t *testing.T) {
	t.Parallel()
	a := newAsked(t)
	salt := [16]byte{7}
	name := a.pipeline(salt)
	text := func(s string) stream.Value { return stream.Value{Kind: stream.Text, Data: []byte(s)} }
	number := func(s string) stream.Value { return stream.Value{Kind: stream.Number, Data: []byte(s)} }
	null := stream.Value{Kind: stream.Null}
	for sql, parts := range map[string][]stream.Value{
		`'ab'`:                               {text("ab")},
		`'ab'::text`:                         {text("ab")},
		`'ab'::varchar(9)`:                   {text("ab")},
		`'ß日'`:                               {text("ß日")},
		`'1'`:                                {text("1")},
		`''`:                                 {text("")},
		`1`:                                  {number("1")},
		`1::smallint`:                        {number("1")},
		`9007199254740993::bigint`:           {number("9007199254740993")},
		`1.50`:                               {number("1.5")},
		`-0.0`:                               {number("0")},
		`1e400`:                              {number("1e400")},
		`1e-16383`:                           {number("1e-16383")},
		`'\x6162'::bytea`:                    {{Kind: stream.Bytes, Data: []byte("ab")}},
		`true`:                               {{Kind: stream.Bool, Data: []byte("true")}},
		`'"ab"'::json`:                       {text("ab")},
		`'"\u00df\n"'::json`:                 {text("ß\n")},
		`' "a b" '::json`:                    {text("a b")},
		`E'\t\r\ntrue\n'::json`:              {{Kind: stream.Bool, Data: []byte("true")}},
		`E' [ 1 , null ] '::json`:            {number("1"), null},
		`' 1.0 '::json`:                      {number("1")},
		`'1e-1000000'::json`:                 {number("1e-1000000")},
		`'["ab", 1.0, null, true]'`:          {text(`["ab", 1.0, null, true]`)},
		`json '["ab",1.0,null,true]'`:        {text("ab"), number("1"), null, {Kind: stream.Bool, Data: []byte("true")}},
		`json '["ab"]'`:                      {text("ab")},
		`json '[[1,"]"],1]' -> 0`:            {number("1"), text("]")},
		`('{"id": 7}'::jsonb -> 'id')::json`: {number("7")},
		`@.part('ab'), @.part(1)`:            {text("ab"), number("1")},
		`@.part('ab'::text), @.part(NULL::bytea)`:                         {text("ab"), null},
		`VARIADIC ARRAY[@.part('ab'), NULL, ROW(3, '1.0')]::@.key_part[]`: {text("ab"), null, number("1")},
		`@.part(json '"ab"')`:                                             {text("ab")},
	} {
		want, err := NewHasher(salt).Key(parts...)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := a.fingerprint("'" + name + "', " + sql); err != nil || !slices.Equal(got, want[:]) {
			t.Errorf("%s: %x, %v, want %x", sql, got, err, want)
		}
	}
}

func TestSQLRefuses(t *testing.T) {
	t.Parallel()
	a := newAsked(t)
	name := a.pipeline([16]byte{7})
	for sql, code := range map[string]string{
		`NULL::text`: "", `NULL::numeric`: "", `NULL::bytea`: "", `NULL::json`: "", `json 'null'`: "", `json ' null '`: "", `json '[]'`: "",
		`json '[null,null]'`: "", `NULL::@.key_part`: "", `@.part(NULL::text), @.part(NULL::text)`: "",
		`VARIADIC NULL::@.key_part[]`: "", `VARIADIC '{}'::@.key_part[]`: "",
		`'NaN'::numeric`: "22023", `'Infinity'::numeric`: "22023",
		`json '{"a":1}'`: "22023", `json '["a",{}]'`: "22023", `json '[1,[2]]'`: "22023",
		`json '1e1000000000000000001'`: "22023", `json '1e-1000000000000000001'`: "22023", `json '1e99999999999999999999'`: "22023",
		`json '0e1000000000000000001'`: "22023",
		`ROW(3, '01')::@.key_part`:     "22023", `ROW(3, '+1')::@.key_part`: "22023", `ROW(3, '')::@.key_part`: "22023",
		`ROW(3, '1.')::@.key_part`: "22023", `ROW(3, E'1\n')::@.key_part`: "22023", `ROW(3, '1e')::@.key_part`: "22023",
		`ROW(5, 'a')::@.key_part`: "22023", `ROW(-1, 'a')::@.key_part`: "22023", `ROW(0, 'a')::@.key_part`: "22023",
		`ROW(1, NULL)::@.key_part`: "22023", `ROW(NULL, 'a')::@.key_part`: "22023", `ROW(4, 'yes')::@.key_part`: "22023",
		`1.5::float8`: "42883", `gen_random_uuid()`: "42883", `'{}'::jsonb`: "42883", `now()`: "42883",
	} {
		got, err := a.fingerprint("'" + name + "', " + sql)
		if sqlState(err) != code || (code == "" && (err != nil || got != nil)) {
			t.Errorf("%s: %x, %v, want %q", sql, got, err, code)
		}
	}
	for _, pipeline := range []string{`'nobody'`, `NULL`} {
		if _, err := a.fingerprint(pipeline + ", 'ab'"); sqlState(err) != "22023" {
			t.Errorf("pipeline %s: %v", pipeline, err)
		}
	}
}

// TestSQLNumbers: Go and SQL agree about random literals, refusals included. A
// numeric is another way to the same key wherever the literal fits one.
func TestSQLNumbers(t *testing.T) {
	t.Parallel()
	a := newAsked(t)
	salt := [16]byte{9}
	name, h := a.pipeline(salt), NewHasher(salt)
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	literals := []string{
		"1e400", "-0", "1.50", "-1.50E+3", "0.000", "100e-2", "1e1000000000000000000", "1e-1000000000000000000", "1e1000000000000000001",
		"-1e-1000000000000000001", "1e00000000000000000000000000007", "1e-0", "0.1e1000000000000000000", "10e1000000000000000000",
		"1e" + strings.Repeat("9", 40), "1e-" + strings.Repeat("9", 200_000), strings.Repeat("9", 100_000), "0." + strings.Repeat("0", 16_000) + "7", "-1" + strings.Repeat("0", 100_000),
	}
	for range 3000 {
		literals = append(literals, randomLiteral(rng))
	}
	refused, numerics := 0, 0
	for _, lit := range literals {
		want, wantErr := h.Key(stream.Value{Kind: stream.Number, Data: []byte(lit)})
		got, err := a.fingerprint("$1, $2::text::json", name, lit)
		if (wantErr != nil) != (sqlState(err) == "22023") || (wantErr == nil && !slices.Equal(got, want[:])) {
			t.Errorf("seed %d: %.60s: %x, %v; Go says %x, %v", seed, lit, got, err, want, wantErr)
		}
		if wantErr != nil {
			refused++
			continue
		}
		got, err = a.fingerprint("$1, $2::text::numeric", name, lit)
		switch {
		case sqlState(err) == "22003" || sqlState(err) == "22P02": // beyond numeric, which takes exponents of 32 bits
		case err != nil:
			t.Errorf("seed %d: numeric %.60s: %v", seed, lit, err)
		case strings.ContainsAny(lit, "eE") && underflows(lit): // a numeric keeps 16,383 decimals, so it is another value
		case !slices.Equal(got, want[:]):
			t.Errorf("seed %d: numeric %.60s: %x, want %x", seed, lit, got, want)
		default:
			numerics++
		}
	}
	if refused < 3 || numerics < 1000 {
		t.Errorf("seed %d: only %d refused, %d as numeric: the literals test little", seed, refused, numerics)
	}
}

// underflows reports whether a literal has more decimals than a numeric.
func underflows(lit string) bool {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(lit), "e")
	_, fraction, _ := strings.Cut(mantissa, ".")
	e, err := strconv.ParseInt(exponent, 10, 64)
	return err != nil || int64(len(fraction))-e > 16_383
}

func randomLiteral(rng *rand.Rand) string {
	var b strings.Builder
	digits := func(n int, zeros bool) {
		for i := range n {
			d := rng.IntN(10)
			if zeros && rng.IntN(2) == 0 {
				d = 0
			}
			if i == 0 && !zeros && d == 0 {
				d = 1
			}
			b.WriteByte(byte('0' + d))
		}
	}
	if rng.IntN(3) == 0 {
		b.WriteByte('-')
	}
	if rng.IntN(3) == 0 {
		b.WriteByte('0')
	} else {
		digits(1+rng.IntN(25), false)
		b.WriteString(strings.Repeat("0", rng.IntN(4)))
	}
	if rng.IntN(2) == 0 {
		b.WriteByte('.')
		digits(1+rng.IntN(25), true)
	}
	if rng.IntN(2) == 0 {
		b.WriteString([]string{"e", "E", "e+", "E+", "e-", "E-"}[rng.IntN(6)])
		b.WriteString(strings.Repeat("0", rng.IntN(3)))
		digits(1+rng.IntN([]int{2, 4, 20}[rng.IntN(3)]), true)
	}
	return b.String()
}

// TestSQLTexts: random bytes, and texts as far as a database in UTF-8 takes them.
func TestSQLTexts(t *testing.T) {
	t.Parallel()
	a := newAsked(t)
	salt := [16]byte{3}
	name, h := a.pipeline(salt), NewHasher(salt)
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		parts := make([]stream.Value, 1+rng.IntN(4))
		for i := range parts {
			data := make([]byte, rng.IntN(300))
			for j := range data {
				data[j] = byte(rng.IntN(256))
			}
			if parts[i] = (stream.Value{Kind: stream.Bytes, Data: data}); rng.IntN(2) == 0 {
				text := strings.ReplaceAll(strings.ToValidUTF8(string(data), "ß"), "\x00", "\U0001f600")
				parts[i] = stream.Value{Kind: stream.Text, Data: []byte(text)}
			}
		}
		calls, args := sqlParts(parts, []any{name})
		want, err := h.Key(parts...)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := a.fingerprint("$1, "+calls, args...); err != nil || !slices.Equal(got, want[:]) {
			t.Errorf("seed %d: %q: %x, %v, want %x", seed, parts, got, err, want)
		}
	}
}

// The functions are asked from any session: one whose search path is hostile, or
// whose numbers and bytes print otherwise.
func TestSQLDoesNotDependOnTheSession(t *testing.T) {
	t.Parallel()
	a := newAsked(t)
	salt := [16]byte{4}
	name, h := a.pipeline(salt), NewHasher(salt)
	want, err := h.Key(stream.Value{Kind: stream.Text, Data: []byte("ß")}, stream.Value{Kind: stream.Number, Data: []byte("1.5")})
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range []string{"bytea_output = 'escape'", "extra_float_digits = -15", "client_encoding = 'LATIN1'", "search_path = ''",
		"standard_conforming_strings = off", "lc_numeric = 'C'"} {
		if err := pgx.BeginFunc(t.Context(), a.conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "SET LOCAL "+set); err != nil {
				return err
			}
			var got string
			sql := fmt.Sprintf("SELECT encode(@.fingerprint('%s', @.part(chr(223)), @.part(1.50)), 'hex')", name)
			if err := tx.QueryRow(t.Context(), a.name(sql)).Scan(&got); err != nil {
				return err
			}
			if got != hex.EncodeToString(want[:]) {
				t.Errorf("%s: %s", set, got)
			}
			return context.Canceled // rolls back
		}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", set, err)
		}
	}
}
