package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// sink is the receiver, a child process. Its speed limits the measurement, so it only reads
// deliveries and records the arrival time of each event.
//
//	POST /begin?events=N&subscriptions=M  resets everything
//	POST /d/K        receives a delivery to subscription K
//	GET  /wait?events=N, /wait?pings=N  responds after N arrivals, or after a second, with
//	                 the number of arrivals
//	GET  /arrivals   responds with the arrival times, 8 bytes each: Unix nanoseconds, or 0
type sink struct {
	// begin sets these two. By then the last service has stopped.
	arrivals      []atomic.Int64
	subscriptions int

	arrived, pings, duplicates, unexpected atomic.Int64
	awaited                                atomic.Int64 // number of arrivals that wakes wait
	woken                                  chan struct{}
}

// RunSink runs the receiver on a free loopback port until ctx ends. It writes its URL to w.
func RunSink(ctx context.Context, w io.Writer) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &sink{woken: make(chan struct{}, 1), subscriptions: 1}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /begin", s.begin)
	mux.HandleFunc("POST /d/{subscription}", s.deliver)
	mux.HandleFunc("GET /wait", s.wait)
	mux.HandleFunc("GET /arrivals", s.list)
	server := &http.Server{Handler: mux}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	fmt.Fprintf(w, "http://%s\n", l.Addr())
	if err := server.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}

func (s *sink) begin(w http.ResponseWriter, r *http.Request) {
	events, _ := strconv.Atoi(r.FormValue("events"))
	subscriptions, _ := strconv.Atoi(r.FormValue("subscriptions"))
	s.arrivals = make([]atomic.Int64, events*subscriptions)
	s.subscriptions = subscriptions
	for _, n := range []*atomic.Int64{&s.arrived, &s.pings, &s.duplicates, &s.unexpected} {
		n.Store(0)
	}
}

const (
	numberField = `"content_id":` // is followed by the number of an event
	pingName    = `"name":"ping"`
)

// bodies pools buffers for deliveries.
var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func (s *sink) deliver(w http.ResponseWriter, r *http.Request) {
	buffer := bodies.Get().(*bytes.Buffer)
	defer bodies.Put(buffer)
	buffer.Reset()
	if _, err := buffer.ReadFrom(r.Body); err != nil {
		return
	}
	now, body := time.Now().UnixNano(), buffer.Bytes()
	subscription, err := strconv.Atoi(r.PathValue("subscription"))
	if err != nil {
		s.unexpected.Add(1)
		return
	}
	found := false
	for n := range eventNumbers(body) {
		found = true
		slot := n*s.subscriptions + subscription
		if slot >= len(s.arrivals) {
			s.unexpected.Add(1)
		} else if s.arrivals[slot].CompareAndSwap(0, now) {
			s.count(&s.arrived)
		} else {
			s.duplicates.Add(1)
		}
	}
	if !found && bytes.Contains(body, []byte(pingName)) {
		s.count(&s.pings)
	}
}

// count counts an arrival and wakes wait at the awaited number.
func (s *sink) count(n *atomic.Int64) {
	if n.Add(1) == s.awaited.Load() {
		select {
		case s.woken <- struct{}{}:
		default:
		}
	}
}

func (s *sink) wait(w http.ResponseWriter, r *http.Request) {
	counted, field := &s.arrived, "events"
	if r.FormValue(field) == "" {
		counted, field = &s.pings, "pings"
	}
	want, _ := strconv.ParseInt(r.FormValue(field), 10, 64)
	s.awaited.Store(want)
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	for counted.Load() < want {
		select {
		case <-s.woken:
			continue // the wake-up may be for an earlier wait
		case <-timer.C:
		case <-r.Context().Done():
		}
		break
	}
	fmt.Fprint(w, counted.Load())
}

func (s *sink) list(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("X-Duplicates", strconv.FormatInt(s.duplicates.Load()+s.unexpected.Load(), 10))
	all := make([]byte, 0, 8*len(s.arrivals))
	for i := range s.arrivals {
		all = binary.LittleEndian.AppendUint64(all, uint64(s.arrivals[i].Load()))
	}
	w.Write(all)
}

// eventNumbers yields the numbers of the events in a delivery's body, in order.
func eventNumbers(body []byte) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for rest := body; ; {
			i := bytes.Index(rest, []byte(numberField))
			if i < 0 {
				return
			}
			rest = rest[i+len(numberField):]
			n := 0
			for _, c := range rest {
				if c < '0' || c > '9' {
					break
				}
				n = 10*n + int(c-'0')
			}
			if !yield(n) {
				return
			}
		}
	}
}
