package cli

import (
	"context"
	"encoding/json"
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
	Data       string   `env:"-" placeholder:"DIR" help:"Where the data directories of the measurement are made and removed again: a folder on the disk that is to be measured. Without it, the folder for temporary files."`
	Time       string   `default:"5s" placeholder:"D" help:"How long events are published in each case."`
	Publishers string   `default:"128" placeholder:"N" help:"How many requests are under way at a time; for raw too."`
	Rounds     string   `default:"1" placeholder:"N" help:"How often all of it is measured, one round after the other. The medians are told, and the most memory: the speed of a shared machine changes from one second to the next."`
	Cores      string   `default:"0" placeholder:"N" help:"How many processors all of it may use: service, receiver and publishers. 0 is all. Linux only."`
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
		err = fmt.Errorf("%w; what is told is of %d of %d rounds", err, report.Rounds, cfg.Rounds)
	}
	if !c.JSON {
		fmt.Fprint(std.Out, report)
		return err
	}
	out := json.NewEncoder(std.Out)
	out.SetIndent("", "  ")
	return errors.Join(err, out.Encode(report))
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
		Workloads:  c.Case,
		Log:        std.Err,
		Progress:   terminal.NewProgress(std.Err),
		Env:        slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "SERVICE_") }),
	}
	f.integer("cores", c.Cores, 0, runtime.NumCPU())
	for _, name := range c.Case {
		if !slices.Contains(bench.Workloads(), name) {
			f.add("case", "must be one of %s, not %q", strings.Join(bench.Workloads(), ", "), name)
		}
	}
	return cfg, f.err()
}

// benchPartCmd is one of the other processes of bench. It ends with its stdin,
// and so never outlives the one that started it.
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

// startProfile writes a processor profile into a file, until the function that
// it returns is called. Without a name it does nothing.
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
