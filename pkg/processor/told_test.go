package processor

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// The log said that the database did not answer, and never that it did again.
func TestTheDatabaseAnswersAgain(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	p := &Processor{logger: zerolog.New(&log), health: newHealth()}
	p.watched(nil)
	if log.Len() > 0 {
		t.Errorf("told without an outage: %s", log.String())
	}
	p.watched(errors.New("connection refused"))
	p.watched(errors.New("connection refused"))
	p.watched(nil)
	p.watched(nil)
	if n := strings.Count(log.String(), "database answers again"); n != 1 || !strings.Contains(log.String(), `"level":"info","took":`) {
		t.Errorf("told %d times:\n%s", n, log.String())
	}
}
