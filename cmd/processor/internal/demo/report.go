package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"effectonce/cmd/processor/internal/embedded"
)

// Result is what the demo found.
type Result struct {
	Records     int64  `json:"records"`
	Distinct    int64  `json:"distinct"`
	Partitions  int32  `json:"partitions"`
	Members     int    `json:"members"`
	Seed        uint64 `json:"seed"`
	DeadLetters int64  `json:"dead_letters"`
	Ours        Tally  `json:"effectonce"`
	Naive       Tally  `json:"naive"`
}

// verdict is nil if our table is what it should be, else an error that says in
// which respects it is not.
func (r Result) verdict() error {
	var faults []string
	for _, f := range []struct {
		n    int64
		what string
	}{
		{r.Ours.Lost, "lost"},
		{r.Ours.Doubled, "doubled"},
		{r.Ours.OutOfOrder, "out of order"},
		{r.Ours.Unknown, "never sent"},
		{r.DeadLetters, "dead-lettered"},
	} {
		if f.n != 0 {
			faults = append(faults, fmt.Sprintf("%d %s", f.n, f.what))
		}
	}
	if repeats := r.Records - r.Distinct; r.Ours.Stopped != repeats {
		faults = append(faults, fmt.Sprintf("the audit trail counts %d duplicates of %d", r.Ours.Stopped, repeats))
	}
	if faults == nil {
		return nil
	}
	return errors.New("the promise does not hold: " + strings.Join(faults, ", "))
}

func (r Result) write(w io.Writer, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		if err := e.Encode(r); err != nil {
			return fmt.Errorf("write the result: %w", err)
		}
		return nil
	}
	if _, err := io.WriteString(w, r.table()); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

// table is the result for people.
func (r Result) table() string {
	p := message.NewPrinter(language.English)
	var b strings.Builder
	line := func(label string, ours, naive any) { p.Fprintf(&b, "  %-30s %14v %14v\n", label, ours, naive) }
	b.WriteByte('\n')
	line("", "effectonce", "at-least-once")
	line("records produced", r.Records, r.Records)
	line("distinct orders among them", r.Distinct, r.Distinct)
	line("applied (rows in the table)", r.Ours.Rows, r.Naive.Rows)
	line("duplicates stopped", r.Ours.Stopped, r.Naive.Stopped)
	line("killed with -9", r.Ours.Kills, r.Naive.Kills)
	line("seconds until all was done", fmt.Sprintf("%.1f", r.Ours.Seconds), fmt.Sprintf("%.1f", r.Naive.Seconds))
	line("LOST", r.Ours.Lost, r.Naive.Lost)
	line("DOUBLED", r.Ours.Doubled, r.Naive.Doubled)
	line("  redelivered by the producer", r.Ours.Doubled-r.Ours.Replayed, r.Naive.Doubled-r.Naive.Replayed)
	line("  read again after a kill", r.Ours.Replayed, r.Naive.Replayed)
	line("out of order", r.Ours.OutOfOrder, r.Naive.OutOfOrder)
	b.WriteByte('\n')
	if err := r.verdict(); err != nil {
		p.Fprintf(&b, "  %v\n", err)
	} else {
		p.Fprintf(&b, "  Each of the %d orders has exactly one row, in order, in a table without a unique constraint.\n", r.Distinct)
	}
	if r.Ours.Kills < kills || r.Naive.Kills < kills {
		b.WriteString("  The work was done before every kill could happen; try more --records.\n")
	}
	b.WriteByte('\n')
	return b.String()
}

// next says where to look now.
func (s *stage) next(w io.Writer) {
	if !s.opt.Keep {
		_, _ = fmt.Fprint(w, `Look inside, with everything left running:   processor demo --keep
Other orders, other moments of the kills:    processor demo --seed 2
Your own pipeline:                           processor init > pipeline.yaml
`)
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Everything still runs. Look inside:\n  psql '%s'\n", s.pg.DSN("", ""))
	b.WriteString(`    SELECT partition, next_offset, epoch, holder FROM effectonce.positions ORDER BY partition;
    SELECT * FROM effectonce.audit ORDER BY committed_at DESC LIMIT 10;
    SELECT order_id, count(*) FROM naive_orders GROUP BY 1 HAVING count(*) > 1 LIMIT 10;
`)
	fmt.Fprintf(&b, "  Kafka       %s\n  pipeline    %s\n", s.kafka.Address, s.file)
	for _, spec := range s.ours.specs {
		fmt.Fprintf(&b, "  %-10s  http://%s/metrics, log %s\n", spec.Name, adminAddress(spec), spec.Log)
	}
	b.WriteString("Ctrl-C ends all of it and removes it.\n")
	_, _ = io.WriteString(w, b.String())
}

func adminAddress(spec embedded.Spec) string {
	_, address, _ := strings.Cut(spec.Args[len(spec.Args)-1], "=")
	return address
}
