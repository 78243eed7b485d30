package dispatcher

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"service/webhook"
)

// serve answers the requests of one connection as the place behaves.
func (s *simulation) serve(at *place, c net.Conn) {
	defer c.Close()
	in := bufio.NewReaderSize(c, 1024)
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		r, m := s.arrive(at, body)
		answer := ""
		switch m {
		case modeHang:
			in.ReadByte() // until the other side hangs up
			s.ended(r, 0)
			return
		case modeReset:
			s.ended(r, 0)
			return
		case modeGarbage:
			s.ended(r, 0)
			io.WriteString(c, "SSH-2.0-OpenSSH_9.9\r\n")
			return
		case modeSlow:
			time.Sleep(3 * time.Second)
			answer = "200"
		case modeLater:
			answer = "503"
		case modeWait:
			answer = "429"
		default:
			answer = string(m)
		}
		status := 0
		fmt.Sscan(answer, &status)
		answer += " "
		if asked := map[mode]time.Duration{modeLater: 10 * time.Minute, modeWait: time.Minute}[m]; asked > 0 {
			r.wait = asked
			answer += fmt.Sprintf("\r\nRetry-After: %d", asked/time.Second)
		}
		s.ended(r, status)
		if _, err := io.WriteString(c, "HTTP/1.1 "+answer+"\r\nContent-Length: 0\r\n\r\n"); err != nil {
			s.ended(r, 0)
			return
		}
	}
}

// ended takes down what a request was answered, before it is.
func (s *simulation) ended(r *reception, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.ended, r.status = time.Now(), status
	s.endRecovery(r)
	if (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable) && !r.of.ping {
		r.by.paced = true
	}
	if status != 200 {
		r.by.clean = r.by.clean && r.of.ping
	}
}

// arrive takes down a request, checks what can be checked at once, and says
// how it is answered.
func (s *simulation) arrive(at *place, body []byte) (*reception, mode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, h := time.Now(), at.owner
	// See webhook.AppendBody, whose tests hold it to JSON.
	const before = len(`{"delivery_id":"`)
	id := string(body[before : before+idLength])
	d := h.sent[id]
	if d == nil {
		d = s.newSending(h, id, body)
		h.sent[id] = d
		h.order = append(h.order, d)
	} else {
		s.again(h, d, now)
		if sha256.Sum256(body) != d.sum {
			s.violate(promiseBytes, "subscription %d", h.i)
		}
	}
	r := &reception{of: d, by: h, at: now, wall: s.wall(), gen: s.gen}
	d.came = append(d.came, r)
	s.unsettled = append(s.unsettled, r)
	if len(d.came) > webhook.MaxAttempts {
		s.violate(promiseFive, "subscription %d got a delivery %d times", h.i, len(d.came))
	}

	s.checkTerms(at, d)
	s.checkRecovery(h, r)
	if !d.ping && h.resume.Sub(now) > time.Millisecond {
		s.violate(promisePause, "subscription %d: until %s, and one came at %s", h.i, stamp(h.resume), stamp(now))
	}
	if s.lease.forbids() {
		s.violate(promiseLease, "subscription %d got an attempt", h.i)
	}
	if s.trap && !d.ping {
		s.trap, s.trapped, s.down = false, true, true
		s.d.store.Close()
		s.killed <- struct{}{}
	}
	m := at.mode
	if m == modeTurns {
		at.turn++
		m = []mode{modeOK, modeBusy}[at.turn%2]
	}
	switch {
	case m == modeRefuse && d.ping, m == modePicky && !slices.ContainsFunc(d.events, func(e int) bool { return e >= 0 && s.log[e].name == 0 }):
		m = modeOK
	case m == modeRefuse, m == modePicky:
		m = modeReject
	}
	r.hangs = m == modeHang
	return r, m
}

// idLength is the length of an id, in bytes.
const idLength = 36

// newSending returns a delivery that has come for the first time.
func (s *simulation) newSending(h *subject, id string, body []byte) *sending {
	d := &sending{id: id, sum: sha256.Sum256(body), vague: h.unseen[id], ping: strings.Contains(string(body), `"name":"ping"`)}
	for _, part := range strings.Split(string(body), `{"id":"`)[1:] {
		e, known := s.events[part[:idLength]]
		if !known {
			e = -1
		}
		d.events = append(d.events, e)
		for _, owed := range h.debts {
			owed.arrived = owed.arrived || owed.event == e
		}
	}
	for _, other := range h.order {
		if !h.copied(other) && !other.ping && other.unfinished() {
			d.behind = append(d.behind, other)
		}
	}
	return d
}
