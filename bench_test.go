package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"service/webhook"
)

// BenchmarkEndToEnd measures the built binary from the publisher to the
// subscriber, both of which are part of this process and share its machine:
//
//	go test -run '^$' -bench EndToEnd -benchtime 5s .
//
// raw is what the machine can do at all: a bare client of net/http posting a
// delivery's bytes to the same bare receiver. of_raw in the other lines is
// delivered events per second divided by the best of raw in the same run. The
// percentiles are from before the publisher's request to the arrival of the
// event at the subscriber; at saturation they are mostly time in the queue.
// cpu_µs/event is the time that the service's process had on a processor.
func BenchmarkEndToEnd(b *testing.B) {
	binary := buildBinary(b)
	best := benchmarkRaw(b)
	for _, batch := range []int{100, 1} {
		in := newInstance(b, binary, b.TempDir(), "--batch-size", strconv.Itoa(batch))
		s := &subject{client: in.client, token: in.token("bench"), raw: best}
		run := in.mustStart()
		s.base, _ = in.await(b.Context())
		s.cpu = func() time.Duration { return processorTime(b, run.process.Pid) }
		s.subscribe(b)
		for _, publishers := range []int{1, 32, 256} {
			b.Run(fmt.Sprintf("saturated/batch=%d/publishers=%d", batch, publishers), func(b *testing.B) { s.saturate(b, publishers) })
		}
		b.Run(fmt.Sprintf("stream/batch=%d", batch), s.stream)
		b.Run(fmt.Sprintf("paced/batch=%d/rate=50", batch), func(b *testing.B) { s.pace(b, 50) })
		in.kill(run)
	}
}

// BenchmarkInProcess is the saturated case with the service inside this
// process, for a profile of it all:
//
//	go test -run '^$' -bench InProcess/batch=100 -benchtime 5s -cpuprofile cpu.out .
func BenchmarkInProcess(b *testing.B) {
	for _, batch := range []int{100, 1} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) { benchmarkInProcess(b, batch) })
	}
}

func benchmarkInProcess(b *testing.B, batch int) {
	data := b.TempDir()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var token bytes.Buffer
	if status := run(ctx, []string{"token", "create", "--data", data, "--program", "bench", "--user", "tester",
		"--scope", "webhooks.write,events.write"}, streams{nil, &token, os.Stderr}); status != exitDone {
		b.Fatalf("token create: exit status %d", status)
	}
	stdout, out := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"serve", "--data", data, "--listen", "127.0.0.1:0", "--tls", "off", "--allow-http",
			"--allow-destination", "127.0.0.0/8", "--log-level", "warn", "--rate-limit", "0", "--batch-size", strconv.Itoa(batch)}, streams{nil, out, os.Stderr})
		out.Close()
	}()
	s := &subject{token: strings.TrimSpace(token.String()), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512}}}
	lines := bufio.NewScanner(stdout)
	for s.base == "" && lines.Scan() {
		if f := strings.Fields(lines.Text()); len(f) == 2 && f[0] == "API" {
			s.base = f[1]
		}
	}
	go io.Copy(io.Discard, stdout) // until out is closed
	if s.base == "" {
		b.Fatalf("serve: exit status %d", <-ended)
	}
	s.cpu = func() time.Duration { return processorTime(b, os.Getpid()) }
	s.subscribe(b)
	b.Run("publishers=256", func(b *testing.B) { s.saturate(b, 256) })
	s.client.CloseIdleConnections()
	cancel()
	if status := <-ended; status != exitDone {
		b.Errorf("serve: exit status %d", status)
	}
}

// benchmarkRaw returns the most requests per second.
func benchmarkRaw(b *testing.B) (best float64) {
	event := benchEvent(nil, 12345)
	body := webhook.AppendBody(nil, webhook.NewID(), webhook.NewID(), "bench", [][]byte{event})
	url := listenLoopback(b, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
	for _, connections := range []int{8, 64} {
		b.Run(fmt.Sprintf("raw/connections=%d", connections), func(b *testing.B) {
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}}
			defer client.CloseIdleConnections()
			var left atomic.Int64
			left.Store(int64(b.N))
			var working sync.WaitGroup
			for range connections {
				working.Go(func() {
					for left.Add(-1) >= 0 {
						if err := benchPost(client, "", url, bytes.NewReader(body)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			working.Wait()
			rate := float64(b.N) / b.Elapsed().Seconds()
			b.ReportMetric(rate, "posts/s")
			if b.N > 1 {
				best = max(best, rate)
			}
		})
	}
	return best
}

func benchPost(client *http.Client, token, url string, body io.Reader) error {
	req, err := http.NewRequest("POST", url, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode > 299 {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

const benchField = `"content_id":`

// benchEvent appends an event with a number in it to dst.
func benchEvent(dst []byte, number int) []byte {
	return fmt.Appendf(dst, `{"name":"content_published","version":"1",`+benchField+`%d,"channel_ids":[11,12,13]}`, number)
}

// subject is a service that is measured, with its one subscriber.
type subject struct {
	client      *http.Client
	base, token string
	cpu         func() time.Duration
	raw         float64 // requests per second of the bare client, 0 if not known
	trip        atomic.Pointer[trip]
}

func (s *subject) subscribe(b *testing.B) {
	b.Helper()
	in := &instance{tb: b, client: s.client, base: s.base}
	in.subscribe(s.token, newSubscription{URL: listenLoopback(b, s), Events: eventList("content_published")})
}

// ServeHTTP is the subscriber.
func (s *subject) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	now := time.Now()
	t := s.trip.Load()
	if err != nil || t == nil {
		return
	}
	t.arrive(body, now)
}

// measure has publish publish b.N events, waits for the last to arrive, and
// reports.
func (s *subject) measure(b *testing.B, publish func(*trip)) {
	t := newTrip(b.N)
	s.trip.Store(t)
	before := s.cpu()
	b.ResetTimer()
	publish(t)
	acknowledged := b.Elapsed()
	if b.Failed() {
		b.FailNow()
	}
	select {
	case <-t.arrived:
	case <-time.After(time.Minute):
		b.Fatalf("%d of %d events did not arrive", t.left.Load(), b.N)
	}
	b.StopTimer()
	took := t.times(time.Now())
	rate := float64(b.N) / b.Elapsed().Seconds()
	b.ReportMetric(float64(b.N)/acknowledged.Seconds(), "published/s")
	b.ReportMetric(rate, "delivered/s")
	if s.raw > 0 {
		b.ReportMetric(rate/s.raw, "of_raw")
	}
	b.ReportMetric(float64(percentile(took, 50).Microseconds())/1000, "p50_ms")
	b.ReportMetric(float64(percentile(took, 99).Microseconds())/1000, "p99_ms")
	b.ReportMetric(float64((s.cpu()-before).Microseconds())/float64(b.N), "cpu_µs/event")
	b.ReportMetric(0, "ns/op") // delivered/s says it
}

// saturate publishes single events, each publisher as fast as it is answered.
func (s *subject) saturate(b *testing.B, publishers int) {
	s.measure(b, func(t *trip) {
		var next atomic.Int64
		var working sync.WaitGroup
		for range publishers {
			working.Go(func() {
				var body []byte
				for {
					n := int(next.Add(1)) - 1
					if n >= b.N {
						return
					}
					body = benchEvent(body[:0], n)
					t.sent[n] = time.Now()
					if err := benchPost(s.client, s.token, s.base+"/v2/events", bytes.NewReader(body)); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		working.Wait()
	})
}

// pace publishes single events at a steady rate, each second.
func (s *subject) pace(b *testing.B, rate int) {
	s.measure(b, func(t *trip) {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for n := range b.N {
			<-tick.C
			t.sent[n] = time.Now()
			if err := benchPost(s.client, s.token, s.base+"/v2/events", bytes.NewReader(benchEvent(nil, n))); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// stream publishes all events as the lines of one request.
func (s *subject) stream(b *testing.B) {
	s.measure(b, func(t *trip) {
		r, w := io.Pipe()
		go func() {
			lines := bufio.NewWriterSize(w, 16<<10)
			var line []byte
			for n := range b.N {
				line = append(benchEvent(line[:0], n), '\n')
				t.sent[n] = time.Now()
				lines.Write(line) // the error is sticky
			}
			w.CloseWithError(lines.Flush())
		}()
		req, err := http.NewRequest("POST", s.base+"/v2/events", r)
		if err != nil {
			b.Error(err)
			return
		}
		req.Header.Set("Authorization", "Bearer "+s.token)
		req.Header.Set("Content-Type", "application/x-ndjson")
		client := &http.Client{Transport: s.client.Transport} // without a limit of time
		resp, err := client.Do(req)
		if err != nil {
			b.Error(err)
			return
		}
		defer resp.Body.Close()
		if answer, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusCreated {
			b.Errorf("status %d: %s", resp.StatusCode, answer)
		}
	})
}
