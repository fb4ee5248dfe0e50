package processor

import (
	"errors"
	"regexp"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"effectonce/internal/pgtx"
	"effectonce/pkg/sink"
	"effectonce/pkg/stream"
)

// effectFault is the dead letter of a record whose effect failed alone.
func effectFault(i int, err error) stream.Fault {
	f := stream.Fault{Index: i, Stage: stream.StageEffect, Reason: "handler", Detail: err.Error()}
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg):
		f.Code, f.Reason = pg.Code, "refused"
		if reason, ok := reasons[pg.Code]; ok {
			f.Reason = reason
		}
		f.Detail = pg.Message
		if pg.ConstraintName != "" {
			f.Detail += " (constraint " + pg.ConstraintName + ")"
		}
		if pg.ColumnName != "" {
			f.Detail += " (column " + pg.ColumnName + ")"
		}
	case errors.Is(err, sink.ErrTimeout):
		f.Reason = "timeout"
	}
	return f
}

// reasons name the refusals that people meet most.
var reasons = map[string]string{
	"23505": "unique_violation", "23503": "foreign_key_violation", "23502": "null_in_not_null", "23514": "check_violation",
	"23P01": "exclusion_violation", "22001": "too_long", "22003": "out_of_range", "42501": "row_security", "57014": "timeout",
	"54000": "limit_exceeded", "54001": "too_deep", "P0001": "raised",
}

var copyContext = regexp.MustCompile(`^COPY [^\n]*, line (\d+)`)

// copyLine is the row that COPY's error context names, 0 if it names none. It is a
// hint: several rows are buffered, and the context is text for people.
func copyLine(err error) int {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pgtx.Code(err) == "" {
		return 0
	}
	m := copyContext.FindStringSubmatch(pg.Where)
	if m == nil {
		return 0
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		return 0
	}
	return n
}
