package dispatcher

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"service/dispatcher/pace"
	"service/store"
	"service/store/storetest"
	"service/webhook"
)

// programLimit is the max_in_flight of a program, as far as the model knows.
type programLimit struct {
	now, previous int  // 0 for none; previous remains valid until the dispatcher is idle
	unknown       bool // a change failed
}

// allows reports whether a program may certainly have n deliveries in flight.
func (l programLimit) allows(n int) bool {
	return !l.unknown && (l.now == 0 || n <= l.now) && (l.previous == 0 || n <= l.previous)
}

// forbids reports whether a program certainly may not have n deliveries in flight.
func (l programLimit) forbids(n int) bool {
	return !l.unknown && l.now > 0 && l.previous > 0 && n > max(l.now, l.previous)
}

// limitProgram sets the max_in_flight of a program, 0 for none.
func (s *simulation) limitProgram(program string, limit int) {
	s.mu.Lock()
	before := s.limits[program]
	s.limits[program] = programLimit{now: limit, previous: before.now, unknown: before.unknown || before.now != before.previous}
	s.mu.Unlock()
	fields := &webhook.ProgramFields{MaxInFlight: new(*int)}
	if limit > 0 {
		*fields.MaxInFlight = &limit
	}
	err := s.d.store.Write(context.Background(), func(w store.Write) error {
		_, _, err := w.Programs().Put(program, fields, webhook.AuditEntry{})
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.unexpected(err)
		s.limits[program] = programLimit{unknown: true}
	}
}

// settleLimits forgets the earlier limits, once the dispatcher is idle and has read the new ones. The
// caller holds s.mu.
func (s *simulation) settleLimits() {
	for program, l := range s.limits {
		if s.faults.recovered() && s.dial == 0 && !l.unknown {
			l.previous = l.now
			s.limits[program] = l
		}
	}
}

// programInFlight returns how many attempts of a program are in flight, excluding pings. The caller
// holds s.mu.
func (s *simulation) programInFlight(program string) (n int) {
	for _, sub := range s.subs {
		if sub.program == program {
			n += s.inFlight(sub, false)
		}
	}
	return n
}

// checkProgramLimit checks that the limit of the program permits an attempt that has just arrived.
// The caller holds s.mu.
func (s *simulation) checkProgramLimit(sub *modelSubscription) {
	if n := s.programInFlight(sub.program); s.limits[sub.program].forbids(n) {
		s.violate(promiseLimit, "program %s has %d in flight with a limit of %d", sub.program, n, s.limits[sub.program].now)
	}
}

// checkRate checks that a request does not follow the last one too early. The caller holds s.mu.
func (s *simulation) checkRate(sub *modelSubscription, now time.Time) {
	last, rate := sub.arrivedAt, sub.settings.rate
	sub.arrivedAt = now
	if rate == 0 || s.dial > 0 || !last.After(sub.changedAt) || !last.After(s.startedAt) || len(sub.previous) > 0 {
		return
	}
	interval := time.Second / time.Duration(rate)
	if early := max(interval/5, pace.LateTolerance); now.Sub(last) < interval-early-time.Millisecond {
		s.violate(promiseRate, "subscription %d: two requests within %s, at %d per second", sub.index, now.Sub(last), rate)
	}
}

// rotate replaces the secret of a subscription.
func (s *simulation) rotate(sub *modelSubscription) {
	secret, err := storetest.RotateSecret(context.Background(), s.d.store, sub.program, sub.id)
	s.allowRefusal(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	var refused *webhook.Error
	switch {
	case err == nil:
		sub.previousSecrets = append(sub.previousSecrets, sub.secret)
		sub.secret, sub.rotatedAt = secret, time.Now()
	case !errors.As(err, &refused):
		sub.secret = nil // unknown: the new secret may have been stored
	}
}

// checkSignature checks the signature of a request. The caller holds s.mu.
func (s *simulation) checkSignature(sub *modelSubscription, header http.Header, id string, body []byte) {
	if sub.secret == nil {
		return
	}
	seconds, err := strconv.ParseInt(header.Get("webhook-timestamp"), 10, 64)
	if err != nil || header.Get("webhook-id") != id {
		s.violate(promiseSigned, "subscription %d: got header %v", sub.index, header)
	}
	signatures := " " + header.Get("webhook-signature") + " "
	for _, secret := range append(sub.previousSecrets, sub.secret) {
		// A nil secret is unknown: its rotation was interrupted, but may be stored.
		if secret == nil || strings.Contains(signatures, " "+secret.Sign(id, time.Unix(seconds, 0), body)+" ") {
			return
		}
	}
	s.violate(promiseSigned, "subscription %d: no signature is of its secret", sub.index)
}
