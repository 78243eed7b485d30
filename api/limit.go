package api

import (
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"service/internal/ratelimit"
	"service/webhook"
)

// rateWindow is the length of the sliding window.
const rateWindow = time.Minute

// rateLimiter allows a fixed number of requests per key, a program or a platform token, in any
// rateWindow. Rejected requests do not count. Keys do not affect each other.
//
// A key uses 8 bytes per counted request. An idle key is dropped after a while.
type rateLimiter struct {
	name  string    // of the quota policy
	start time.Time // with its monotonic reading, so clock changes do not matter

	mu    sync.Mutex
	rings map[string]*ring
	swept time.Duration // when idle keys were last dropped
}

// The names of the quota policies.
const (
	programPolicy  = "program"
	platformPolicy = "platform"
)

func newRateLimiter(name string) *rateLimiter {
	return &rateLimiter{name: name, start: time.Now(), rings: make(map[string]*ring)}
}

// quota is the state of a key after a request.
type quota struct {
	policy    string // the name of the limiter
	limit     int
	ok        bool          // the request is allowed, and counts
	remaining int           // requests that are allowed now
	more      time.Duration // until one more request is allowed; above 0
}

// take counts a request with a key. Its limit must be at least 1, and may have changed since the
// last request. The quota is not ok if the request is rejected.
func (l *rateLimiter) take(key string, limit int) quota {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Since(l.start)
	if now-l.swept >= rateWindow {
		l.swept = now
		for name, r := range l.rings {
			if r.newest() <= now-rateWindow {
				delete(l.rings, name)
			}
		}
	}
	r := l.rings[key]
	if r == nil {
		r = &ring{}
		l.rings[key] = r
	}
	for r.n > 0 && r.oldest() <= now-rateWindow {
		r.drop()
	}
	q := quota{policy: l.name, limit: limit, ok: r.n < limit}
	if q.ok {
		r.add(now, limit)
	}
	// If the limit was lowered, several requests must leave the window before one more is allowed.
	q.remaining, q.more = max(0, limit-r.n), r.at(max(0, r.n-limit))+rateWindow-now
	return q
}

// ring contains the times of the counted requests, oldest first.
type ring struct {
	times []time.Duration // since rateLimiter.start
	first int             // index of the oldest
	n     int
}

func (r *ring) at(i int) time.Duration { return r.times[(r.first+i)%len(r.times)] }
func (r *ring) oldest() time.Duration  { return r.at(0) }
func (r *ring) newest() time.Duration  { return r.at(r.n - 1) }

func (r *ring) drop() {
	r.first = (r.first + 1) % len(r.times)
	r.n--
}

// add adds a time. The ring grows to at most most elements.
func (r *ring) add(t time.Duration, most int) {
	if r.n == len(r.times) {
		larger := make([]time.Duration, min(max(2*r.n, 8), most))
		for i := range r.n {
			larger[i] = r.at(i)
		}
		r.times, r.first = larger, 0
	}
	r.times[(r.first+r.n)%len(r.times)] = t
	r.n++
}

// authenticate finds the token of a request and the program that the request acts in, and counts
// the request against the program's limit, or against the platform token's limit if no program is
// selected. It returns an error if the token is missing or invalid, if a limit is exceeded, or if
// the token may not act in the program.
func (a *API) authenticate(req *request) (err error) {
	if req.token, err = a.token(req); err != nil {
		return a.limit(req, err)
	}
	selected := a.selectProgram(req)
	if move := a.store.Programs().Move(req.program()); move != nil && selected == nil {
		return a.moved(req, move) // the installation that has the program applies its limits
	}
	if err := a.count(req); err != nil {
		return err
	}
	return selected
}

// count counts a request with a token against its limit, or rejects it.
func (a *API) count(req *request) error {
	if req.owner() {
		return nil
	}
	whose, limiter, key, limit := "The program", a.programLimiter, req.program(), a.rateLimit
	if key == "" {
		whose, limiter, key, limit = "The access token", a.platformLimiter, req.token.ID, a.platformRateLimit
		if req.token.Platform() {
			whose = "The platform token"
		}
	} else if p, err := a.store.Programs().Get(req.ctx, key); err != nil {
		return err
	} else if own := p.Limits.RateLimit; own != nil {
		limit = *own
	}
	if limit == 0 {
		return nil
	}
	req.quota = limiter.take(key, limit)
	if req.quota.ok {
		return nil
	}
	a.metrics.rateLimited.Inc()
	if limiter == a.programLimiter {
		a.metrics.limitProgram(key)
		a.store.Reject(req.ctx, key)
	}
	req.retryAfter = seconds(req.quota.more)
	return webhook.NewError(webhook.CodeRateLimited, fmt.Sprintf(
		"%s has reached its limit of %d requests in %d seconds. Try again in %s s.",
		whose, limit, int(rateWindow.Seconds()), req.retryAfter))
}

// quotaHeader adds the headers of draft-ietf-httpapi-ratelimit-headers.
func (a *API) quotaHeader(header http.Header, req *request) {
	q := &req.quota
	if q.policy == "" { // no limit, or the request has no token
		return
	}
	text := append(make([]byte, 0, 80), '"')
	text = append(append(text, q.policy...), `";q=`...)
	text = strconv.AppendInt(text, int64(q.limit), 10)
	text = append(text, ";w="...)
	text = strconv.AppendInt(text, int64(rateWindow/time.Second), 10)
	end := len(text)
	text = append(text, '"')
	text = append(append(text, q.policy...), `";r=`...)
	text = strconv.AppendInt(text, int64(q.remaining), 10)
	text = append(text, ";t="...)
	text = append(text, seconds(q.more)...)
	both := string(text)
	values := &[...]string{both[:end], both[end:]}
	header["Ratelimit-Policy"] = values[0:1:1]
	header["Ratelimit"] = values[1:2:2]
}

// seconds renders a duration in whole seconds, rounded up.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}

// maxAddresses is the maximum number of addresses for which invalidTokenLimit keeps state.
const maxAddresses = 16 << 10

// invalidTokenLimit limits addresses that send invalid access tokens. It applies only to those
// requests: a valid token is never rejected because of its address.
var invalidTokenLimit = ratelimit.Limit{Name: "invalid token", Burst: 300, Interval: rateWindow / 300}

// limit replaces the 401 for an invalid token with a 429 if the address has sent too many. A
// request without a token does not count.
func (a *API) limit(req *request, refused error) error {
	if webhook.CodeOf(refused) != webhook.CodeUnauthenticated || len(req.http.Header["Authorization"]) == 0 {
		return refused
	}
	address, _ := netip.ParseAddrPort(req.http.RemoteAddr) // all invalid addresses share one limit
	wait := a.invalidTokens.Allow(ratelimit.Try{Limit: invalidTokenLimit, Key: webhook.Network(address.Addr()).String()})
	if wait == 0 {
		return refused
	}
	a.metrics.invalidTokens.Inc()
	req.retryAfter = seconds(wait)
	return webhook.NewError(webhook.CodeRateLimited,
		"Too many invalid access tokens from this address. Try again in "+req.retryAfter+" s; a valid token is accepted at any time.")
}

// The limits of everything before the body, in bytes. The server's MaxHeaderBytes should be well
// above their sum, because net/http responds to longer headers without the envelope.
const (
	maxURI    = 8 << 10
	maxHeader = 16 << 10
)

// oversized returns an error if the path, query or header of a request is too large.
func oversized(r *http.Request) *webhook.Error {
	if len(r.RequestURI) > maxURI {
		return webhook.NewError(webhook.CodeURITooLong, fmt.Sprintf("The path and the query are longer than %d bytes.", maxURI))
	}
	size := len(r.Host)
	for name, values := range r.Header {
		for _, value := range values {
			size += len(name) + len(": ") + len(value) + len("\r\n")
		}
	}
	if size > maxHeader {
		return webhook.NewError(webhook.CodeHeaderTooLarge, fmt.Sprintf("The header is larger than %d bytes.", maxHeader))
	}
	return nil
}

// refusal returns a route that always fails with e.
func refusal(e *webhook.Error) *route {
	return &route{
		pattern: "-", scope: scopeNone, query: queryRules{ignored: true},
		handle: func(*request) (answer, error) { return answer{}, e },
	}
}

// The time that a client has to read a response grows with the size of the response, so a slow
// client gets it whole and a stalled connection is closed.
const (
	minWriteTimeout = 30 * time.Second
	minWriteRate    = 32 << 10 // bytes per second
)

func writeTimeout(size int) time.Duration {
	return minWriteTimeout + time.Duration(size/minWriteRate)*time.Second
}
