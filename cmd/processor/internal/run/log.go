package run

import (
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/term"

	"effectonce/cmd/processor/internal/config"
)

// Logger writes to standard error: JSON, or a console form on a terminal.
func Logger(c config.Log) zerolog.Logger {
	level, err := zerolog.ParseLevel(c.Level)
	if err != nil { // validated before
		level = zerolog.InfoLevel
	}
	var out io.Writer = os.Stderr
	if c.Format == "console" || c.Format == "auto" && term.IsTerminal(int(os.Stderr.Fd())) {
		out = zerolog.ConsoleWriter{Out: os.Stderr, TimeFormat: time.TimeOnly}
	}
	return zerolog.New(out).Level(level).Hook(zerolog.HookFunc(stamp))
}

// stamp is the time of a line to the millisecond: what happens to a partition while
// the group moves is told apart by less than a second. zerolog's own has seconds,
// unless a variable of its package is changed for the whole process.
func stamp(e *zerolog.Event, _ zerolog.Level, _ string) {
	e.Str(zerolog.TimestampFieldName, time.Now().Format("2006-01-02T15:04:05.000Z07:00"))
}
