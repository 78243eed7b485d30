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

// serveConn answers the requests of one connection according to the endpoint's mode.
func (s *simulation) serveConn(at *endpoint, c net.Conn) {
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
		r, m := s.arrive(at, req.Header, body)
		answer := ""
		switch m {
		case modeHang:
			in.ReadByte() // until the other side closes the connection
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
			r.retryAfter = asked
			answer += fmt.Sprintf("\r\nRetry-After: %d", asked/time.Second)
		}
		s.ended(r, status)
		if _, err := io.WriteString(c, "HTTP/1.1 "+answer+"\r\nContent-Length: 0\r\n\r\n"); err != nil {
			s.ended(r, 0)
			return
		}
	}
}

// ended records the response to a request, before it is written.
func (s *simulation) ended(r *modelAttempt, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.endedAt, r.status = time.Now(), status
	if r.endedAt.Sub(r.arrivedAt)+s.dial < quickWithin {
		r.subscription.quickAt = r.endedAt
	} else {
		r.subscription.slowAt = r.endedAt
	}
	s.endRecovery(r)
	if (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable) && !r.delivery.ping {
		r.subscription.throttled = true
	}
	if status != 200 {
		r.subscription.noFailures = r.subscription.noFailures && r.delivery.ping
	}
}

// arrive records a request, checks the promises that it could break, and returns
// how to answer it.
func (s *simulation) arrive(at *endpoint, header http.Header, body []byte) (*modelAttempt, mode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, sub := time.Now(), at.owner
	// See webhook.AppendBody, which is tested to produce this JSON.
	const before = len(`{"delivery_id":"`)
	id := string(body[before : before+idLength])
	d := sub.byID[id]
	if d == nil {
		d = s.newModelDelivery(sub, id, body)
		sub.byID[id] = d
		sub.received = append(sub.received, d)
	} else {
		s.checkRepeat(sub, d, now)
		if sha256.Sum256(body) != d.bodyHash {
			s.violate(promiseBytes, "subscription %d", sub.index)
		}
	}
	// A URL that was changed and changed back, while the attempt was connecting, is an earlier one too.
	another := func(t settings) bool { return t.endpoint != sub.settings.endpoint }
	r := &modelAttempt{delivery: d, subscription: sub, arrivedAt: now, arrivedCounted: s.counted(), generation: s.generation,
		earlierURL: at.n != sub.settings.endpoint || slices.ContainsFunc(sub.previous, another)}
	d.attempts = append(d.attempts, r)
	s.unsettled, s.unended = append(s.unsettled, r), append(s.unended, r)
	if len(d.attempts) > webhook.MaxAttempts {
		s.violate(promiseFive, "subscription %d: a delivery was sent %d times", sub.index, len(d.attempts))
	}

	s.checkSettings(at, d)
	s.checkErased(sub, d)
	s.checkSignature(sub, header, id, body)
	if !d.ping {
		s.checkRate(sub, now)
		s.checkProgramLimit(sub)
	}
	s.checkRecovery(sub, r)
	// An attempt that was connecting when the receiver asked for the pause still comes.
	if !d.ping && sub.pausedUntil.Sub(now) > time.Millisecond && now.Sub(sub.pausedAt) > s.dial {
		s.violate(promisePause, "subscription %d: paused until %s, but a delivery came at %s",
			sub.index, sinceStart(sub.pausedUntil), sinceStart(now))
	}
	if s.lease.forbidsSending() {
		s.violate(promiseLease, "subscription %d: an attempt was sent", sub.index)
	}
	if s.crashOnArrival && !d.ping {
		s.crashOnArrival, s.uncertain, s.down = false, true, true
		s.d.store.Close()
		s.killed <- struct{}{}
	}
	m := s.verdict(at, d, len(body))
	r.hangs = m == modeHang
	return r, m
}

// maxAcceptedBody is the size of a body that modeSize accepts: a ping, or two events.
const maxAcceptedBody = 430

// verdict returns how an endpoint answers a delivery with a body of the given bytes.
func (s *simulation) verdict(at *endpoint, d *modelDelivery, bytes int) mode {
	m := at.mode
	if m == modeOK && !s.accepting {
		m = s.plan.Refusals[at.owner.index%len(s.plan.Refusals)]
	}
	hasOne := func(of func(event int) bool) bool {
		return slices.ContainsFunc(d.events, func(e int) bool { return e >= 0 && of(e) })
	}
	refused, as := false, modeReject
	switch m {
	case modeTurns:
		at.turn++
		refused, as = at.turn%2 == 1, modeBusy
	case modeRefuse:
		refused = !d.ping
	case modePicky:
		refused = hasOne(func(e int) bool { return s.log[e].name == 0 })
	case modeSize:
		refused, as = bytes > maxAcceptedBody, "413"
	case modeEvent:
		refused, as = hasOne(func(e int) bool { return e%5 == 0 }), "422"
	case modeStuck:
		refused, as = hasOne(func(e int) bool { return e%5 == 0 }), modeBusy
	case modeWindow:
		refused, as = time.Now().Minute()%2 == 1, "401"
	default:
		return m
	}
	if refused {
		return as
	}
	return modeOK
}

// idLength is the length of an ID in bytes.
const idLength = 36

// newModelDelivery returns the model of a delivery that was received for the first
// time.
func (s *simulation) newModelDelivery(sub *modelSubscription, id string, body []byte) *modelDelivery {
	d := &modelDelivery{id: id, bodyHash: sha256.Sum256(body), uncertain: sub.lostArrivals[id],
		ping: strings.Contains(string(body), `"name":"ping"`)}
	for _, part := range strings.Split(string(body), `{"id":"`)[1:] {
		e, known := s.events[part[:idLength]]
		if !known {
			e = -1
		}
		d.events = append(d.events, e)
		for _, want := range sub.expected {
			want.arrived = want.arrived || want.event == e
		}
	}
	if len(d.events) == 0 {
		d.events = []int{-1}
	} // below: it was claimed before the event type was removed, or the event erased
	d.dropped = !d.ping && !s.requested(d, ^sub.dropped) || slices.ContainsFunc(d.events, s.erasingAt)
	for _, other := range sub.received {
		if !sub.isRedelivery(other) && !other.ping && other.unfinished() && !s.timedOut(other) {
			d.unfinishedBefore = append(d.unfinishedBefore, other)
		}
	}
	return d
}

// timedOut reports whether the last permitted attempt of a delivery has timed out. The
// dispatcher can notice the timeout, and send the next delivery, before the server does.
func (s *simulation) timedOut(d *modelDelivery) bool {
	last := d.last()
	return len(d.attempts) == webhook.MaxAttempts && last.hangs && time.Since(last.arrivedAt) >= attemptTimeout-s.dial
}
