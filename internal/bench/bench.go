// Package bench is the load generator and receiver of the command bench. It measures the raw
// speed of the machine and the service on it: the built binary, over HTTP, with every commit
// synced to disk. The publishers run in this process; the service and the receiver run as
// child processes.
package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"

	"service/internal/control"
	"service/internal/terminal"
	"service/webhook"
)

// Config is the configuration of [Run].
type Config struct {
	Binary     string        // the service; empty for this program
	Data       string        // directory for temporary data; empty for the system's
	Time       time.Duration // time to publish in each workload
	Publishers int           // concurrent requests
	Rounds     int
	Stored     int // events in the log before a workload starts
	Others     int // other subscriptions, to other events, before a workload starts
	Workloads  []Workload
	CPUProfile string    // file for a CPU profile of the service; empty for none
	Env        []string  // of the child processes
	Log        io.Writer // stderr of the child processes
	Progress   *terminal.Progress
}

// runner measures the workloads. It is not safe for concurrent use.
type runner struct {
	Config
	sink *process
}

// Workload is one way to use the service.
type Workload struct {
	Name, About   string
	Flags         []string // of serve
	Subscriptions int
	MaxRate       int // expected upper limit of events per second, to size buffers
	Rate          int // events per second of single requests; 0 for as many as possible
	Publishers    int // overrides Config.Publishers unless 0

	// Prepare, unless nil, returns further flags of serve. data will be its data directory.
	Prepare func(data string) ([]string, error)
	// Watch, unless nil, is called before events are published to the service at url. done is
	// called with the result.
	Watch func(url string) (done func(*Result) error, err error)

	// load publishes until subject.until and returns without waiting for the deliveries.
	load func(context.Context, *subject) error
}

// Workloads returns the workloads with these names; all if there are none.
func Workloads(names ...string) []Workload {
	all := []Workload{
		{Name: "single", About: "one event per request, one event per delivery", Flags: []string{"--batch-size", "1", "--max-in-flight", "256"},
			Subscriptions: 1, MaxRate: 100_000, load: requests},
		{Name: "natural", About: "one event per request, default batches", Subscriptions: 1, MaxRate: 100_000, load: requests},
		{Name: "stream", About: "all events in one request, default batches", Subscriptions: 1, MaxRate: 1_000_000, load: stream},
		{Name: "light", About: "50 events per second", Subscriptions: 1, MaxRate: 100, Rate: 50, Publishers: 1, load: requests},
		{Name: "fanout-100", About: "each event to 100 subscriptions, one event at a time", Subscriptions: 100, MaxRate: 2000, load: fanOut},
		{Name: "fanout-10000", About: "each event to 10,000 subscriptions, one event at a time", Subscriptions: 10_000, MaxRate: 20,
			load: fanOut},
	}
	return slices.DeleteFunc(all, func(w Workload) bool { return len(names) > 0 && !slices.Contains(names, w.Name) })
}

// subject is the service under measurement with one workload.
type subject struct {
	*runner
	Workload
	service *process
	client  *http.Client
	token   string
	events  int // maximum number
	until   time.Time

	sent         []int64 // by event number: Unix nanoseconds just before publishing
	next         atomic.Int64
	acknowledged atomic.Int64
	publishedMu  sync.Mutex
	published    []time.Duration // durations of requests with one event
	toOne        []time.Duration // the same, for a program with one subscription
	busy         time.Duration   // from publishing to the last arrival, in fan-out
	scrapes      int             // since the workload started
}

// measure measures one workload.
func (b *runner) measure(ctx context.Context, w Workload) (_ *Result, err error) {
	dir, err := os.MkdirTemp(b.Data, "service-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	w.Publishers = cmp.Or(w.Publishers, b.Publishers)
	s := &subject{runner: b, Workload: w, client: newClient(max(w.Publishers, b.Publishers))}
	defer s.client.CloseIdleConnections()
	data := filepath.Join(dir, "data")
	if s.service, err = b.startService(ctx, w, data); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.service.stop()) }()
	if s.token, err = createToken(ctx, data, "bench"); err != nil {
		return nil, err
	}
	if err := s.prepare(ctx, data); err != nil {
		return nil, err
	}
	done := func(*Result) error { return nil }
	if w.Watch != nil {
		if done, err = w.Watch(s.service.url); err != nil {
			return nil, err
		}
	}
	perScrape, err := s.scrapeCost(ctx)
	if err != nil {
		return nil, err
	}
	before, err := s.scrape(ctx)
	if err != nil {
		return nil, err
	}
	size := databaseSize(data)
	s.scrapes = 0
	began := time.Now()
	s.until = began.Add(b.Time)
	if err := w.load(ctx, s); err != nil {
		return nil, err
	}
	acknowledged := time.Since(began)
	if err := s.awaitArrivals(ctx, int(s.acknowledged.Load())*w.Subscriptions); err != nil {
		return nil, err
	}
	after, err := s.scrape(ctx)
	if err != nil {
		return nil, err
	}
	r := &Result{
		Case: w.Name, About: w.About, Subscriptions: w.Subscriptions, Acknowledged: int(s.acknowledged.Load()), Published: s.published,
		Commits: int(after.commits - before.commits), PeakMemory: s.service.peakMemory(), IdleMemory: int64(before.memory),
	}
	if err := s.tally(ctx, r, began); err != nil {
		return nil, err
	}
	r.AcknowledgedPerSecond = float64(r.Acknowledged) / acknowledged.Seconds()
	if s.busy > 0 {
		r.Seconds = s.busy.Seconds()
	}
	r.DeliveredPerSecond = float64(r.Delivered) / r.Seconds
	r.CPU = max(after.cpu-before.cpu-float64(s.scrapes)*perScrape, 0) * 1e6 / float64(max(r.Delivered, 1))
	if len(s.toOne) > 0 {
		r.Publish, r.PublishToOne = milliseconds(int64(percentile(s.published, 50))), milliseconds(int64(percentile(s.toOne, 50)))
	}
	if err := done(r); err != nil {
		return nil, err
	}
	if err := s.service.stop(); err != nil { // checkpoints the whole write-ahead log
		return nil, err
	}
	r.Bytes = max(float64(databaseSize(data)-size)/float64(max(r.Delivered, 1)), 0)
	return r, nil
}

// prepare stores Stored events, creates Others subscriptions and subscribes to the workload's
// events. data is the data directory.
func (s *subject) prepare(ctx context.Context, data string) error {
	if err := s.store(ctx, s.Stored); err != nil {
		return fmt.Errorf("store %d events: %w", s.Stored, err)
	}
	if err := s.subscribeOthers(ctx); err != nil {
		return fmt.Errorf("create %d other subscriptions: %w", s.Others, err)
	}
	s.events = max(int(float64(s.MaxRate)*s.Time.Seconds()), 10)
	s.sent = make([]int64, s.events)
	if err := s.sinkBegin(ctx, s.events, s.Subscriptions); err != nil {
		return err
	}
	if err := s.subscribe(ctx, s.Subscriptions, eventName); err != nil {
		return err
	}
	if s.Subscriptions > 1 {
		return s.publishToOne(ctx, data)
	}
	return nil
}

// tally compares the sent events with the events that arrived.
func (s *subject) tally(ctx context.Context, r *Result, began time.Time) error {
	resp, err := s.get(ctx, s.sink.url+"/arrivals", "")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if r.Duplicated, err = strconv.Atoi(resp.Header.Get("X-Duplicates")); err != nil {
		return err
	}
	arrivals, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var took []int64
	last := began.UnixNano()
	for slot := range len(arrivals) / 8 {
		at := int64(binary.LittleEndian.Uint64(arrivals[8*slot:]))
		sent := s.sent[slot/s.Subscriptions]
		switch {
		case at != 0 && sent != 0:
			took = append(took, at-sent)
			last = max(last, at)
		case at != 0:
			r.Duplicated++ // an event that was not published
		}
	}
	r.Delivered = len(took)
	r.Lost = r.Acknowledged*s.Subscriptions - r.Delivered
	r.Seconds = time.Duration(last - began.UnixNano()).Seconds()
	if len(took) == 0 {
		return errors.New("no event arrived")
	}
	slices.Sort(took)
	at := func(p int) float64 { return milliseconds(took[(len(took)*p+99)/100-1]) }
	r.P50, r.P99, r.Max = at(50), at(99), at(100)
	return nil
}

func milliseconds(nanoseconds int64) float64 { return float64(nanoseconds) / 1e6 }

// idleTimeout is the time without arrivals after which missing events count as lost.
const idleTimeout = 30 * time.Second

func (s *subject) awaitArrivals(ctx context.Context, want int) error {
	return s.awaitSink(ctx, "events", want, "event")
}

// awaitSink waits until the receiver's counter field reaches want, or has not changed for
// idleTimeout.
func (s *subject) awaitSink(ctx context.Context, field string, want int, noun string) error {
	last, since := -1, time.Now()
	for {
		resp, err := s.get(ctx, fmt.Sprintf("%s/wait?%s=%d", s.sink.url, field, want), "")
		if err != nil {
			return err
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(text))
		if err != nil {
			return err
		}
		if n >= want {
			return nil
		}
		if n > last {
			last, since = n, time.Now()
		}
		if time.Since(since) > idleTimeout {
			return nil // tally counts the missing ones
		}
		s.Progress.Show("%d of %s arrived", n, webhook.Count(want, noun))
	}
}

// requests publishes single events, at Rate unless that is 0. Otherwise each publisher sends its
// next event after the response to the last.
func requests(ctx context.Context, s *subject) error {
	began := time.Now()
	return s.inParallel(ctx, s.Workload.Publishers, func(ctx context.Context, worker *publisher) error {
		for {
			n, at := int(s.next.Add(1))-1, time.Now()
			if s.Rate > 0 {
				at = began.Add(time.Duration(n) * time.Second / time.Duration(s.Rate))
			}
			if n >= s.events || at.After(s.until) {
				return nil
			}
			if wait := time.Until(at); wait > 0 {
				select {
				case <-time.After(wait):
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			if err := worker.publish(ctx, n); err != nil {
				return err
			}
		}
	})
}

// fanOut publishes each event after all deliveries of the previous event have arrived, at least
// three events.
func fanOut(ctx context.Context, s *subject) error {
	worker := &publisher{s: s}
	for n := 0; n < s.events && (n < 3 || time.Now().Before(s.until)); n++ {
		if err := s.awaitIdle(ctx); err != nil {
			return err
		}
		began := time.Now()
		if err := worker.publish(ctx, n); err != nil {
			return err
		}
		if err := s.awaitArrivals(ctx, (n+1)*s.Subscriptions); err != nil {
			return err
		}
		s.busy += time.Since(began)
	}
	s.published = worker.took
	return nil
}

// awaitIdle waits until all arrived deliveries are recorded, so that they do not affect the
// next measurement.
func (s *subject) awaitIdle(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if u, err := s.scrape(ctx); err != nil || u.inFlight == 0 {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stream publishes events as the lines of one request.
func stream(ctx context.Context, s *subject) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return s.lines(ctx, func(w *bufio.Writer) (n int, err error) {
		var line []byte
		for n < s.events {
			if n%64 == 0 && time.Now().After(s.until) {
				break
			}
			line = append(appendEvent(line[:0], eventName, n), '\n')
			s.sent[n] = time.Now().UnixNano()
			if _, err := w.Write(line); err != nil {
				return n, err
			}
			n++
		}
		return n, nil
	}, &s.acknowledged)
}

// store publishes events without subscriptions.
func (s *subject) store(ctx context.Context, events int) error {
	if events == 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var stored atomic.Int64
	return s.lines(ctx, func(w *bufio.Writer) (int, error) {
		var line []byte
		for n := range events {
			if n%10_000 == 0 {
				s.Progress.Show("%s of %s events stored", thousands(float64(n)), thousands(float64(events)))
			}
			line = append(appendEvent(line[:0], storedName, n), '\n')
			if _, err := w.Write(line); err != nil {
				return n, err
			}
		}
		return events, nil
	}, &stored)
}

// lines publishes the NDJSON output of write in one request. It sets acknowledged to the
// number of events that write returns.
func (s *subject) lines(ctx context.Context, write func(*bufio.Writer) (int, error), acknowledged *atomic.Int64) error {
	r, w := io.Pipe()
	written := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewWriterSize(w, 64<<10)
		n, err := write(lines)
		written = n
		w.CloseWithError(errors.Join(err, lines.Flush()))
	}()
	resp, err := s.post(ctx, "/v2/events", "application/x-ndjson", r)
	r.Close() // unblocks write
	<-done
	if err != nil {
		return err
	}
	resp.Body.Close()
	acknowledged.Store(int64(written))
	return nil
}

// publishToOne measures the time to publish an event with a single subscription, in another
// program, for comparison.
func (s *subject) publishToOne(ctx context.Context, data string) error {
	one := &subject{runner: s.runner, Workload: Workload{Subscriptions: 1}, service: s.service, client: s.client, events: 20}
	var err error
	if one.token, err = createToken(ctx, data, "one"); err != nil {
		return err
	}
	one.sent = make([]int64, one.events)
	if err := one.sinkBegin(ctx, one.events, 1); err != nil {
		return err
	}
	if err := one.subscribe(ctx, 1, eventName); err != nil {
		return err
	}
	worker := &publisher{s: one}
	for n := range one.events {
		if err := one.awaitIdle(ctx); err != nil {
			return err
		}
		if err := worker.publish(ctx, n); err != nil {
			return err
		}
		if err := one.awaitArrivals(ctx, n+1); err != nil {
			return err
		}
	}
	s.toOne = worker.took
	return s.sinkBegin(ctx, s.events, s.Subscriptions)
}

// inParallel runs publishers until all are done or one fails, which ends the context of the others.
func (s *subject) inParallel(ctx context.Context, publishers int, publish func(context.Context, *publisher) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for range publishers {
		g.Go(func() error {
			p := &publisher{s: s}
			err := publish(ctx, p)
			s.publishedMu.Lock()
			defer s.publishedMu.Unlock()
			s.published = append(s.published, p.took...)
			return err
		})
	}
	return g.Wait()
}

// publisher publishes events one after the other.
type publisher struct {
	s    *subject
	body []byte
	took []time.Duration // of requests
}

func (p *publisher) publish(ctx context.Context, n int) error {
	p.body = appendEvent(p.body[:0], eventName, n)
	began := time.Now()
	p.s.sent[n] = began.UnixNano()
	resp, err := p.s.post(ctx, "/v2/events", "application/json", bytes.NewReader(p.body))
	if err != nil {
		return err
	}
	resp.Body.Close()
	p.took = append(p.took, time.Since(began))
	p.s.acknowledged.Add(1)
	return nil
}

const (
	eventName  = "content_published"
	storedName = "content_updated" // without subscriptions
	otherName  = "content_deleted" // never published
)

// appendEvent appends an event that contains the number to dst.
func appendEvent(dst []byte, name string, number int) []byte {
	dst = append(append(dst, `{"name":"`...), name...)
	dst = strconv.AppendInt(append(dst, `","version":"1",`+numberField...), int64(number), 10)
	if name == eventName {
		dst = append(dst, `,"channel_ids":[11,12,13]`...)
	}
	return append(dst, '}')
}

// measureRaw returns the maximum rate of requests per second of a plain HTTP client to the
// receiver, with the header and body of a delivery. It tries two numbers of connections.
func (b *runner) measureRaw(ctx context.Context) (best float64, err error) {
	b.Progress.Show("raw: plain HTTP requests")
	id, subscription := webhook.NewID(), webhook.NewID()
	body := webhook.AppendBody(nil, id, subscription, "bench", [][]byte{appendEvent(nil, eventName, 0)})
	header := make(http.Header)
	now := time.Now()
	head := webhook.RequestHead{
		DeliveryID: id, SubscriptionID: subscription, ProgramID: "bench", At: now,
		Signature: webhook.NewSigningSecret().Sign(id, now, body),
	}
	for _, line := range head.AppendHeader(nil) {
		header.Set(line[0], line[1])
	}
	for _, connections := range []int{8, b.Publishers} {
		n, err := b.plainClient(ctx, connections, header, body)
		if err != nil {
			return 0, fmt.Errorf("raw: %w", err)
		}
		best = max(best, n)
	}
	return best, nil
}

// plainClient returns the rate of requests per second over the given number of connections.
func (b *runner) plainClient(ctx context.Context, connections int, header http.Header, body []byte) (float64, error) {
	s := &subject{runner: b, client: newClient(connections)}
	defer s.client.CloseIdleConnections()
	if err := s.sinkBegin(ctx, 1, 1); err != nil {
		return 0, err
	}
	var posts atomic.Int64
	began := time.Now()
	until := began.Add(b.Time / 4)
	err := s.inParallel(ctx, connections, func(ctx context.Context, _ *publisher) error {
		for time.Now().Before(until) {
			if err := s.postRaw(ctx, header, body); err != nil {
				return err
			}
			posts.Add(1)
		}
		return nil
	})
	return float64(posts.Load()) / time.Since(began).Seconds(), err
}

func (s *subject) postRaw(ctx context.Context, header http.Header, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, "POST", s.sink.url+"/d/0", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = header
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	return err
}

func newClient(connections int) *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections, DisableCompression: true}}
}

// subscribeOthers creates subscriptions to an event that is never published.
func (s *subject) subscribeOthers(ctx context.Context) error {
	if s.Others == 0 {
		return nil
	}
	if err := s.sinkBegin(ctx, 0, 0); err != nil {
		return err
	}
	return s.subscribe(ctx, s.Others, otherName)
}

// subscribe creates subscriptions to one event, each with its own path, and waits for their pings
// to arrive.
func (s *subject) subscribe(ctx context.Context, subscriptions int, event string) error {
	var next atomic.Int64
	err := s.inParallel(ctx, s.Config.Publishers, func(ctx context.Context, _ *publisher) error {
		for {
			n := int(next.Add(1)) - 1
			if n >= subscriptions {
				return nil
			}
			body, err := json.Marshal(map[string]any{
				"url":    fmt.Sprintf("%s/d/%d", s.sink.url, n),
				"events": []map[string]string{{"name": event, "version": "1"}},
			})
			if err != nil {
				return err
			}
			resp, err := s.post(ctx, "/v2/webhooks/subscriptions", "application/json", bytes.NewReader(body))
			if err != nil {
				return fmt.Errorf("create a subscription: %w", err)
			}
			resp.Body.Close()
			if n%100 == 99 {
				s.Progress.Show("%d of %d subscriptions created", n+1, subscriptions)
			}
		}
	})
	if err != nil {
		return err
	}
	return s.awaitSink(ctx, "pings", subscriptions, "ping")
}

func (s *subject) sinkBegin(ctx context.Context, events, subscriptions int) error {
	resp, err := s.do(ctx, "POST", fmt.Sprintf("%s/begin?events=%d&subscriptions=%d", s.sink.url, events, subscriptions), "", "", nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func (s *subject) post(ctx context.Context, path, mediaType string, body io.Reader) (*http.Response, error) {
	return s.do(ctx, "POST", s.service.url+path, s.token, mediaType, body)
}

func (s *subject) get(ctx context.Context, url, token string) (*http.Response, error) {
	return s.do(ctx, "GET", url, token, "", nil)
}

// do sends a request. Any status other than 2xx is an error. The caller must close the response
// body; that of a POST is already read.
func (s *subject) do(ctx context.Context, method, url, token, mediaType string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	if mediaType != "" {
		req.Header.Set("Content-Type", mediaType)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode > 299 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		resp.Body.Close()
		return nil, fmt.Errorf("%s %s: status %d: %s", method, req.URL.Path, resp.StatusCode, text)
	}
	if method == "POST" {
		_, err = io.Copy(io.Discard, resp.Body)
	}
	return resp, err
}

// usage contains values of the service's metrics.
type usage struct {
	cpu     float64 // seconds
	memory  float64 // resident bytes
	commits uint64
	// inFlight is the number of deliveries in flight, until they are recorded.
	inFlight float64
}

// scrape reads the service's metrics.
func (s *subject) scrape(ctx context.Context) (l usage, err error) {
	s.scrapes++
	resp, err := s.get(ctx, s.service.url+"/metrics", "")
	if err != nil {
		return l, err
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	all, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return l, err
	}
	if f := all["process_cpu_seconds_total"]; f != nil {
		l.cpu = f.Metric[0].GetCounter().GetValue()
	}
	if f := all["process_resident_memory_bytes"]; f != nil {
		l.memory = f.Metric[0].GetGauge().GetValue()
	}
	if f := all["webhooks_commit_duration_seconds"]; f != nil {
		l.commits = f.Metric[0].GetHistogram().GetSampleCount()
	}
	for _, m := range all["webhooks_deliveries_in_flight"].GetMetric() {
		l.inFlight += m.GetGauge().GetValue()
	}
	return l, nil
}

// scrapeCost returns the CPU time in seconds that a scrape costs an idle service. It is
// subtracted from the CPU time of a workload.
func (s *subject) scrapeCost(ctx context.Context) (float64, error) {
	const scrapes = 20
	if err := s.awaitIdle(ctx); err != nil {
		return 0, err
	}
	first, err := s.scrape(ctx)
	last := first
	for n := 0; n < scrapes && err == nil; n++ {
		last, err = s.scrape(ctx)
	}
	return (last.cpu - first.cpu) / scrapes, err
}

// databaseSize returns the size of a workload's database in bytes, without its write-ahead log,
// which takes up to 4 MB while the service runs.
func databaseSize(data string) int64 {
	f, err := os.Stat(filepath.Join(data, "service.db"))
	if err != nil {
		return 0
	}
	return f.Size()
}

// process is a child process of the measurement.
type process struct {
	url     string
	cmd     *exec.Cmd
	stdin   io.Closer
	output  chan struct{} // closed when stdout is read to the end
	stopped bool
}

func (b *runner) startSink(ctx context.Context) (*process, error) {
	return b.start(ctx, func(line string) (string, bool) { return line, true }, "sink")
}

func (b *runner) startService(ctx context.Context, w Workload, data string) (*process, error) {
	args := append([]string{
		"--cpuprofile", b.profileOf(w.Name), "serve", "--data", data, "--litestream", "off",
		"--listen", "127.0.0.1:0", "--tls", "off", "--allow-http", "--allow-destination", "127.0.0.0/8",
		"--rate-limit", "0", "--max-subscriptions", "0", "--log-level", "warn",
	}, w.Flags...)
	if w.Prepare != nil {
		flags, err := w.Prepare(data)
		if err != nil {
			return nil, err
		}
		args = append(args, flags...)
	}
	return b.start(ctx, func(line string) (string, bool) {
		f := strings.Fields(line)
		if len(f) == 2 && f[0] == "API" {
			return f[1], true
		}
		return "", false
	}, args...)
}

// start starts a child process and waits until address finds its URL in a line of its output.
func (b *runner) start(ctx context.Context, address func(line string) (string, bool), args ...string) (*process, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	binary = cmp.Or(b.Binary, binary)
	p := &process{cmd: exec.CommandContext(ctx, binary, append([]string{"bench-part"}, args...)...), output: make(chan struct{})}
	p.cmd.Stderr = b.Log
	p.cmd.Env = b.Env
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	found := make(chan string, 1)
	go func() {
		defer close(p.output)
		defer close(found)
		lines := bufio.NewScanner(stdout)
		for sent := false; lines.Scan(); {
			if url, ok := address(lines.Text()); ok && !sent {
				sent = true
				found <- url
			}
		}
	}()
	if p.url = <-found; p.url == "" {
		return nil, errors.Join(fmt.Errorf("%s did not start", args[0]), p.stop())
	}
	return p, nil
}

// stop shuts the process down and waits for it. Further calls do nothing.
func (p *process) stop() error {
	if p.stopped {
		return nil
	}
	p.stopped = true
	p.stdin.Close()
	<-p.output
	return p.cmd.Wait()
}

// peakMemory returns the peak of resident memory in bytes, 0 if unknown.
func (p *process) peakMemory() int64 {
	n, _ := processMemory(p.cmd.Process.Pid, "VmHWM")
	return n
}

func createToken(ctx context.Context, data, program string) (string, error) {
	admin, err := control.Dial(ctx, data)
	if err != nil {
		return "", err
	}
	defer admin.Close()
	return admin.CreateToken(ctx, webhook.NewToken{
		ProgramID: program, UserID: "bench", Scopes: []webhook.Scope{webhook.ScopeWebhooksWrite, webhook.ScopeEventsWrite},
	})
}
