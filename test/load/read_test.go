package load

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"service/test/harness"
)

var (
	readEvents      = flag.Int("read.events", 50_000, "how many events the busy program of TestReadTurns has")
	readConnections = flag.Int("read.connections", 100, "from how many connections it reads at the same time")
	readTime        = flag.Duration("read.time", 4*time.Second, "how long TestReadTurns measures each kind of reads")
	readLoad        = flag.String("read.load", "", "a readRequest as JSON; set by TestReadTurns for its processes")
)

const (
	// Maximum ratio of the duration of the other program's reads and pings to that while a process
	// only uses the processors.
	readSlower = 3.0
	readBusy   = 5 * time.Millisecond // added to the limit, because a busy machine delays single reads
)

// TestReadTurns reads with one program from many connections, and measures the reads and pings of
// another program at the same time. A separate process creates the load; as the control, a process
// only uses the processors. In full:
//
//	go test ./test/load -run ReadTurns -v -read.events 1000000 -read.time 20s -timeout 30m
func TestReadTurns(t *testing.T) {
	harness.Long(t)
	r := newReadTurns(t)
	r.measure("alone", nil)
	control := r.measure("while a process uses the processors", &readRequest{})
	subscription := "/v2/webhooks/subscriptions/" + r.busy
	dryRun := `{"from":"2020-01-01","only":"all","dry_run":true}`
	for _, load := range []readRequest{
		{Name: "dry runs", Method: "POST", URL: subscription + "/replays", Body: dryRun},
		{Name: "lists", Method: "GET", URL: "/v2/deliveries?page[size]=100"},
		{Name: "searches", Method: "GET", URL: "/v2/deliveries?filter[response_status]=418&page[size]=100"},
		{Name: "portal pages", Method: "GET", URL: "/portal/deliveries", Cookies: r.portal()},
	} {
		load.URL, load.Token = r.in.URL()+load.URL, r.token
		got := r.measure(load.Name, &load)
		for what, times := range map[string][2]time.Duration{
			"GET p99":  {harness.Percentile(got.get, 99), harness.Percentile(control.get, 99)},
			"list p99": {harness.Percentile(got.list, 99), harness.Percentile(control.list, 99)},
			"ping p50": {harness.Median(got.ping), harness.Median(control.ping)},
		} {
			if want := time.Duration(readSlower*float64(times[1])) + harness.Scale(readBusy); times[0] > want {
				t.Errorf("%s: got %s %s, want at most %s", load.Name, what, times[0], want)
			}
		}
	}
}

// readTurns is a service with a program that reads and another that is measured.
type readTurns struct {
	t            *testing.T
	in           *harness.Instance
	token, other string // of the programs
	busy, quiet  string // a subscription of each
}

func newReadTurns(t *testing.T) *readTurns {
	r := &readTurns{t: t}
	r.in = harness.NewInstance(t, harness.Build(t), t.TempDir(), "--rate-limit", "0", "--batch-size", "10", "--max-in-flight", "64",
		"--log-level", "warn")
	r.token, r.other = r.in.Token("busy"), r.in.Token("quiet")
	r.in.MustStart()
	receiver := harness.Listen(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s := harness.Subscription{URL: receiver, Events: harness.Events(harness.NumberedEvent)}
	r.busy, r.quiet = r.in.Subscribe(r.token, s), r.in.Subscribe(r.other, s)
	var lines harness.NDJSON
	for n := range *readEvents {
		lines = append(harness.AppendEvent(lines, n), '\n')
		if n%10_000 == 9999 || n == *readEvents-1 {
			r.in.Publish(r.token, lines)
			lines = lines[:0]
		}
	}
	harness.WaitFor(t, "the deliveries", func() bool {
		all, _, err := harness.Get[[]json.RawMessage](r.in, r.token, "/v2/deliveries?filter[status]=pending,retryable&page[size]=1")
		return err == nil && len(all) == 0
	})
	return r
}

// portal opens a session in the portal of the busy program, and returns its cookies.
func (r *readTurns) portal() (cookies string) {
	r.t.Helper()
	var link struct{ Data struct{ URL string } }
	status, err := r.in.Call(r.t.Context(), r.in.PlatformToken(), "POST", r.in.URL()+"/v2/programs/busy/portal_links",
		map[string]string{"role": "read"}, &link)
	if err != nil || status != http.StatusCreated {
		r.t.Fatalf("create a portal link: status %d, %v", status, err)
	}
	at, err := url.Parse(link.Data.URL)
	if err != nil {
		r.t.Fatal(err)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Post(r.in.URL()+at.Path, "application/x-www-form-urlencoded", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp.Body.Close()
	var all []string
	for _, c := range resp.Cookies() {
		all = append(all, c.Name+"="+c.Value)
	}
	if resp.StatusCode != http.StatusSeeOther || len(all) == 0 {
		r.t.Fatalf("open the portal: %s, cookies %q", resp.Status, all)
	}
	return strings.Join(all, "; ")
}

// readTimes is how long each request of the other program took.
type readTimes struct{ get, list, ping []time.Duration }

// measure measures the other program during a load, nil for none.
func (r *readTurns) measure(name string, load *readRequest) (times readTimes) {
	r.t.Helper()
	end := func() string { return "" }
	if load != nil {
		end = r.begin(load)
	}
	one := func(method, path string) time.Duration {
		began := time.Now()
		status, err := r.in.Call(r.t.Context(), r.other, method, r.in.URL()+path, nil, nil)
		if err != nil || status != http.StatusOK {
			r.t.Errorf("%s: %s %s: status %d, %v", name, method, path, status, err)
		}
		return time.Since(began)
	}
	const all = "/v2/webhooks/subscriptions"
	for until := time.Now().Add(*readTime); time.Now().Before(until); {
		for range 4 {
			times.get = append(times.get, one("GET", all+"/"+r.quiet))
			times.list = append(times.list, one("GET", all))
		}
		times.ping = append(times.ping, one("POST", all+"/"+r.quiet+"/ping"))
	}
	r.t.Logf("%s: GET p50 %s, p99 %s; list p50 %s, p99 %s; ping p50 %s, p99 %s; load: %s", name,
		harness.Median(times.get), harness.Percentile(times.get, 99), harness.Median(times.list), harness.Percentile(times.list, 99),
		harness.Median(times.ping), harness.Percentile(times.ping, 99), end())
	return times
}

// begin starts a process with a load. end ends the process, and returns its responses by status.
func (r *readTurns) begin(load *readRequest) (end func() string) {
	r.t.Helper()
	text, err := json.Marshal(load)
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.CommandContext(r.t.Context(), os.Args[0], "-test.run=^TestReadLoad$", "-read.load="+string(text),
		fmt.Sprintf("-read.connections=%d", *readConnections))
	stdin, err := cmd.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	return func() string {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			r.t.Errorf("the load: %v: %s", err, &out)
		}
		line, _, _ := strings.Cut(out.String(), "\n")
		return line
	}
}

// readRequest is a request that a process repeats. Without a URL the process only uses the
// processors.
type readRequest struct{ Name, Method, URL, Body, Token, Cookies string }

// TestReadLoad is the load of TestReadTurns, in a separate process that runs until its input ends.
func TestReadLoad(t *testing.T) {
	if *readLoad == "" {
		t.Skip("only run by TestReadTurns")
	}
	var load readRequest
	if err := json.Unmarshal([]byte(*readLoad), &load); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	if load.URL == "" {
		for range runtime.NumCPU() {
			go func() {
				for n := 0; ; n++ {
				}
			}()
		}
		<-ended
		fmt.Println("none")
		return
	}
	load.repeat(ended)
}

// repeat sends the request from many connections until ended is closed, and prints the responses.
func (load *readRequest) repeat(ended <-chan struct{}) {
	client := &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: *readConnections},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	var mu sync.Mutex
	statuses := make(map[int]int)
	send := func() {
		req, err := http.NewRequest(load.Method, load.URL, strings.NewReader(load.Body))
		if err != nil {
			panic(err)
		}
		if req.Header.Set("Content-Type", "application/json"); load.Cookies != "" {
			req.Header.Set("Cookie", load.Cookies)
			req.Header.Set("Accept", "text/html")
		} else {
			req.Header.Set("Authorization", "Bearer "+load.Token)
		}
		status := 0 // no response
		if resp, err := client.Do(req); err == nil {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			status = resp.StatusCode
		}
		mu.Lock()
		defer mu.Unlock()
		statuses[status]++
	}
	for range *readConnections {
		go func() {
			for {
				send()
			}
		}()
	}
	<-ended
	mu.Lock()
	defer mu.Unlock()
	fmt.Println(statuses)
}
