package sink_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"effectonce/internal/pgtest"
	"effectonce/internal/pgtx"
	"effectonce/pkg/sink"
	"effectonce/pkg/stream"
)

// randomNumber writes a number by JSON's grammar: short and long, with leading
// and trailing zeros where they are allowed, and exponents of every size.
func randomNumber(r *rand.Rand) string {
	digits := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteByte("00012345678999"[r.IntN(14)])
		}
		return b.String()
	}
	var b strings.Builder
	if r.IntN(3) == 0 {
		b.WriteByte('-')
	}
	if whole := strings.TrimLeft(digits(r.IntN(25)), "0"); whole != "" {
		b.WriteString(whole)
	} else {
		b.WriteByte('0')
	}
	if r.IntN(2) == 0 {
		b.WriteString("." + digits(1+r.IntN(25)))
	}
	if r.IntN(2) == 0 {
		fmt.Fprintf(&b, "%s%d", []string{"e", "E", "e+", "e-", "E-"}[r.IntN(5)], r.IntN([]int{3, 30, 300, 20000}[r.IntN(4)]))
	}
	return b.String()
}

// TestNumericAgainstServer holds our wire format against the server's own, for
// what fits and for what does not.
func TestNumericAgainstServer(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := db.Conn(t)
	db.Table(t, "n", "i int, v numeric")
	table := open(t, conn, mapped(db, "n", "i", "v"))
	r := rand.New(rand.NewPCG(1, 2))

	var written []string
	var rows [][]stream.Value
	for i := range 20_000 {
		s := randomNumber(r)
		written = append(written, s)
		rows = append(rows, []stream.Value{number(fmt.Sprint(i)), number(s)})
	}
	b := batchOf(rows...)
	refused := map[int]bool{}
	for _, f := range write(t, conn, table, b) {
		if f.Reason != "out_of_range" {
			t.Errorf("%s: %s", written[f.Index], f.Reason)
		}
		refused[f.Index] = true
	}

	for i := range refused {
		_, err := conn.Exec(t.Context(), "SELECT $1::text::numeric", written[i])
		if pgtx.Code(err) != "22003" {
			t.Errorf("%s: refused by us, the server says %v", written[i], err)
		}
	}
	different := texts(t, db, "SELECT i::text FROM "+db.User+".n JOIN (SELECT * FROM unnest("+literal(written)+
		"::text[]) WITH ORDINALITY) u (s, n) ON u.n = i + 1 WHERE numeric_send(v) <> numeric_send(s::numeric)")
	for _, i := range different {
		t.Errorf("%s (number %s) has another wire format on the server", written[atoi(t, i)], i)
	}
	if len(refused) == 0 || len(refused) > len(written)/3 {
		t.Errorf("%d of %d were refused: the generator is off", len(refused), len(written))
	}
}

// literal is safe here: the texts hold digits and signs only.
func literal(s []string) string { return "'{" + strings.Join(s, ",") + "}'" }

func atoi(tb testing.TB, s string) int {
	tb.Helper()
	var n int
	if _, err := fmt.Sscan(s, &n); err != nil {
		tb.Fatal(err)
	}
	return n
}

// TestScale holds would_round against what the server's rounding changes, for
// every scale that can be declared, negative ones included.
func TestScale(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := db.Conn(t)
	var version int
	if err := conn.QueryRow(t.Context(), "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
		t.Fatal(err)
	}
	scales := []int{0, 1, 4, 5, 1000}
	if version >= 150000 {
		scales = append(scales, -1, -3, -1000)
	}
	r := rand.New(rand.NewPCG(3, 4))
	for n, scale := range scales {
		name := fmt.Sprintf("s%d", n)
		db.Table(t, name, fmt.Sprintf("v numeric(1000, %d)", scale))
		table := open(t, conn, mapped(db, name, "v"))
		for range 300 {
			s := strings.Replace(randomNumber(r), "00", "0", 1)
			faults := table.Encode(batchOf([]stream.Value{number(s)}), 0)
			var rounds bool
			err := conn.QueryRow(t.Context(), "SELECT round($1::text::numeric, $2) <> $1::text::numeric", s, scale).Scan(&rounds)
			if pgtx.Code(err) == "22003" {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := len(faults) > 0; got != rounds {
				t.Errorf("%s at scale %d: refused %v, the server rounds %v", s, scale, got, rounds)
			}
		}
	}
}

// FuzzEncode looks for input that panics an encoder, is taken by a number column
// without being a number, or leaves a row behind a fault.
func FuzzEncode(f *testing.F) {
	for _, cases := range typeCases {
		for _, c := range cases {
			f.Add(uint8(c.value.Kind), c.value.Data)
		}
	}
	db := pgtest.New(f)
	db.Table(f, "every", "a text, b bool, c int2, d int4, e int8, f numeric, g numeric(9,3), h float4, i float8, j uuid, "+
		"k date, l timestamptz, m json, n jsonb, o bytea")
	conn := db.Conn(f)
	var tables []*sink.Table
	for c := 'a'; c <= 'o'; c++ {
		tables = append(tables, open(f, conn, mapped(db, "every", string(c))))
	}
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		v := stream.Value{Kind: stream.Kind(kind % uint8(stream.Time+1)), Data: data}
		for _, table := range tables {
			b := batchOf([]stream.Value{v})
			if faults := table.Encode(b, 0); (len(faults) == 1) != (len(b.Bytes(0)) == 0) {
				t.Fatalf("%d faults, a row of %d bytes", len(faults), len(b.Bytes(0)))
			}
		}
	})
}
