package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/cli"
)

// throughput is one measurement: the same topic through the pipeline and through
// a plain consumer, in turn.
type throughput struct {
	Target

	records    int64
	partitions int32
	repeat     int
	rounds     int
	seed       uint64
	committers int
	profile    string
}

// Result is what the measurement prints, medians over the rounds.
type Result struct {
	Records               int64    `json:"records"`
	Partitions            int32    `json:"partitions"`
	RepeatPercent         int      `json:"repeat_percent"`
	Rounds                int      `json:"rounds"`
	RecordsPerSecond      float64  `json:"records_per_second"`
	PlainRecordsPerSecond float64  `json:"plain_copy_records_per_second"`
	RatioToPlainCopy      float64  `json:"ratio_to_plain_copy"` // median of the rounds' own ratios
	CPUSeconds            float64  `json:"cpu_seconds"`         // of this process, a run of the pipeline
	PlainCPUSeconds       float64  `json:"plain_copy_cpu_seconds"`
	MachineCPUSeconds     float64  `json:"machine_cpu_seconds,omitempty"` // all processes, where the system says
	PlainMachineCPU       float64  `json:"plain_copy_machine_cpu_seconds,omitempty"`
	LoadAverage           string   `json:"load_average,omitempty"` // before the first round
	Measurements          []sample `json:"measurements"`
}

// sample is one run.
type sample struct {
	Round            int     `json:"round"`
	What             string  `json:"what"` // effectonce or plain_copy
	RecordsPerSecond float64 `json:"records_per_second"`
	CPUSeconds       float64 `json:"cpu_seconds"`
	MachineCPU       float64 `json:"machine_cpu_seconds,omitempty"`
	Rows             int64   `json:"rows"`
}

func throughputCommand() *cobra.Command {
	var t throughput
	cmd := &cobra.Command{
		Use:   "throughput",
		Short: "Records a second, against a plain consumer that COPYs the same rows",
		Long: `Throughput writes orders of about 130 bytes to a topic of its own and moves them
into a fresh table, in turn through the pipeline (insert mode, business key
order_id) and through a plain consumer in this process: the same decoding and
encoding, COPY and the positions in one transaction, no dedup, no fence. The rate
counts from the first commit to the last.`,
	}
	t.Bind(cmd)
	out := cli.BindOutput(cmd)
	f := cmd.Flags()
	f.Int64Var(&t.records, "records", 2_000_000, "records a run")
	f.Int32Var(&t.partitions, "partitions", 8, "partitions of the topic")
	f.IntVar(&t.repeat, "repeat", 10, "percent of records that repeat a key")
	f.IntVar(&t.rounds, "rounds", 3, "rounds, each of both")
	f.Uint64Var(&t.seed, "seed", 1, "of the generated orders")
	f.StringVar(&t.profile, "cpuprofile", "", "write a CPU profile of the pipeline's runs to `FILE`")
	f.IntVar(&t.committers, "committers", 0, "committing goroutines of both, 0 is the default")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := out.JSON(cmd)
		if err != nil {
			return err
		}
		res, err := t.run(cmd.Context(), cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		if asJSON {
			return cli.WriteJSON(cmd.OutOrStdout(), res)
		}
		return cli.WriteTable(cmd.OutOrStdout(), res.rows())
	}
	return cmd
}

func (t *throughput) run(ctx context.Context, progress io.Writer) (*Result, error) {
	res := &Result{Records: t.records, Partitions: t.partitions, RepeatPercent: t.repeat, Rounds: t.rounds, LoadAverage: LoadAverage()}
	s, err := t.prepare(ctx, progress)
	if err != nil {
		return nil, err
	}
	defer s.remove(context.WithoutCancel(ctx))
	for round := 1; round <= t.rounds; round++ {
		for _, run := range []func(context.Context, int) (sample, error){s.plain, s.ours} {
			m, err := run(ctx, round)
			if err != nil {
				return nil, err
			}
			_, _ = fmt.Fprintf(progress, "round %d  %-10s  %9.0f records/s  %6.1f CPU s  %d rows\n", // progress only
				round, m.What, m.RecordsPerSecond, m.CPUSeconds, m.Rows)
			res.Measurements = append(res.Measurements, m)
		}
	}
	res.summarise()
	return res, nil
}

func (r *Result) summarise() {
	var ours, plain, ratio, cpu, plainCPU, machine, plainMachine []float64
	for _, m := range r.Measurements {
		if m.What == "plain_copy" {
			plain, plainCPU, plainMachine = append(plain, m.RecordsPerSecond), append(plainCPU, m.CPUSeconds), append(plainMachine, m.MachineCPU)
			continue
		}
		ours, cpu, machine = append(ours, m.RecordsPerSecond), append(cpu, m.CPUSeconds), append(machine, m.MachineCPU)
		ratio = append(ratio, m.RecordsPerSecond/plain[len(plain)-1])
	}
	r.RecordsPerSecond, r.PlainRecordsPerSecond, r.RatioToPlainCopy = median(ours), median(plain), median(ratio)
	r.CPUSeconds, r.PlainCPUSeconds = median(cpu), median(plainCPU)
	r.MachineCPUSeconds, r.PlainMachineCPU = median(machine), median(plainMachine)
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

func (r *Result) rows() [][]string {
	f := func(v float64) string { return fmt.Sprintf("%.0f", v) }
	s := func(v float64) string { return fmt.Sprintf("%.1f", v) }
	return [][]string{
		{"", "effectonce", "plain COPY", "ratio"},
		{"records/s", f(r.RecordsPerSecond), f(r.PlainRecordsPerSecond), fmt.Sprintf("%.2f", r.RatioToPlainCopy)},
		{"CPU s, this process", s(r.CPUSeconds), s(r.PlainCPUSeconds), ""},
		{"CPU s, whole machine", s(r.MachineCPUSeconds), s(r.PlainMachineCPU), ""},
		{fmt.Sprintf("medians of %d rounds of %d records, load before %s", r.Rounds, r.Records, r.LoadAverage)},
	}
}

// gauge times a run from its first commit to its last.
type gauge struct {
	first time.Time
	start int64
	cpu   float64
	all   float64
}

// watch asks done, which counts committed records, until total is reached.
func (g *gauge) watch(ctx context.Context, total int64, done func() int64) (rate, cpu, all float64, err error) {
	g.cpu, g.all = processCPU(), machineCPU()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return 0, 0, 0, context.Cause(ctx)
		case <-tick.C:
		}
		n := done()
		if n > 0 && g.first.IsZero() {
			g.first, g.start = time.Now(), n
		}
		if n >= total {
			return float64(n-g.start) / time.Since(g.first).Seconds(), processCPU() - g.cpu, machineCPU() - g.all, nil
		}
	}
}
