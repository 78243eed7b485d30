package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"

	"service/internal/bench"
	"service/internal/terminal"
)

type benchCmd struct {
	Data       string   `env:"-" placeholder:"DIR" help:"Directory on the disk to measure, for temporary data. Default: the system's temporary directory."`
	Time       string   `default:"5s" placeholder:"D" help:"Time to publish in each case."`
	Publishers string   `default:"128" placeholder:"N" help:"Publishers at a time, and clients of the raw measurement."`
	Rounds     string   `default:"1" placeholder:"N" help:"Number of rounds. With several, the report has medians and the maximum of memory."`
	Cores      string   `default:"0" placeholder:"N" help:"Processors for service, receiver and publishers together; 0 is all. Linux only."`
	Case       []string `placeholder:"NAME" help:"Cases to measure, which docs/performance.md describes: ${cases}. Default: all."`
	Stored     string   `default:"0" placeholder:"N" help:"Events to store before a case starts."`
	Others     string   `default:"0" placeholder:"N" help:"Subscriptions to other events to create before a case starts."`
	JSON       bool     `name:"json" help:"Print the results as JSON."`
	CPUProfile string   `name:"cpuprofile" placeholder:"FILE" help:"File for a CPU profile of the service in the last round. With several cases, each adds its name."`
}

// Run measures the raw speed of the machine and then the service on it: this binary,
// over HTTP, with every commit synced to disk. The publishers run in this process; the
// service and the receiver run as child processes.
func (c *benchCmd) Run(ctx context.Context, std Streams) error {
	cfg, err := c.config(std)
	if err != nil {
		return err
	}
	if n, _ := strconv.Atoi(c.Cores); n > 0 {
		if err := bench.UseCores(n); err != nil {
			return err
		}
	}
	about, err := bench.NewMachine(c.Data, version())
	if err != nil {
		return err
	}
	if !c.JSON {
		fmt.Fprint(std.Out, about)
	}
	report, err := bench.Run(ctx, cfg, about)
	cfg.Progress.End()
	if ctx.Err() != nil {
		err = errors.New("the measurement was interrupted")
	}
	if err != nil {
		if report.Rounds == 0 {
			return err
		}
		err = fmt.Errorf("%w; the report covers %d of %d rounds", err, report.Rounds, cfg.Rounds)
	}
	if !c.JSON {
		fmt.Fprint(std.Out, report)
		return err
	}
	return errors.Join(err, printJSON(std.Out, report))
}

// config reads the flags.
func (c *benchCmd) config(std Streams) (bench.Config, error) {
	var f configErrors
	cfg := bench.Config{
		Data:       c.Data,
		Time:       f.duration("time", c.Time, 100*time.Millisecond, 10*time.Minute),
		Publishers: f.integer("publishers", c.Publishers, 1, 4096),
		Rounds:     f.integer("rounds", c.Rounds, 1, 99),
		Stored:     f.integer("stored", c.Stored, 0, 1_000_000_000),
		Others:     f.integer("others", c.Others, 0, 1_000_000),
		CPUProfile: c.CPUProfile,
		Workloads:  bench.Workloads(c.Case...),
		Log:        std.Err,
		Progress:   terminal.NewProgress(std.Err),
		Env:        slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "SERVICE_") }),
	}
	f.integer("cores", c.Cores, 0, runtime.NumCPU())
	if info, err := os.Stat(c.Data); c.Data != "" && (err != nil || !info.IsDir()) {
		f.add("data", "must be an existing directory, not %q", c.Data)
	}
	for _, name := range c.Case {
		if len(bench.Workloads(name)) == 0 {
			f.add("case", "must be one of %s, not %q", benchCases(), name)
		}
	}
	return cfg, f.err()
}

// benchCases lists the cases.
func benchCases() string {
	var names []string
	for _, w := range bench.Workloads() {
		names = append(names, w.Name)
	}
	return strings.Join(names, ", ")
}

// benchPartCmd is a child process of bench. It exits at the end of its stdin, so it
// never outlives its parent.
type benchPartCmd struct {
	CPUProfile string   `name:"cpuprofile"`
	Args       []string `arg:"" passthrough:""`
}

func (c *benchPartCmd) Run(ctx context.Context, std Streams) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		io.Copy(io.Discard, std.In)
		cancel()
	}()
	if c.Args[0] == "sink" {
		return bench.RunSink(ctx, std.Out)
	}
	stop, err := startProfile(c.CPUProfile)
	if err != nil {
		return err
	}
	status := Run(ctx, c.Args, Streams{strings.NewReader(""), std.Out, std.Err})
	if err := stop(); err != nil {
		return err
	}
	if status != exitDone {
		return fmt.Errorf("%s ended with status %d", c.Args[0], status)
	}
	return nil
}

// startProfile writes a CPU profile to the named file until stop is called. It does nothing if name
// is empty.
func startProfile(name string) (stop func() error, err error) {
	if name == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}
