package sink

import (
	"encoding/binary"
	"time"

	"effectonce/pkg/stream"
)

// epoch is Postgres's day 0, 2000-01-01, counted in days of Unix time.
const epoch = 10957

const (
	secondsPerDay = 24 * 60 * 60
	dateLen       = len("2006-01-02")
	clockLen      = len("2006-01-02T15:04:05")
)

func appendDate(dst []byte, v stream.Value) ([]byte, string) {
	if !textual(v) {
		return dst, reasonType
	}
	if len(v.Data) != dateLen {
		return dst, reasonDate
	}
	days, ok := parseDate(v.Data)
	if !ok {
		return dst, reasonDate
	}
	return binary.BigEndian.AppendUint32(dst, uint32(days-epoch)), ""
}

// appendTimestamptz appends microseconds since 2000-01-01 UTC.
func appendTimestamptz(dst []byte, v stream.Value) ([]byte, string) {
	if !textual(v) && v.Kind != stream.Time {
		return dst, reasonType
	}
	p := v.Data
	if len(p) <= clockLen {
		return dst, reasonTimestamp
	}
	days, okDate := parseDate(p[:dateLen])
	seconds, okClock := parseClock(p[dateLen:clockLen])
	micros, rest, okFraction := parseFraction(p[clockLen:])
	offset, okOffset := parseOffset(rest)
	if !okDate || !okClock || !okFraction || !okOffset {
		return dst, reasonTimestamp
	}
	at := (int64(days-epoch)*secondsPerDay+int64(seconds-offset))*1_000_000 + int64(micros)
	return binary.BigEndian.AppendUint64(dst, uint64(at)), ""
}

// parseDate reads YYYY-MM-DD as days of Unix time.
func parseDate(p []byte) (int, bool) {
	year, okYear := twoDigits(p, 0)
	rest, okRest := twoDigits(p, 2)
	month, okMonth := twoDigits(p, 5)
	day, okDay := twoDigits(p, 8)
	if !okYear || !okRest || !okMonth || !okDay || p[4] != '-' || p[7] != '-' {
		return 0, false
	}
	if year = year*100 + rest; year == 0 || month < 1 || month > 12 || day < 1 || day > daysIn(year, month) {
		return 0, false
	}
	return int(time.Date(year, time.Month(month), day, 0, 0, 0, 0, time.UTC).Unix() / secondsPerDay), true
}

func daysIn(year, month int) int {
	switch month {
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}

// parseClock reads Thh:mm:ss as seconds. A leap second is the next minute's
// first, as Postgres has it.
func parseClock(p []byte) (int, bool) {
	hour, okHour := twoDigits(p, 1)
	minute, okMinute := twoDigits(p, 4)
	second, okSecond := twoDigits(p, 7)
	if !okHour || !okMinute || !okSecond || p[3] != ':' || p[6] != ':' || p[0] != 'T' && p[0] != 't' && p[0] != ' ' {
		return 0, false
	}
	return (hour*60+minute)*60 + second, hour < 24 && minute < 60 && second <= 60
}

// parseFraction reads an optional .ddd as microseconds; later digits are cut off.
func parseFraction(p []byte) (micros int, rest []byte, ok bool) {
	if len(p) == 0 || p[0] != '.' {
		return 0, p, true
	}
	n := digits(p[1:])
	for i := range 6 {
		micros *= 10
		if i < n {
			micros += int(p[1+i] - '0')
		}
	}
	return micros, p[1+n:], n > 0
}

// parseOffset reads Z or ±hh:mm as seconds east of UTC.
func parseOffset(p []byte) (int, bool) {
	if len(p) == 1 {
		return 0, p[0] == 'Z' || p[0] == 'z'
	}
	if len(p) != len("+00:00") || p[3] != ':' || p[0] != '+' && p[0] != '-' {
		return 0, false
	}
	hour, okHour := twoDigits(p, 1)
	minute, okMinute := twoDigits(p, 4)
	if !okHour || !okMinute || hour > 23 || minute > 59 {
		return 0, false
	}
	offset := (hour*60 + minute) * 60
	if p[0] == '-' {
		offset = -offset
	}
	return offset, true
}

func twoDigits(p []byte, at int) (int, bool) {
	a, b := p[at]-'0', p[at+1]-'0'
	return int(a)*10 + int(b), a <= 9 && b <= 9
}
