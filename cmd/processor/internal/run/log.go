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
	return zerolog.New(out).Level(level).With().Timestamp().Logger()
}
