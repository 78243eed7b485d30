package bench

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"service/internal/durable"
	"service/store"
)

// Machine describes the host of a measurement. Do not compare figures of different hosts.
type Machine struct {
	Version     string `json:"version"`
	Go          string `json:"go"`
	Driver      string `json:"driver"`
	SQLite      string `json:"sqlite"`
	Synchronous string `json:"synchronous"`
	OS          string `json:"os"`
	Arch        string `json:"arch"`
	Processors  int    `json:"processors"`
	Data        string `json:"data"`
	// FileSystem is the file system of Data. A journal makes each fsync slower.
	FileSystem string `json:"file_system"`
}

// NewMachine describes this host. version is the version of the binary. data is the directory to
// measure; empty for the system's temporary directory.
func NewMachine(data, version string) (*Machine, error) {
	sqlite, err := store.SQLiteVersion()
	if err != nil {
		return nil, err
	}
	if data == "" {
		data = os.TempDir()
	}
	fileSystem, _ := durable.FileSystem(data)
	return &Machine{
		Version: version, Go: runtime.Version(), Driver: store.DriverName, SQLite: sqlite, Synchronous: "FULL",
		OS: runtime.GOOS, Arch: runtime.GOARCH, Processors: processors(), Data: data, FileSystem: fileSystem,
	}, nil
}

func (m *Machine) String() string {
	return fmt.Sprintf("service %s, %s/%s, %d processors; sqlite %s (%s), synchronous=%s; data in %s on %s\n",
		m.Version, m.OS, m.Arch, m.Processors, m.SQLite, m.Driver, m.Synchronous, m.Data, m.FileSystem)
}

// Report is the result of [Run]. String formats it as a table.
type Report struct {
	Machine *Machine `json:"machine"`
	Rounds  int      `json:"rounds"` // the figures are medians of the rounds
	// Raw is the maximum rate of requests per second of a plain net/http client to the
	// receiver, with the header and body of a delivery. It is measured before and after each
	// case.
	Raw     float64   `json:"raw_per_second"`
	Results []*Result `json:"cases"`
}

// Result is the result of one workload. Times are in milliseconds, from before the publishing
// request to the arrival at the receiver.
type Result struct {
	Case          string  `json:"case"`
	About         string  `json:"about"`
	Subscriptions int     `json:"subscriptions"`
	Acknowledged  int     `json:"acknowledged"` // events
	Delivered     int     `json:"delivered"`    // events times their subscriptions
	Seconds       float64 `json:"seconds"`      // from the first request to the last arrival; in fan-out, the sum over the events

	AcknowledgedPerSecond float64 `json:"acknowledged_per_second"`
	DeliveredPerSecond    float64 `json:"delivered_per_second"`
	OfRaw                 float64 `json:"of_raw"` // DeliveredPerSecond / Raw, as measured before and after the case

	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
	// Publish is the median time to publish an event in fan-out, PublishToOne the median with a
	// single subscription.
	Publish      float64 `json:"publish_ms,omitempty"`
	PublishToOne float64 `json:"publish_to_one_ms,omitempty"`

	Published []time.Duration `json:"-"` // durations of the requests with one event

	CPU        float64 `json:"cpu_us_per_event"`  // of the service, per delivered event
	Bytes      float64 `json:"bytes_per_event"`   // of the database, per delivered event
	PeakMemory int64   `json:"peak_memory_bytes"` // resident memory of the service; 0 if unknown
	IdleMemory int64   `json:"idle_memory_bytes"` // the same before the case
	Commits    int     `json:"commits"`           // each has one fsync of the write-ahead log
	Lost       int     `json:"lost"`              // events that were acknowledged but did not arrive
	Duplicated int     `json:"duplicated"`        // events that arrived more than once
}

func (r *Report) String() string {
	var b strings.Builder
	if r.Rounds > 1 {
		fmt.Fprintf(&b, "each figure is the median of %d rounds; memory is the maximum\n", r.Rounds)
	}
	fmt.Fprintf(&b, "raw: %s requests/s of a plain net/http client to the same receiver\n\n", thousands(r.Raw))
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "case\tacknowledged/s\tdelivered/s\tof raw\tp50 ms\tp99 ms\tmax ms\tCPU µs/event\tB/event\t"+
		"idle MB\tpeak MB\tcommits\tlost\tduplicate\t")
	for _, c := range r.Results {
		bytes := func(n float64) string {
			if n <= 0 {
				return "–"
			}
			return thousands(n)
		}
		memory := func(bytes int64) string {
			if bytes == 0 {
				return "–"
			}
			return fmt.Sprintf("%.0f", float64(bytes)/(1<<20))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%.2f\t%.2f\t%.2f\t%.2f\t%.0f\t%s\t%s\t%s\t%s\t%d\t%d\t\n",
			c.Case, thousands(c.AcknowledgedPerSecond), thousands(c.DeliveredPerSecond), c.OfRaw, c.P50, c.P99, c.Max, c.CPU,
			bytes(c.Bytes), memory(c.IdleMemory), memory(c.PeakMemory), thousands(float64(c.Commits)), c.Lost, c.Duplicated)
	}
	w.Flush()
	b.WriteByte('\n')
	for _, c := range r.Results {
		fmt.Fprintf(&b, "%s: %s", c.Case, c.About)
		if c.Publish > 0 {
			fmt.Fprintf(&b, "; publishing an event takes %.2f ms (median), to one subscription %.2f ms", c.Publish, c.PublishToOne)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// thousands formats a number with thousands separators.
func thousands(x float64) string {
	s := fmt.Sprintf("%.0f", x)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Run measures the workloads of cfg, each with a new service and data directory. On an error,
// the report covers the completed rounds.
func Run(ctx context.Context, cfg Config, machine *Machine) (*Report, error) {
	b := &runner{Config: cfg}
	sink, err := b.startSink(ctx)
	if err != nil {
		return &Report{Machine: machine}, err
	}
	defer sink.stop()
	b.sink = sink
	var rounds []*Report
	for err == nil && len(rounds) < b.Rounds {
		round := &Report{Machine: machine}
		if err = b.round(ctx, round); err == nil {
			rounds = append(rounds, round)
		}
	}
	if len(rounds) == 0 {
		return &Report{Machine: machine}, err
	}
	return medians(rounds), err
}

// round measures everything once.
func (b *runner) round(ctx context.Context, report *Report) (err error) {
	before, err := b.measureRaw(ctx)
	if err != nil {
		return err
	}
	raw := []float64{before}
	for _, w := range b.Workloads {
		b.Progress.Show("%s: %s", w.Name, w.About)
		r, err := b.measure(ctx, w)
		if err != nil {
			return fmt.Errorf("%s: %w", w.Name, err)
		}
		after, err := b.measureRaw(ctx)
		if err != nil {
			return err
		}
		raw = append(raw, after)
		r.OfRaw = r.DeliveredPerSecond / ((before + after) / 2)
		before = after
		report.Results = append(report.Results, r)
	}
	report.Raw = median(raw)
	return nil
}

// medians combines rounds. Each rate, share and time is the median over the rounds. Events and
// commits are those of the round with the median rate, or the lower of the middle two. Memory is
// the maximum, lost and duplicate events are sums.
func medians(rounds []*Report) *Report {
	of := func(field func(*Report) float64) float64 {
		var all []float64
		for _, r := range rounds {
			all = append(all, field(r))
		}
		return median(all)
	}
	y := &Report{Machine: rounds[0].Machine, Rounds: len(rounds), Raw: of(func(r *Report) float64 { return r.Raw })}
	for i := range rounds[0].Results {
		sorted := slices.SortedFunc(slices.Values(rounds), func(a, b *Report) int {
			return cmp.Compare(a.Results[i].DeliveredPerSecond, b.Results[i].DeliveredPerSecond)
		})
		r := *sorted[(len(sorted)-1)/2].Results[i]
		for _, field := range []func(*Result) *float64{
			func(r *Result) *float64 { return &r.AcknowledgedPerSecond },
			func(r *Result) *float64 { return &r.DeliveredPerSecond },
			func(r *Result) *float64 { return &r.OfRaw },
			func(r *Result) *float64 { return &r.P50 },
			func(r *Result) *float64 { return &r.P99 },
			func(r *Result) *float64 { return &r.Max },
			func(r *Result) *float64 { return &r.Publish },
			func(r *Result) *float64 { return &r.PublishToOne },
			func(r *Result) *float64 { return &r.CPU },
			func(r *Result) *float64 { return &r.Bytes },
		} {
			*field(&r) = of(func(round *Report) float64 { return *field(round.Results[i]) })
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

// median returns the median of values. It sorts values.
func median(values []float64) float64 {
	slices.Sort(values)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

// profileOf returns the file for the profile of a case, "" for none.
func (b *runner) profileOf(name string) string {
	if b.CPUProfile == "" || len(b.Workloads) == 1 {
		return b.CPUProfile
	}
	extension := filepath.Ext(b.CPUProfile)
	return strings.TrimSuffix(b.CPUProfile, extension) + "-" + name + extension
}
