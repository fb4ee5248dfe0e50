package sink

import (
	"encoding/binary"
	"math"
	"strconv"
)

// decimal is a number as written: ±(whole . frac) · 10^exp. Nothing is expanded:
// 1e131071 is three digits here.
type decimal struct {
	neg         bool
	whole, frac []byte
	exp         int
	first, last int // significant digits are [first, last) of whole and frac together
}

// exponentCap is beyond every limit below, and small enough that sums of it fit.
const exponentCap = 1 << 28

// parseDecimal reads a number by JSON's grammar: -?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?
func parseDecimal(p []byte) (decimal, bool) {
	var d decimal
	if len(p) > 0 && p[0] == '-' {
		d.neg, p = true, p[1:]
	}
	n := digits(p)
	if n == 0 || n > 1 && p[0] == '0' {
		return d, false
	}
	d.whole, p = p[:n], p[n:]
	if len(p) > 0 && p[0] == '.' {
		if n = digits(p[1:]); n == 0 {
			return d, false
		}
		d.frac, p = p[1:1+n], p[1+n:]
	}
	if len(p) > 0 && (p[0] == 'e' || p[0] == 'E') {
		var ok bool
		if d.exp, ok = parseExponent(p[1:]); !ok {
			return d, false
		}
		p = nil
	}
	d.last = len(d.whole) + len(d.frac)
	for d.first < d.last && d.digit(d.first) == 0 {
		d.first++
	}
	for d.last > d.first && d.digit(d.last-1) == 0 {
		d.last--
	}
	return d, len(p) == 0
}

func parseExponent(p []byte) (int, bool) {
	neg := false
	if len(p) > 0 && (p[0] == '+' || p[0] == '-') {
		neg, p = p[0] == '-', p[1:]
	}
	if len(p) == 0 || digits(p) != len(p) {
		return 0, false
	}
	exp := 0
	for _, c := range p {
		exp = min(exp*10+int(c-'0'), exponentCap)
	}
	if neg {
		exp = -exp
	}
	return exp, true
}

// digits counts the digits p begins with.
func digits(p []byte) int {
	for i, c := range p {
		if c < '0' || c > '9' {
			return i
		}
	}
	return len(p)
}

// digit is the i-th digit of whole and frac together, 0 behind the end.
func (d *decimal) digit(i int) byte {
	switch {
	case i < len(d.whole):
		return d.whole[i] - '0'
	case i < len(d.whole)+len(d.frac):
		return d.frac[i-len(d.whole)] - '0'
	}
	return 0
}

func (d *decimal) zero() bool { return d.first == d.last }

// point is the count of digits from the first significant one to the decimal
// point: 3 for 123, 1 for 1.23, 0 for 0.1, -2 for 0.001.
func (d *decimal) point() int { return len(d.whole) + d.exp - d.first }

// parseInt reads a whole number exactly.
func parseInt(p []byte) (int64, string) {
	const sure = 18 // decimal digits that always fit
	q, neg := p, false
	if len(q) > 0 && q[0] == '-' {
		q, neg = q[1:], true
	}
	if len(q) == 0 || len(q) > sure || len(q) > 1 && q[0] == '0' {
		return parseIntSlow(p)
	}
	var n int64
	for _, c := range q {
		if c < '0' || c > '9' {
			return parseIntSlow(p)
		}
		n = n*10 + int64(c-'0')
	}
	if neg {
		n = -n
	}
	return n, ""
}

// parseIntSlow takes fractions, exponents and the largest numbers.
func parseIntSlow(p []byte) (int64, string) {
	const most = 19 // decimal digits of the largest int64
	d, ok := parseDecimal(p)
	switch {
	case !ok:
		return 0, reasonNumber
	case d.zero():
		return 0, ""
	case d.last-d.first > d.point():
		return 0, reasonInteger
	case d.point() > most:
		return 0, reasonRange
	}
	var n uint64
	for i := range d.point() { // 19 digits fit in a uint64
		n = n*10 + uint64(d.digit(d.first+i))
	}
	switch {
	case d.neg && n <= 1<<63:
		return int64(-n), ""
	case !d.neg && n < 1<<63:
		return int64(n), ""
	}
	return 0, reasonRange
}

func appendFloat(dst []byte, p []byte, single bool) ([]byte, string) {
	d, ok := parseDecimal(p)
	if !ok {
		return dst, reasonNumber
	}
	size := 64
	if single {
		size = 32
	}
	f, err := strconv.ParseFloat(string(p), size)
	if err != nil || f == 0 && !d.zero() {
		return dst, reasonRange
	}
	if single {
		return binary.BigEndian.AppendUint32(dst, math.Float32bits(float32(f))), ""
	}
	return binary.BigEndian.AppendUint64(dst, math.Float64bits(f)), ""
}

// The limits of numeric: digits before and behind the decimal point.
const (
	numericWhole = 131072
	numericFrac  = 16383
	numericNeg   = 0x4000
)

// appendNumeric appends numeric's wire format: the count of base-10000 digits, the
// weight of the first, the sign, the digits to display behind the point, and the
// base-10000 digits, none of them leading or trailing zeros.
func appendNumeric(dst []byte, p []byte, scale int) ([]byte, string) {
	d, ok := parseDecimal(p)
	if !ok {
		return dst, reasonNumber
	}
	display := max(0, len(d.frac)-d.exp)
	point, count := d.point(), d.last-d.first
	switch {
	case display > numericFrac, !d.zero() && point > numericWhole:
		return dst, reasonRange
	case d.zero():
		return appendUint16s(dst, 0, 0, 0, display), ""
	case count-point > scale:
		return dst, reasonRound
	}
	weight := floorDiv(point-1, 4)
	head := point - 4*weight // digits in the first group, 1 to 4
	groups := 1 + max(0, count-head+3)/4
	sign := 0
	if d.neg {
		sign = numericNeg
	}
	dst = appendUint16s(dst, groups, weight, sign, display)
	at := d.first
	for i := range groups {
		n := 4
		if i == 0 {
			n = head
		}
		group := 0
		for range n {
			group = group*10 + int(d.significant(at))
			at++
		}
		dst = appendUint16s(dst, group)
	}
	return dst, ""
}

// significant is digit i, 0 behind the last significant one.
func (d *decimal) significant(i int) byte {
	if i >= d.last {
		return 0
	}
	return d.digit(i)
}

func appendUint16s(dst []byte, values ...int) []byte {
	for _, v := range values {
		dst = binary.BigEndian.AppendUint16(dst, uint16(v))
	}
	return dst
}

func floorDiv(a, b int) int {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
