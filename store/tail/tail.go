// Package tail keeps the newest events of the logs in memory.
package tail

import (
	"sync"

	"service/webhook"
)

// Bytes is the maximum memory of the tail, in bytes.
const Bytes = 16 << 20

// Tail keeps the newest events of all logs in memory, so that subscriptions without a backlog
// cause no reads. Events are added after their commit in log order; at the limit the oldest are
// dropped.
type Tail struct {
	limit int

	mu       sync.RWMutex
	bytes    int
	order    []string // the program of each event in the tail, oldest first
	oldest   int      // order[:oldest] were dropped
	programs map[string]*programTail
}

// programTail is a dense part of one program's log.
type programTail struct {
	first  int64 // seq of events[from]
	from   int
	events []Event
}

// Event is the part of an event that deliveries need.
type Event struct {
	Id, Name string
	Received int64 // Unix milliseconds
	Json     []byte
	Trace    webhook.Trace
	Erased   bool // it has no JSON
}

// overhead is the approximate memory of an event in addition to its strings.
const overhead = 144

// New returns an empty tail with a limit of its memory in bytes.
func New(limit int) *Tail { return &Tail{limit: limit, programs: make(map[string]*programTail)} }

func (e *Event) size() int {
	return len(e.Json) + len(e.Id) + len(e.Name) + len(e.Trace) + overhead
}

// Add appends committed events of one program, in the order of their seqs.
func (t *Tail) Add(events []webhook.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range events {
		e := &events[i]
		p := t.programs[e.ProgramID]
		if p == nil {
			p = &programTail{first: e.Seq}
			t.programs[e.ProgramID] = p
		}
		te := Event{Id: e.ID, Name: e.Name, Received: e.ReceivedAt.UnixMilli(), Json: e.JSON, Trace: e.Trace}
		p.events = append(p.events, te)
		t.order = append(t.order, e.ProgramID)
		t.bytes += te.size()
	}
	for t.bytes > t.limit {
		t.dropOldest()
	}
}

// dropOldest removes the oldest event. It compacts a slice only when more than half of it is
// unused, so its amortized cost is constant.
func (t *Tail) dropOldest() {
	program := t.order[t.oldest]
	t.oldest++
	if t.oldest > 1024 && t.oldest > len(t.order)/2 {
		t.order = append(t.order[:0], t.order[t.oldest:]...)
		t.oldest = 0
	}
	p := t.programs[program]
	t.bytes -= p.events[p.from].size()
	p.events[p.from] = Event{}
	p.from++
	p.first++
	switch {
	case p.from == len(p.events):
		delete(t.programs, program)
	case p.from > 1024 && p.from > len(p.events)/2:
		n := copy(p.events, p.events[p.from:])
		clear(p.events[n:])
		p.events = p.events[:n]
		p.from = 0
	}
}

// Scan calls visit for the program's events after a seq, in order, until visit returns false.
// It returns false without a call if the tail does not go back that far.
func (t *Tail) Scan(programID string, after int64, visit func(seq int64, e *Event) bool) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	p := t.programs[programID]
	if p == nil || after+1 < p.first {
		return false
	}
	for i := int(after + 1 - p.first); p.from+i < len(p.events); i++ {
		if !visit(p.first+int64(i), &p.events[p.from+i]) {
			break
		}
	}
	return true
}

// Erase drops the payload of an event.
func (t *Tail) Erase(programID string, seq int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.programs[programID]
	if p == nil || seq < p.first || seq-p.first >= int64(len(p.events)-p.from) {
		return
	}
	e := &p.events[p.from+int(seq-p.first)]
	t.bytes -= e.size()
	*e = Event{Id: e.Id, Name: e.Name, Received: e.Received, Erased: true}
	t.bytes += e.size()
}

// Forget drops the events of a program.
func (t *Tail) Forget(programID string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.programs[programID]
	if p == nil {
		return
	}
	for i := range p.events[p.from:] {
		t.bytes -= p.events[p.from+i].size()
	}
	delete(t.programs, programID)
	left := t.order[:0]
	for _, id := range t.order[t.oldest:] {
		if id != programID {
			left = append(left, id)
		}
	}
	t.order, t.oldest = left, 0
}
