package demo

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"effectonce/cmd/processor/internal/exit"
)

func kept() Result {
	return Result{
		Records: 500_000, Distinct: 450_000, Partitions: 8, Members: 2, Seed: 1,
		Ours:  Tally{Rows: 450_000, Stopped: 50_000, Kills: 3, Seconds: 12.34},
		Naive: Tally{Rows: 504_440, Kills: 3, Doubled: 54_440, Replayed: 4440, OutOfOrder: 3, Seconds: 13.21},
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	want, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestReportForPeople(t *testing.T) {
	golden(t, "kept.txt", kept().table())

	broken := kept()
	broken.Ours.Lost, broken.Ours.Doubled, broken.Ours.Replayed, broken.Ours.Kills = 1, 2, 2, 2
	golden(t, "broken.txt", broken.table())
}

func TestReportForPrograms(t *testing.T) {
	var out bytes.Buffer
	if err := kept().write(&out, true); err != nil {
		t.Fatal(err)
	}
	golden(t, "kept.json", out.String())
	var back Result
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back != kept() {
		t.Errorf("%v: %+v", err, back)
	}
}

// Whatever our consumer did wrong ends the program with 1 and is named; what the
// naive one does never does.
func TestVerdict(t *testing.T) {
	if err := kept().verdict(); err != nil {
		t.Errorf("a promise that was kept: %v", err)
	}
	for want, spoil := range map[string]func(*Result){
		"1 lost":          func(r *Result) { r.Ours.Lost = 1 },
		"2 doubled":       func(r *Result) { r.Ours.Doubled = 2 },
		"3 out of order":  func(r *Result) { r.Ours.OutOfOrder = 3 },
		"4 never sent":    func(r *Result) { r.Ours.Unknown = 4 },
		"5 dead-lettered": func(r *Result) { r.DeadLetters = 5 },
		"the audit trail counts 49999 duplicates of 50000": func(r *Result) { r.Ours.Stopped-- },
	} {
		r := kept()
		spoil(&r)
		err := r.verdict()
		if err == nil || !strings.HasSuffix(err.Error(), "the promise does not hold: "+want) || exit.Code(err) != exit.Failed {
			t.Errorf("%s: got %v, exit code %d", want, err, exit.Code(err))
		}
	}
}
