package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"service/internal/terminal"
	"service/store"
)

type benchCmd struct {
	Data       string   `env:"-" placeholder:"DIR" help:"Where the data directories of the measurement are made and removed again: a folder on the disk that is to be measured. Without it, the folder for temporary files."`
	Time       string   `default:"5s" placeholder:"D" help:"How long events are published in each case."`
	Publishers string   `default:"128" placeholder:"N" help:"How many requests are under way at a time; for raw too."`
	Rounds     string   `default:"1" placeholder:"N" help:"How often all of it is measured, one round after the other. The medians are told, and the most memory: the speed of a shared machine changes from one second to the next."`
	Case       []string `placeholder:"NAME" help:"The cases to measure: ${cases}. All, if none is named."`
	Stored     string   `default:"0" placeholder:"N" help:"How many events are in the log before a case begins."`
	Others     string   `default:"0" placeholder:"N" help:"How many other subscriptions there are, that ask for other events, before a case begins."`
	JSON       bool     `name:"json" help:"Print the results as JSON."`
	CPUProfile string   `name:"cpuprofile" placeholder:"FILE" help:"Write a processor profile of the service here, of the last round; with several cases the name of each is put into the file's name."`
}

// Run measures, in one run on one machine, what it can do at all, and what the
// service does of it: the built binary as it stands, over HTTP, with every
// commit on the disk. Publishers are part of this process; the service and
// the receiver are processes of their own.
func (c *benchCmd) Run(ctx context.Context, std streams) error {
	b, err := c.bench(std)
	if err != nil {
		return err
	}
	about, err := newBenchMachine(c.Data)
	if err != nil {
		return err
	}
	report := benchReport{Machine: about}
	if !c.JSON {
		fmt.Fprint(std.out, about)
	}
	err = b.run(ctx, &report)
	b.progress.End()
	if ctx.Err() != nil {
		err = errors.New("the measurement was interrupted")
	}
	if err != nil {
		if report.Rounds == 0 {
			return err
		}
		err = fmt.Errorf("%w; what is told is of %d of %d rounds", err, report.Rounds, b.rounds)
	}
	if !c.JSON {
		fmt.Fprint(std.out, &report)
		return err
	}
	out := json.NewEncoder(std.out)
	out.SetIndent("", "  ")
	return errors.Join(err, out.Encode(&report))
}

// bench reads the flags.
func (c *benchCmd) bench(std streams) (*bench, error) {
	var f faults
	b := &bench{
		data:       c.Data,
		time:       f.duration("time", c.Time, 100*time.Millisecond, 10*time.Minute),
		publishers: f.integer("publishers", c.Publishers, 1, 4096),
		rounds:     f.integer("rounds", c.Rounds, 1, 99),
		stored:     f.integer("stored", c.Stored, 0, 1_000_000_000),
		others:     f.integer("others", c.Others, 0, 1_000_000),
		profile:    c.CPUProfile,
		log:        std.err,
		progress:   terminal.NewProgress(std.err),
	}
	for _, name := range c.Case {
		if !slices.ContainsFunc(benchCases, func(bc benchCase) bool { return bc.name == name }) {
			f.add("case", "must be one of %s, not %q", benchNames(", "), name)
		}
	}
	for _, bc := range benchCases {
		if len(c.Case) == 0 || slices.Contains(c.Case, bc.name) {
			b.cases = append(b.cases, bc)
		}
	}
	return b, f.err()
}

func benchNames(separator string) string {
	var names []string
	for _, bc := range benchCases {
		names = append(names, bc.name)
	}
	return strings.Join(names, separator)
}

// benchMachine says where was measured. Figures of two machines say nothing
// about each other.
type benchMachine struct {
	Version     string `json:"version"`
	Go          string `json:"go"`
	Driver      string `json:"driver"`
	SQLite      string `json:"sqlite"`
	Synchronous string `json:"synchronous"`
	OS          string `json:"os"`
	Arch        string `json:"arch"`
	Processors  int    `json:"processors"`
	Data        string `json:"data"`
}

func newBenchMachine(data string) (*benchMachine, error) {
	sqlite, err := store.SQLiteVersion()
	if err != nil {
		return nil, err
	}
	if data == "" {
		data = os.TempDir()
	}
	return &benchMachine{
		Version: version(), Go: runtime.Version(), Driver: store.DriverName, SQLite: sqlite, Synchronous: "FULL",
		OS: runtime.GOOS, Arch: runtime.GOARCH, Processors: runtime.NumCPU(), Data: data,
	}, nil
}

func (m *benchMachine) String() string {
	return fmt.Sprintf("service %s, %s/%s, %d processors; sqlite %s (%s), synchronous=%s; data in %s\n",
		m.Version, m.OS, m.Arch, m.Processors, m.SQLite, m.Driver, m.Synchronous, m.Data)
}

// benchReport is all that was measured in one run.
type benchReport struct {
	Machine *benchMachine `json:"machine"`
	Rounds  int           `json:"rounds"` // the figures are their medians
	// Raw is the most requests a second that a bare client of net/http made
	// to the receiver, with a delivery's bytes: what the machine can do.
	Raw     float64        `json:"raw_per_second"`
	Results []*benchResult `json:"cases"`
}

// benchResult is what came of one case. Its times are in milliseconds, from
// before the request that published an event to its arrival at the receiver.
type benchResult struct {
	Case          string  `json:"case"`
	About         string  `json:"about"`
	Subscriptions int     `json:"subscriptions"`
	Acknowledged  int     `json:"acknowledged"` // events
	Delivered     int     `json:"delivered"`    // events, each counted for each of its subscriptions
	Seconds       float64 `json:"seconds"`      // from the first request to the last arrival; of fan-out, each event apart

	AcknowledgedPerSecond float64 `json:"acknowledged_per_second"`
	DeliveredPerSecond    float64 `json:"delivered_per_second"`
	OfRaw                 float64 `json:"of_raw"` // DeliveredPerSecond as a share of what is possible
	// OfWithout is DeliveredPerSecond as a share of that of the same case without
	// a replica, when both were measured.
	OfWithout float64 `json:"of_without_replica,omitempty"`

	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
	// Publish is the median time of a request that publishes one event, and
	// PublishToOne that to a single subscription; where there is fan-out alone.
	Publish      float64 `json:"publish_ms,omitempty"`
	PublishToOne float64 `json:"publish_to_one_ms,omitempty"`

	CPU        float64 `json:"cpu_us_per_event"`  // of the service, for each event delivered
	PeakMemory int64   `json:"peak_memory_bytes"` // resident, of the service; 0 where the system does not tell
	IdleMemory int64   `json:"idle_memory_bytes"` // the same before the case
	Commits    int     `json:"commits"`           // each is one fsync of the write-ahead log
	Lost       int     `json:"lost"`              // events that were acknowledged and did not arrive
	Duplicated int     `json:"duplicated"`        // that arrived more than once
}

func (r *benchReport) String() string {
	var b strings.Builder
	if r.Rounds > 1 {
		fmt.Fprintf(&b, "medians of %d rounds, each figure by itself; memory is the most\n", r.Rounds)
	}
	fmt.Fprintf(&b, "raw: %s requests/s of a bare net/http client to the same receiver\n\n", thousands(r.Raw))
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "case\tacknowledged/s\tdelivered/s\tof raw\tp50 ms\tp99 ms\tmax ms\tCPU µs/event\tidle MB\tpeak MB\tcommits\tlost\ttwice\t")
	for _, c := range r.Results {
		memory := func(bytes int64) string {
			if bytes == 0 {
				return "–"
			}
			return fmt.Sprintf("%.0f", float64(bytes)/(1<<20))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%.2f\t%.2f\t%.2f\t%.2f\t%.0f\t%s\t%s\t%s\t%d\t%d\t\n", c.Case, thousands(c.AcknowledgedPerSecond), thousands(c.DeliveredPerSecond),
			c.OfRaw, c.P50, c.P99, c.Max, c.CPU, memory(c.IdleMemory), memory(c.PeakMemory), thousands(float64(c.Commits)), c.Lost, c.Duplicated)
	}
	w.Flush()
	b.WriteByte('\n')
	for _, c := range r.Results {
		fmt.Fprintf(&b, "%s: %s", c.Case, c.About)
		if c.OfWithout > 0 {
			fmt.Fprintf(&b, "; %.2f of the rate without", c.OfWithout)
		}
		if c.Publish > 0 {
			fmt.Fprintf(&b, "; publishing an event takes %.2f ms (median), to one subscription %.2f ms", c.Publish, c.PublishToOne)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// thousands renders a number with a mark between each three digits.
func thousands(x float64) string {
	s := fmt.Sprintf("%.0f", x)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// run measures all cases, each with a service and a data directory of its own.
// With an error the report is of the rounds that were finished.
func (b *bench) run(ctx context.Context, report *benchReport) error {
	sink, err := b.startSink(ctx)
	if err != nil {
		return err
	}
	defer sink.end()
	b.sink = sink
	var rounds []*benchReport
	for err == nil && len(rounds) < b.rounds {
		round := &benchReport{Machine: report.Machine}
		if err = b.round(ctx, round); err == nil {
			rounds = append(rounds, round)
		}
	}
	if len(rounds) > 0 {
		*report = *medians(rounds)
	}
	return err
}

// round measures everything once.
func (b *bench) round(ctx context.Context, report *benchReport) (err error) {
	b.progress.Show("raw: what this machine can do")
	if report.Raw, err = b.measureRaw(ctx); err != nil {
		return fmt.Errorf("raw: %w", err)
	}
	for _, bc := range b.cases {
		b.progress.Show("%s: %s", bc.name, bc.about)
		r, err := b.measure(ctx, bc)
		if err != nil {
			return fmt.Errorf("%s: %w", bc.name, err)
		}
		r.OfRaw = r.DeliveredPerSecond / report.Raw
		if base, ok := strings.CutSuffix(bc.name, replicatedSuffix); ok {
			if i := slices.IndexFunc(report.Results, func(r *benchResult) bool { return r.Case == base }); i >= 0 {
				r.OfWithout = r.DeliveredPerSecond / report.Results[i].DeliveredPerSecond
			}
		}
		report.Results = append(report.Results, r)
	}
	return nil
}

// medians tells of several rounds the median of each rate, share and time, each by
// itself. Events and commits are those of the round whose rate is the median, or
// the lower of two; memory is the most of all, and what was lost or came twice
// the sum.
func medians(rounds []*benchReport) *benchReport {
	median := func(of func(*benchReport) float64) float64 {
		var all []float64
		for _, r := range rounds {
			all = append(all, of(r))
		}
		slices.Sort(all)
		return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
	}
	y := &benchReport{Machine: rounds[0].Machine, Rounds: len(rounds), Raw: median(func(r *benchReport) float64 { return r.Raw })}
	for i := range rounds[0].Results {
		sorted := slices.SortedFunc(slices.Values(rounds), func(a, b *benchReport) int {
			return cmp.Compare(a.Results[i].DeliveredPerSecond, b.Results[i].DeliveredPerSecond)
		})
		r := *sorted[(len(sorted)-1)/2].Results[i]
		for _, field := range []func(*benchResult) *float64{
			func(r *benchResult) *float64 { return &r.AcknowledgedPerSecond },
			func(r *benchResult) *float64 { return &r.DeliveredPerSecond },
			func(r *benchResult) *float64 { return &r.OfRaw },
			func(r *benchResult) *float64 { return &r.OfWithout },
			func(r *benchResult) *float64 { return &r.P50 },
			func(r *benchResult) *float64 { return &r.P99 },
			func(r *benchResult) *float64 { return &r.Max },
			func(r *benchResult) *float64 { return &r.Publish },
			func(r *benchResult) *float64 { return &r.PublishToOne },
			func(r *benchResult) *float64 { return &r.CPU },
		} {
			*field(&r) = median(func(round *benchReport) float64 { return *field(round.Results[i]) })
		}
		r.Lost, r.Duplicated = 0, 0
		for _, round := range rounds {
			r.Lost += round.Results[i].Lost
			r.Duplicated += round.Results[i].Duplicated
			r.PeakMemory = max(r.PeakMemory, round.Results[i].PeakMemory)
			r.IdleMemory = max(r.IdleMemory, round.Results[i].IdleMemory)
		}
		y.Results = append(y.Results, &r)
	}
	return y
}

// profileOf is the file for the profile of a case, "" for none.
func (b *bench) profileOf(name string) string {
	if b.profile == "" || len(b.cases) == 1 {
		return b.profile
	}
	extension := filepath.Ext(b.profile)
	return strings.TrimSuffix(b.profile, extension) + "-" + name + extension
}

// benchPartCmd is one of the other processes of bench. It ends with its stdin,
// and so never outlives the one that started it.
type benchPartCmd struct {
	CPUProfile string   `name:"cpuprofile"`
	Args       []string `arg:"" passthrough:""`
}

func (c *benchPartCmd) Run(ctx context.Context, std streams) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		io.Copy(io.Discard, std.in)
		cancel()
	}()
	if c.Args[0] == "sink" {
		return runSink(ctx, std.out)
	}
	stop, err := startProfile(c.CPUProfile)
	if err != nil {
		return err
	}
	status := run(ctx, c.Args, streams{strings.NewReader(""), std.out, std.err})
	if err := stop(); err != nil {
		return err
	}
	if status != exitDone {
		return fmt.Errorf("%s ended with status %d", c.Args[0], status)
	}
	return nil
}
