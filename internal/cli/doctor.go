package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
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
	"service/store/datadir"
	"service/store/doctor"
	"service/store/replica"
	"service/webhook"
)

type doctorCmd struct {
	serveFlags
	JSON    bool   `name:"json" help:"Print a JSON array."`
	Reading string `default:"20s" env:"-" placeholder:"D" help:"Time limit for checking the database if no server runs; a running server takes up to 3s."`
}

// errCheckFailed is the error of the command. The printed findings contain the details.
var errCheckFailed = errors.New("a check failed")

// Run checks everything that the service needs and prints what to do. It changes nothing.
// If a server is running, Run asks it and never opens the database itself.
func (c *doctorCmd) Run(ctx context.Context, std Streams, conf *configuration, line *kong.Context) error {
	var f configErrors
	reading := f.duration("reading", c.Reading, time.Millisecond, 24*time.Hour)
	if err := f.err(); err != nil {
		return err
	}
	var d diagnosis
	environ := os.Environ() // before settings, which removes AWS_CA_BUNDLE
	s, err := c.settings(io.Discard)
	d.configuration(conf.explain(err))
	if err != nil || len(conf.errs) > 0 {
		s = nil // invalid settings were replaced by defaults; do not check those
	}
	d.environment(environ, line.Model.Node)
	d.clock(time.Now())
	d.openFiles(s)
	d.eventTypes(c.Data)
	if s != nil && s.Replica != nil {
		d.replicaFile(s)
	}
	d.remote(ctx, c, s, reading)
	return d.print(std, c.JSON)
}

// Time limits of the checks. Together they bound the command to 10 s, even if the server,
// the bucket or the name servers hang.
const (
	dialWait     = time.Second
	examineWait  = 6 * time.Second // the server checks the database for up to 3 s
	listenerWait = 2 * time.Second
)

// remote runs the checks that wait for other processes and hosts, concurrently.
func (d *diagnosis) remote(ctx context.Context, c *doctorCmd, s *server.Config, reading time.Duration) {
	dialing, cancel := context.WithTimeout(ctx, dialWait)
	running, err := control.Dial(dialing, c.Data)
	cancel()
	if err == nil {
		defer running.Close()
	}
	checks := []func(d *diagnosis){
		func(d *diagnosis) { d.resolver(ctx) },
		func(d *diagnosis) {
			served, standby := d.data(ctx, c, s, reading, running, err)
			if s != nil && !standby {
				d.listener(ctx, s, served)
			}
		},
	}
	switch {
	case s == nil || s.Replica == nil || !errors.Is(err, control.ErrNoServer):
	case s.Lease == 0:
		checks = append(checks, func(d *diagnosis) { d.writer(ctx, s) })
	default:
		// Read this before the other checks start: all of them lock the data directory.
		known, knownErr := datadir.KnownLease(ctx, c.Data)
		checks = append(checks, func(d *diagnosis) { d.lease(ctx, s, known, knownErr) })
	}
	if s != nil {
		checks = append(checks, func(d *diagnosis) { d.bucketClock(ctx, s.Replica) }, func(d *diagnosis) { d.front(ctx, s) },
			func(d *diagnosis) { d.provider(ctx, s) })
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

// diagnosis contains the findings of the checks, in order.
type diagnosis []doctor.Finding

func (d *diagnosis) add(level doctor.Level, check, advice, format string, args ...any) {
	*d = append(*d, doctor.Finding{Check: check, Level: level, Detail: fmt.Sprintf(format, args...), Advice: advice})
}

func (d *diagnosis) ok(check, format string, args ...any) {
	d.add(doctor.LevelOK, check, "", format, args...)
}

// print prints the numbered findings. It returns errCheckFailed if one is a failure.
func (d diagnosis) print(std Streams, asJSON bool) error {
	failed := slices.ContainsFunc(d, func(f doctor.Finding) bool { return f.Level == doctor.LevelFail })
	if asJSON {
		type numbered struct {
			Number int `json:"number"`
			doctor.Finding
		}
		all := make([]numbered, len(d))
		for i, f := range d {
			f.Detail, f.Advice = spelled(f.Detail, commandName()), spelled(f.Advice, commandName())
			all[i] = numbered{i + 1, f}
		}
		if err := printJSON(std.Out, all); err != nil {
			return err
		}
	} else {
		c := painter(std.Out)
		for i, f := range d {
			level := c.paint(levelColor(f.Level), fmt.Sprintf("%-4s", f.Level))
			fmt.Fprintf(std.Out, "%2d  %s  %s: %s\n", i+1, level, f.Check, terminal.Line(spelled(f.Detail, commandName())))
			if f.Advice != "" {
				fmt.Fprintf(std.Out, "          %s\n", terminal.Line(spelled(f.Advice, commandName())))
			}
		}
		fmt.Fprintf(std.Out, "\n%s\n", d.summary(c))
	}
	if failed {
		return errCheckFailed
	}
	return nil
}

func levelColor(l doctor.Level) color {
	switch l {
	case doctor.LevelOK:
		return green
	case doctor.LevelWarn:
		return yellow
	}
	return red
}

// summary counts the checks by level.
func (d diagnosis) summary(c colors) string {
	count := make(map[doctor.Level]int)
	for _, f := range d {
		count[f.Level]++
	}
	text := webhook.Count(len(d), "check") + ": " + c.paint(green, fmt.Sprintf("%d OK", count[doctor.LevelOK]))
	if n := count[doctor.LevelWarn]; n > 0 {
		text += ", " + c.paint(yellow, webhook.Count(n, "warning"))
	}
	if n := count[doctor.LevelFail]; n > 0 {
		text += ", " + c.paint(red, fmt.Sprintf("%d failed", n))
	}
	return text
}

func (d *diagnosis) configuration(err error) {
	if err != nil {
		d.add(doctor.LevelFail, "configuration", "Run service config show to see the source of each setting.", "%v", err)
		return
	}
	d.ok("configuration", "all settings are valid")
}

// environment looks for harmful and for misspelled variables.
func (d *diagnosis) environment(environ []string, app *kong.Node) {
	before := len(*d)
	if slices.ContainsFunc(environ, func(v string) bool { return strings.HasPrefix(v, "AWS_CA_BUNDLE=") && v != "AWS_CA_BUNDLE=" }) {
		d.add(doctor.LevelWarn, "environment", "Remove it from the environment and add its certificates to the system's.",
			"AWS_CA_BUNDLE is set; the service ignores it because the replica's S3 client fails with it")
	}
	environ = slices.DeleteFunc(environ, func(v string) bool { return strings.HasPrefix(v, "SERVICE_TEST_") })
	for _, warning := range unknownVariables(app, environ) {
		d.add(doctor.LevelWarn, "environment", "Correct the name or remove the variable.", "%s", warning)
	}
	if len(*d) == before {
		d.ok("environment", "no unknown or harmful variables")
	}
}

// clock checks that the time is plausible and the clock synchronized.
func (d *diagnosis) clock(now time.Time) {
	synchronized, known := clockSynchronized()
	switch {
	case now.Year() < 2025 || now.Year() > 2200:
		d.add(doctor.LevelFail, "clock", "Set the clock. Certificates, signatures and retries depend on it.",
			"the time is %s", webhook.FormatTime(now))
	case known && !synchronized:
		d.add(doctor.LevelWarn, "clock",
			"Run systemd-timesyncd or chrony. Receivers reject signatures whose time is minutes off.",
			"the time is %s; the clock is not synchronized", webhook.FormatTime(now))
	default:
		d.ok("clock", "the time is %s", webhook.FormatTime(now))
	}
}

// bucketClock compares the clock with that of the replica's bucket, if there is one.
func (d *diagnosis) bucketClock(ctx context.Context, cfg *replica.Config) {
	if cfg == nil || !cfg.IsS3() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, bucketWait)
	defer cancel()
	ahead, err := replica.BucketClock(ctx, cfg)
	switch {
	case err != nil:
		d.add(doctor.LevelWarn, "bucket clock", "Check that this host can reach the bucket.", "failed to read the bucket's time: %v", err)
	case ahead.Abs() > replica.MaxClockDifference:
		direction := "ahead of"
		if ahead < 0 {
			direction = "behind"
		}
		d.add(doctor.LevelWarn, "bucket clock",
			"Synchronize this host's clock. A bucket refuses requests whose time is minutes off. The lease does not depend on the clock.",
			"this host's clock is %s %s the bucket's", ahead.Abs(), direction)
	default:
		d.ok("bucket clock", "this host's clock agrees with the bucket's")
	}
}

// openFiles checks the limit of open files, which bounds connections. Go has raised the soft limit
// to the hard limit.
func (d *diagnosis) openFiles(s *server.Config) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		d.add(doctor.LevelWarn, "open files", "", "failed to read the limit: %v", err)
		return
	}
	need := uint64(server.MaxClientConnections + 512)
	if s != nil {
		need = uint64(server.MaxClientConnections + s.MaxConnections)
	}
	need += 128 // database, logs and other files
	if limit.Max < need {
		d.add(doctor.LevelWarn, "open files", "Raise the limit: LimitNOFILE= in a systemd unit, ulimit -n in a shell.",
			"the limit is %d, and the service needs up to %d", limit.Max, need)
		return
	}
	d.ok("open files", "the limit is %d, and the service needs up to %d", limit.Max, need)
}

// resolver checks that name servers answer. Like the dispatcher, it uses Go's resolver.
// Any answer counts.
func (d *diagnosis) resolver(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_, err := (&net.Resolver{PreferGo: true}).LookupNS(ctx, ".")
	var answered *net.DNSError
	if err == nil || errors.As(err, &answered) && answered.IsNotFound {
		d.ok("DNS", "names resolve")
		return
	}
	d.add(doctor.LevelWarn, "DNS", "Check /etc/resolv.conf and that this host can reach the name servers in it.",
		"no name server responds; the hosts of subscriptions cannot be resolved")
}

// data checks the data directory, through the running server if there is one. It reports whether a
// server is running, and whether that server is a standby. running and err are the results of
// [control.Dial].
func (d *diagnosis) data(
	ctx context.Context, c *doctorCmd, s *server.Config, reading time.Duration, running *control.Client, err error,
) (served, standby bool) {
	if err == nil {
		bounded, cancel := context.WithTimeout(ctx, examineWait)
		defer cancel()
		var found []doctor.Finding
		err := running.Call(bounded, http.MethodGet, "/v2/owner/examination", nil, &found)
		if bounded.Err() != nil {
			d.hangs(c.Data)
			return true, false
		} else if err != nil {
			d.add(doctor.LevelFail, "server", "Check its log; restart it if it hangs.",
				"a server is running on %s, but did not answer: %v", c.Data, err)
			return true, false
		}
		standby = slices.ContainsFunc(found, func(f doctor.Finding) bool { return f.Check == server.StandbyCheck })
		if !standby {
			d.ok("server", "running on %s", c.Data)
		}
		*d = append(*d, found...)
		return true, standby
	}
	// The socket's queue is full (EAGAIN) if other commands wait for a server that hangs.
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.EAGAIN) {
		d.hangs(c.Data)
		return true, false
	}
	if !errors.Is(err, control.ErrNoServer) {
		d.add(doctor.LevelFail, "server", "Run this as the service's user, or as root.", "%v", err)
		return true, false
	}
	catalog, err := server.LoadCatalog(c.Data)
	if err != nil {
		catalog = nil // another check reports it
	}
	cfg := doctor.Config{Dir: c.Data, SecretKeyFile: c.SecretKeyFile, MinFreeDisk: doctor.AutoFreeDisk, Catalog: catalog}
	if s != nil {
		cfg.Dir, cfg.SecretKeyFile, cfg.MinFreeDisk, cfg.Retention = s.Dir, s.Data.SecretKeyFile, s.MinFreeDisk, s.Retention
		cfg.Replica, cfg.VerifyReplica = s.Replica, s.VerifyReplica
	}
	found, err := doctor.Examine(ctx, cfg, reading)
	if err != nil {
		d.add(doctor.LevelFail, "server", "Wait for it or stop it. A server has no socket while it starts and shuts down.",
			"%v, but does not answer", err)
		return true, false
	}
	d.add(doctor.LevelWarn, "server", "Start it: service serve.", "no server is running on %s", c.Data)
	*d = append(*d, found...)
	if s != nil && s.TLS {
		d.localCA(c.Data, time.Now())
	}
	return false, false
}

func (d *diagnosis) hangs(dir string) {
	d.add(doctor.LevelFail, "server", "It hangs or is suspended: check its log and restart it.",
		"a server is running on %s, but did not answer within %v", dir, examineWait)
}

// localCA checks the local CA in a data directory on which no server is running.
func (d *diagnosis) localCA(dir string, now time.Time) {
	path := filepath.Join(dir, certs.CAFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return // the first start creates it
	}
	ca, parseErr := certs.ParseCA(b)
	if err := errors.Join(err, parseErr); err != nil {
		d.add(doctor.LevelFail, "certificates",
			"Restore "+path+" from a copy. Or remove it and "+certs.CAKeyFile+" to create a new CA, and give that to the clients.",
			"%s: %v", path, err)
		return
	}
	*d = append(*d, certs.Findings([]certs.Certificate{{Names: []string{ca.Subject.CommonName}, Ends: ca.NotAfter}}, now)...)
}

// listener checks that the running server answers at its address or, if none runs, that
// the addresses are free.
func (d *diagnosis) listener(ctx context.Context, s *server.Config, served bool) {
	if !served {
		d.free(ctx, "listen", s.Listen)
		if s.HTTPListen != "" {
			d.free(ctx, "http-listen", s.HTTPListen)
		}
		return
	}
	if _, port, _ := net.SplitHostPort(s.Listen); port == "0" {
		d.add(doctor.LevelWarn, "listener", "Set a port with --listen.", "the port changes with every start")
		return
	}
	bounded, cancel := context.WithTimeout(ctx, listenerWait)
	defer cancel()
	if err := askReady(bounded, s); err != nil {
		d.add(doctor.LevelFail, "listener",
			doctor.Remedy(err, "Run this command with the server's settings (--config), or check the server's log."), "%v", err)
		return
	}
	d.ok("listener", "the server at %s is ready", s.Listen)
}

// free checks that the service can listen on an address.
func (d *diagnosis) free(ctx context.Context, flag, address string) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EACCES):
		d.add(doctor.LevelFail, "listener", "Choose a port above 1023 with --"+flag+", or give the service CAP_NET_BIND_SERVICE.", "%v", err)
	case err != nil:
		d.add(doctor.LevelFail, "listener", "Stop the process that listens there, or choose another address with --"+flag+".", "%v", err)
	default:
		l.Close()
		d.ok("listener", "%s is free", address)
	}
}

// front checks the path from clients to the service: trusted proxies and domain names.
func (d *diagnosis) front(ctx context.Context, s *server.Config) {
	if !s.TLS && len(s.TrustedProxies) == 0 {
		d.add(doctor.LevelWarn, "proxy",
			"If the service is behind a proxy, set --trusted-proxy. Otherwise all requests seem to come from the proxy.",
			"HTTPS is off, and no proxy is trusted")
	}
	for _, p := range s.TrustedProxies {
		if p.Bits() == 0 {
			d.add(doctor.LevelFail, "proxy", "Set --trusted-proxy to the proxy's own address.",
				"%v trusts every client to state its own address", p)
		} else {
			d.ok("proxy", "%v is trusted", p)
		}
	}
	if !s.TLS && len(s.TrustedProxies) > 0 && s.PublicURL == "" {
		d.add(doctor.LevelWarn, "public URL", "Set --public-url to the URL that clients use, such as https://hooks.example.com.",
			"links of the portal, invitations and alerts have the address %s, which only the proxy reaches", s.Listen)
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

// domain checks that a name resolves to an address, and that an address belongs to this host.
func (d *diagnosis) domain(ctx context.Context, name string) {
	if certs.IsAddress(name) {
		d.address(name)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	addresses, err := (&net.Resolver{PreferGo: true}).LookupHost(ctx, name)
	if err != nil {
		d.add(doctor.LevelWarn, "domain",
			"Add a DNS record that points to this host. The certificate authority and the API clients need it.",
			"%s has no address", name)
		return
	}
	d.ok("domain", "%s resolves to %s", name, strings.Join(addresses, ", "))
}

// address checks whether an address of --domain is one of this host.
func (d *diagnosis) address(domain string) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		d.add(doctor.LevelWarn, "domain", "", "failed to list this host's addresses: %v", err)
		return
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap().String() == domain {
			d.ok("domain", "%s is an address of this host", domain)
			return
		}
	}
	d.ok("domain", "%s is not an address of this host; behind NAT, forward port 443 or 80 to it", domain)
}
