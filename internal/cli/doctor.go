package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"service/internal/certs"
	"service/internal/control"
	"service/internal/server"
	"service/internal/terminal"
	"service/store"
	"service/store/replica"
	"service/webhook"
)

type doctorCmd struct {
	serveFlags
	JSON    bool   `name:"json" help:"Print a JSON array."`
	Reading string `default:"20s" env:"-" placeholder:"D" help:"How long the database may be read through, when no server has it open; a running server reads for 3s."`
}

// errCheckFailed is what the command fails with; the checks say why.
var errCheckFailed = errors.New("a check failed")

// Run looks at everything that the service needs, changes nothing, and tells
// what to do. It asks a running server for what is the server's: it never opens
// a database beside it.
func (c *doctorCmd) Run(ctx context.Context, std Streams, conf *configuration, line *kong.Context) error {
	var f configErrors
	reading := f.duration("reading", c.Reading, time.Millisecond, 24*time.Hour)
	if err := f.err(); err != nil {
		return err
	}
	var d diagnosis
	environ := os.Environ() // the settings of a replica take from it what does harm
	s, err := c.settings(io.Discard)
	d.configuration(conf.explain(err))
	if err != nil || len(conf.errs) > 0 {
		s = nil // the defaults stand in for what is wrong: nothing is found by them
	}
	d.environment(environ, line.Model.Node)
	d.clock(time.Now())
	d.openFiles(s)
	d.eventTypes(c.Data)
	if s != nil && s.Replica != nil {
		d.replicaFile(s)
	}
	d.wait(ctx, c, s, reading)
	return d.print(std, c.JSON)
}

// The doctor answers within 10 s also when the server, the bucket or the name
// servers hang.
const (
	dialWait     = time.Second
	examineWait  = 6 * time.Second // the server reads the database through for 3 s
	listenerWait = 2 * time.Second
)

// wait makes the checks that wait for others, at the same time.
func (d *diagnosis) wait(ctx context.Context, c *doctorCmd, s *server.Config, reading time.Duration) {
	dialing, cancel := context.WithTimeout(ctx, dialWait)
	running, err := control.Dial(dialing, c.Data)
	cancel()
	if err == nil {
		defer running.Close()
	}
	checks := []func(d *diagnosis){
		func(d *diagnosis) { d.resolver(ctx) },
		func(d *diagnosis) {
			served := d.data(ctx, c, s, reading, running, err)
			if s != nil {
				d.listener(ctx, s, served)
			}
		},
	}
	if s != nil && errors.Is(err, control.ErrNoServer) && s.Replica != nil && s.Replica.IsS3() {
		// Read before the others begin: it locks the data directory, as they do.
		known, knownErr := store.KnownLease(ctx, c.Data)
		checks = append(checks, func(d *diagnosis) { d.lease(ctx, s, known, knownErr) })
	}
	if s != nil {
		checks = append(checks, func(d *diagnosis) { d.bucketClock(ctx, s.Replica) }, func(d *diagnosis) { d.front(ctx, s) })
	}
	found := make([]diagnosis, len(checks))
	var all sync.WaitGroup
	for i, check := range checks {
		all.Go(func() { check(&found[i]) })
	}
	all.Wait()
	for _, f := range found {
		*d = append(*d, f...)
	}
}

// diagnosis is what the checks came to, in the order they were made.
type diagnosis []store.Finding

func (d *diagnosis) add(level store.Level, check, advice, format string, args ...any) {
	*d = append(*d, store.Finding{Check: check, Level: level, Detail: fmt.Sprintf(format, args...), Advice: advice})
}

func (d *diagnosis) ok(check, format string, args ...any) {
	d.add(store.LevelOK, check, "", format, args...)
}

// print tells the findings, numbered. The error says that one is a failure.
func (d diagnosis) print(std Streams, asJSON bool) error {
	failed := slices.ContainsFunc(d, func(f store.Finding) bool { return f.Level == store.LevelFail })
	if asJSON {
		type numbered struct {
			Number int `json:"number"`
			store.Finding
		}
		all := make([]numbered, len(d))
		for i, f := range d {
			f.Detail, f.Advice = spelled(f.Detail, ownName()), spelled(f.Advice, ownName())
			all[i] = numbered{i + 1, f}
		}
		e := json.NewEncoder(std.Out)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		if err := e.Encode(all); err != nil {
			return err
		}
	} else {
		c := painter(std.Out)
		for i, f := range d {
			fmt.Fprintf(std.Out, "%2d  %s  %s: %s\n", i+1, c.paint(levelColor(f.Level), fmt.Sprintf("%-4s", f.Level)), f.Check, terminal.Line(spelled(f.Detail, ownName())))
			if f.Advice != "" {
				fmt.Fprintf(std.Out, "          %s\n", terminal.Line(spelled(f.Advice, ownName())))
			}
		}
		fmt.Fprintf(std.Out, "\n%s\n", d.summary(c))
	}
	if failed {
		return errCheckFailed
	}
	return nil
}

func levelColor(l store.Level) color {
	switch l {
	case store.LevelOK:
		return green
	case store.LevelWarn:
		return yellow
	}
	return red
}

// summary says how many checks had which outcome.
func (d diagnosis) summary(c colors) string {
	count := make(map[store.Level]int)
	for _, f := range d {
		count[f.Level]++
	}
	text := webhook.Count(len(d), "check") + ": " + c.paint(green, fmt.Sprintf("%d OK", count[store.LevelOK]))
	if n := count[store.LevelWarn]; n > 0 {
		text += ", " + c.paint(yellow, webhook.Count(n, "warning"))
	}
	if n := count[store.LevelFail]; n > 0 {
		text += ", " + c.paint(red, fmt.Sprintf("%d failed", n))
	}
	return text
}

func (d *diagnosis) configuration(err error) {
	if err != nil {
		d.add(store.LevelFail, "configuration", "service config show says where each setting comes from.", "%v", err)
		return
	}
	d.ok("configuration", "all settings are right")
}

// environment looks for variables that do harm, or that were meant to do
// something and do not.
func (d *diagnosis) environment(environ []string, app *kong.Node) {
	var known []string
	for _, c := range commandTree(app, nil) {
		for _, f := range c.flags {
			known = append(known, f.Envs...)
		}
	}
	wrong := false
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		switch {
		case name == "AWS_CA_BUNDLE" && value != "":
			d.add(store.LevelWarn, "environment", "Remove it from the environment of the service; certificates that it named have to be among the system's.", "AWS_CA_BUNDLE is set: the replica's S3 client fails with it, so the service leaves it out")
			wrong = true
		case strings.HasPrefix(name, "SERVICE_") && !slices.Contains(known, name) && !strings.HasPrefix(name, "SERVICE_TEST_"):
			d.add(store.LevelWarn, "environment", "Correct its name, or remove it.", "%s is no setting; the nearest is %s", name, nearest(name, known))
			wrong = true
		}
	}
	if !wrong {
		d.ok("environment", "no variable is in the way")
	}
}

// clock looks at whether the clock can be right, and is kept right.
func (d *diagnosis) clock(now time.Time) {
	synchronized, known := clockSynchronized()
	switch {
	case now.Year() < 2025 || now.Year() > 2200:
		d.add(store.LevelFail, "clock", "Set the clock: certificates, signatures and waits go by it.", "it is %s", webhook.FormatTime(now))
	case known && !synchronized:
		d.add(store.LevelWarn, "clock", "Have it kept right, by systemd-timesyncd or chrony: signatures that are minutes off are refused by receivers.", "it is %s, and the kernel does not know it to be synchronized", webhook.FormatTime(now))
	default:
		d.ok("clock", "it is %s", webhook.FormatTime(now))
	}
}

// bucketClock compares the clock with that of the replica's bucket, if there is
// one that answers.
func (d *diagnosis) bucketClock(ctx context.Context, cfg *replica.Config) {
	if cfg == nil || !cfg.IsS3() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, bucketWait)
	defer cancel()
	ahead, err := replica.BucketClock(ctx, cfg)
	switch {
	case err != nil:
		d.add(store.LevelWarn, "bucket clock", "Check that the bucket can be reached from here.", "it is not known: %v", err)
	case ahead.Abs() > replica.MaxClockDifference:
		direction := "ahead of"
		if ahead < 0 {
			direction = "behind"
		}
		d.add(store.LevelWarn, "bucket clock", "Set this machine's clock, and have it kept right. The lease does not depend on it; a bucket refuses requests whose time is minutes off.", "this machine's clock is %s %s the bucket's", ahead.Abs(), direction)
	default:
		d.ok("bucket clock", "this machine's clock agrees with the bucket's")
	}
}

// openFiles looks at how many files, and so connections, the process may have
// open. Go has raised the soft limit to the hard one.
func (d *diagnosis) openFiles(s *server.Config) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		d.add(store.LevelWarn, "open files", "", "the limit cannot be read: %v", err)
		return
	}
	need := uint64(server.MaxClientConnections + 512)
	if s != nil {
		need = uint64(server.MaxClientConnections + s.MaxConnections)
	}
	need += 128 // the database, logs, and what else there is
	if limit.Max < need {
		d.add(store.LevelWarn, "open files", "Raise it: LimitNOFILE= in a unit of systemd, ulimit -n in a shell.", "this user may have %d open, and the service %d at its busiest", limit.Max, need)
		return
	}
	d.ok("open files", "%d may be open, %d are needed at the most", limit.Max, need)
}

// resolver looks at whether names are resolved at all, as the dispatcher does:
// by Go's own resolver. Any answer will do.
func (d *diagnosis) resolver(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_, err := (&net.Resolver{PreferGo: true}).LookupNS(ctx, ".")
	var answered *net.DNSError
	if err == nil || errors.As(err, &answered) && answered.IsNotFound {
		d.ok("DNS", "names are resolved")
		return
	}
	d.add(store.LevelWarn, "DNS", "See to /etc/resolv.conf, and that the name servers in it can be reached.", "no name server answers: the URLs of subscriptions cannot be resolved")
}

// data looks at the data directory, through the running server when one has it,
// and says whether one has that is no standby. running and err are what
// [control.Dial] returned.
func (d *diagnosis) data(ctx context.Context, c *doctorCmd, s *server.Config, reading time.Duration, running *control.Client, err error) (served bool) {
	if err == nil {
		bounded, cancel := context.WithTimeout(ctx, examineWait)
		defer cancel()
		found, err := running.Examine(bounded)
		if bounded.Err() != nil {
			d.hangs(c.Data)
			return true
		} else if err != nil {
			d.add(store.LevelFail, "server", "See its log; restart it if it hangs.", "one runs on %s and cannot be asked: %v", c.Data, err)
			return true
		}
		served = !slices.ContainsFunc(found, func(f store.Finding) bool { return f.Check == server.StandbyCheck }) // a standby does not listen until it takes over
		if served {
			d.ok("server", "one runs on %s, and answers", c.Data)
		}
		*d = append(*d, found...)
		return served
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.EAGAIN) { // others wait for it already
		d.hangs(c.Data)
		return true
	}
	if !errors.Is(err, control.ErrNoServer) {
		d.add(store.LevelFail, "server", "Call this as the user that the service runs as, or as root.", "%v", err)
		return true
	}
	cfg := store.Config{Dir: c.Data, SecretKeyFile: c.SecretKeyFile, MinFreeDisk: store.AutoFreeDisk}
	if s != nil {
		cfg.MinFreeDisk, cfg.Replica, cfg.Retention = s.MinFreeDisk, s.Replica, s.Retention
	}
	found, err := store.Examine(ctx, cfg, reading)
	if err != nil {
		d.add(store.LevelFail, "server", "Wait for it, or end it: a server that has just begun or is about to end has no socket yet or any more.", "%v, and does not answer", err)
		return true
	}
	d.add(store.LevelWarn, "server", "Start it: service serve.", "none runs on %s", c.Data)
	*d = append(*d, found...)
	if s != nil && s.TLS {
		d.localCA(c.Data, time.Now())
	}
	return false
}

func (d *diagnosis) hangs(dir string) {
	d.add(store.LevelFail, "server", "It hangs, or is stopped: see its log, and restart it.", "one runs on %s, and has not answered within %v", dir, examineWait)
}

// localCA looks at the CA of a data directory that no server has.
func (d *diagnosis) localCA(dir string, now time.Time) {
	path := filepath.Join(dir, certs.CAFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return // it is made with the first start
	}
	ca, parseErr := certs.ParseCA(b)
	if err := errors.Join(err, parseErr); err != nil {
		d.add(store.LevelFail, "certificates", "Put back a copy of "+path+", or remove it and "+certs.CAKeyFile+" to have a new CA made, which clients then have to be given.", "%s: %v", path, err)
		return
	}
	*d = append(*d, certs.Findings([]certs.Certificate{{Names: []string{ca.Subject.CommonName}, Ends: ca.NotAfter}}, now)...)
}

// listener looks at whether the addresses are free, or the running server
// answers at them.
func (d *diagnosis) listener(ctx context.Context, s *server.Config, served bool) {
	if !served {
		d.free(ctx, "listen", s.Listen)
		if s.HTTPListen != "" {
			d.free(ctx, "http-listen", s.HTTPListen)
		}
		return
	}
	if _, port, _ := net.SplitHostPort(s.Listen); port == "0" {
		d.add(store.LevelWarn, "listener", "Name a port by --listen.", "the port is another with each start")
		return
	}
	bounded, cancel := context.WithTimeout(ctx, listenerWait)
	defer cancel()
	if err := askReady(bounded, s); err != nil {
		d.add(store.LevelFail, "listener", "Give this command the settings of the server (--config), or see its log.", "%v", err)
		return
	}
	d.ok("listener", "the server answers at %s, and is ready", s.Listen)
}

// free looks at whether an address can be listened at.
func (d *diagnosis) free(ctx context.Context, flag, address string) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EACCES):
		d.add(store.LevelFail, "listener", "Choose a port above 1023 by --"+flag+", or give the service CAP_NET_BIND_SERVICE.", "%v", err)
	case err != nil:
		d.add(store.LevelFail, "listener", "End what listens there, or choose another address by --"+flag+".", "%v", err)
	default:
		l.Close()
		d.ok("listener", "%s is free", address)
	}
}

// front looks at what stands between the service and those who call it: proxies
// that are believed, and names that must lead here.
func (d *diagnosis) front(ctx context.Context, s *server.Config) {
	if !s.TLS && len(s.TrustedProxies) == 0 {
		d.add(store.LevelWarn, "proxy", "Name the proxy by --trusted-proxy, if there is one: without its word all requests seem to be from it.", "HTTPS is off, and no proxy is trusted")
	}
	for _, p := range s.TrustedProxies {
		if p.Bits() == 0 {
			d.add(store.LevelFail, "proxy", "Name the proxy alone by --trusted-proxy.", "%v trusts everybody's word for where a request is from", p)
		} else {
			d.ok("proxy", "%v is believed", p)
		}
	}
	found := make([]diagnosis, len(s.Domains))
	var all sync.WaitGroup
	for i, name := range s.Domains {
		all.Go(func() { found[i].domain(ctx, name) })
	}
	all.Wait()
	for _, f := range found {
		*d = append(*d, f...)
	}
}

// domain looks at whether a name leads anywhere.
func (d *diagnosis) domain(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	addresses, err := (&net.Resolver{PreferGo: true}).LookupHost(ctx, name)
	if err != nil {
		d.add(store.LevelWarn, "domain", "Have it lead to this machine in DNS: the issuer of its certificate, and partners, look for it there.", "%s has no address", name)
		return
	}
	d.ok("domain", "%s leads to %s", name, strings.Join(addresses, ", "))
}
