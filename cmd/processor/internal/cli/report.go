package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"effectonce/cmd/processor/internal/config"
	"effectonce/cmd/processor/internal/exit"
)

// check asks one dependency and reports what it found.
type check func(ctx context.Context, l *config.Loaded, r *report)

// The states of a finding.
const (
	stateOK      = "ok"
	stateWarning = "warning"
	stateError   = "error"
)

// finding is one line of a report.
type finding struct {
	State   string `json:"state"`
	About   string `json:"about"`
	Where   string `json:"where,omitempty"`
	Message string `json:"message"`

	code int
}

// report gathers what checks find.
type report struct {
	OK       bool      `json:"ok"`
	Findings []finding `json:"findings"`
}

func (r *report) fine(about, format string, args ...any) {
	r.Findings = append(r.Findings, finding{State: stateOK, About: about, Message: fmt.Sprintf(format, args...)})
}

func (r *report) warn(about, message string) {
	r.Findings = append(r.Findings, finding{State: stateWarning, About: about, Message: message})
}

// fail notes an error, and the exit code it asks for.
func (r *report) fail(about string, code int, err error) {
	r.Findings = append(r.Findings, finding{State: stateError, About: about, Message: err.Error(), code: code})
}

// settings notes the faults of a configuration.
func (r *report) settings(faults config.Faults) {
	for _, f := range faults {
		r.Findings = append(r.Findings, finding{
			State: stateError, About: cmp.Or(f.Path, "settings"), Where: f.Origin.String(), Message: f.Message, code: exit.Config,
		})
	}
}

// err is the report as an error, with the most pressing code: what must be
// changed, before what may come back by itself, before what a check refused.
func (r *report) err() error {
	var lines []string
	var codes []int
	for _, f := range r.Findings {
		if f.State == stateError {
			if !strings.HasPrefix(f.Message, f.About) {
				f.Message = f.About + ": " + f.Message
			}
			lines, codes = append(lines, f.Message), append(codes, f.code)
		}
	}
	for _, code := range []int{exit.Config, exit.Unavailable, exit.Refused} {
		if slices.Contains(codes, code) {
			return exit.With(code, errors.New(strings.Join(lines, "\n")))
		}
	}
	return nil
}

// rows is the report as a table, without the errors: they are what the verb
// returns, and are printed once.
func (r *report) rows() [][]string {
	var rows [][]string
	for _, f := range r.Findings {
		if f.State != stateError {
			rows = append(rows, []string{f.State, f.About, f.Message})
		}
	}
	return rows
}
