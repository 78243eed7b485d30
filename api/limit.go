package api

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"service/webhook"
)

// rateWindow is the length of the sliding window.
const rateWindow = time.Minute

// rateLimiter allows exactly limit requests of a program in any rateWindow. Rejected
// requests do not count. Programs do not affect each other.
//
// A program uses 8 bytes for each counted request, and nothing after it has been idle
// for a while.
type rateLimiter struct {
	limit  int       // at least 1
	policy string    // the RateLimit-Policy header
	start  time.Time // with its monotonic reading, so clock changes do not matter

	mu       sync.Mutex
	programs map[string]*ring
	swept    time.Duration // when idle programs were last dropped
}

func newRateLimiter(limit int) *rateLimiter {
	return &rateLimiter{
		limit: limit, start: time.Now(), programs: make(map[string]*ring),
		policy: fmt.Sprintf(`"program";q=%d;w=%d`, limit, int(rateWindow.Seconds())),
	}
}

// quota is the state of a program after a request.
type quota struct {
	ok        bool          // the request is allowed, and counts
	remaining int           // requests that are allowed now
	more      time.Duration // until there is one more of them; above 0
}

// take counts a request of a program, or rejects it.
func (l *rateLimiter) take(program string) quota {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Since(l.start)
	if now-l.swept >= rateWindow {
		l.swept = now
		for name, r := range l.programs {
			if r.newest() <= now-rateWindow {
				delete(l.programs, name)
			}
		}
	}
	r := l.programs[program]
	if r == nil {
		r = &ring{}
		l.programs[program] = r
	}
	for r.n > 0 && r.oldest() <= now-rateWindow {
		r.drop()
	}
	q := quota{ok: r.n < l.limit}
	if q.ok {
		r.add(now, l.limit)
	}
	q.remaining, q.more = l.limit-r.n, r.oldest()+rateWindow-now
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

// authenticate finds the token of a request and counts the request against the limit of
// the program. It returns an error if the token is missing or invalid, or if a limit is
// exceeded.
func (a *API) authenticate(req *request) (err error) {
	if req.token, err = a.token(req); err != nil {
		return a.limit(req, err)
	}
	if a.limiter == nil {
		return nil
	}
	req.quota = a.limiter.take(req.program())
	if req.quota.ok {
		return nil
	}
	a.metrics.rateLimited.Inc()
	req.retryAfter = seconds(req.quota.more)
	return webhook.NewError(webhook.CodeRateLimited, fmt.Sprintf(
		"The program has reached its limit of %d requests in %d seconds. Try again in %s s.",
		a.limiter.limit, int(rateWindow.Seconds()), req.retryAfter))
}

// quotaHeader adds the headers of draft-ietf-httpapi-ratelimit-headers.
func (a *API) quotaHeader(header http.Header, req *request) {
	if req.quota == (quota{}) { // no limit, or the request has no token
		return
	}
	state := append(make([]byte, 0, 40), `"program";r=`...)
	state = strconv.AppendInt(state, int64(req.quota.remaining), 10)
	state = append(state, ";t="...)
	state = append(state, seconds(req.quota.more)...)
	values := &[...]string{a.limiter.policy, string(state)}
	header["Ratelimit-Policy"] = values[0:1:1]
	header["Ratelimit"] = values[1:2:2]
}

// seconds renders a duration in whole seconds, rounded up.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}

// The limits of addresses that send invalid tokens.
const (
	maxInvalidTokens = 300 // at once, and then in each rateWindow
	maxAddresses     = 16 << 10
)

// invalidTokenLimiter limits addresses that send invalid access tokens. It is used only
// for those requests: a valid token is never rejected because of its address.
//
// It is the generic cell rate algorithm (GCRA): an address may send
// maxInvalidTokens at once, and each moves its nextAllowed, the theoretical
// arrival time of the next, by an even share of rateWindow into the future.
type invalidTokenLimiter struct {
	start time.Time

	mu          sync.Mutex
	nextAllowed map[netip.Prefix]time.Duration // since start; absent or past: no limit applies
}

func newInvalidTokenLimiter() *invalidTokenLimiter {
	return &invalidTokenLimiter{start: time.Now(), nextAllowed: make(map[netip.Prefix]time.Duration)}
}

// wait counts an invalid token. If its address has sent too many, it does not count the
// token, and returns how long the address must wait.
func (l *invalidTokenLimiter) wait(remoteAddr string) time.Duration {
	const each = rateWindow / maxInvalidTokens
	address, _ := netip.ParseAddrPort(remoteAddr) // invalid addresses count as one sender
	from := webhook.Network(address.Addr())
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Since(l.start)
	until, known := l.nextAllowed[from]
	until = max(until, now) + each
	if excess := until - now - rateWindow; excess > 0 {
		return excess
	}
	if !known && len(l.nextAllowed) >= maxAddresses {
		l.makeRoom(now)
	}
	l.nextAllowed[from] = until
	return 0
}

// makeRoom drops the addresses whose tokens no longer count. When at least half
// remain, it drops all: so many senders cannot be limited by their addresses, and
// the scan must stay rare. The caller holds l.mu.
func (l *invalidTokenLimiter) makeRoom(now time.Duration) {
	for from, until := range l.nextAllowed {
		if until <= now {
			delete(l.nextAllowed, from)
		}
	}
	if len(l.nextAllowed) > maxAddresses/2 {
		clear(l.nextAllowed)
	}
}

// limit replaces the 401 of an invalid token with a 429 if its address has sent too
// many. A request without a token does not count.
func (a *API) limit(req *request, refused error) error {
	if !isUnauthenticated(refused) || len(req.http.Header["Authorization"]) == 0 {
		return refused
	}
	wait := a.invalidTokens.wait(req.http.RemoteAddr)
	if wait == 0 {
		return refused
	}
	a.metrics.invalidTokens.Inc()
	req.retryAfter = seconds(wait)
	return webhook.NewError(webhook.CodeRateLimited,
		"Too many invalid access tokens from this address. Try again in "+req.retryAfter+" s; a valid token is accepted at any time.")
}

// isUnauthenticated reports whether err rejects the token itself, not its scope or rate.
func isUnauthenticated(err error) bool {
	var e *webhook.Error
	return errors.As(err, &e) && e.Code == webhook.CodeUnauthenticated
}

// The limits of what precedes a body, in bytes. The server's MaxHeaderBytes should be
// well above their sum, because beyond it net/http responds without the envelope.
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

// The time that a client has to read a response grows with its size, so a slow client
// gets it and a stalled connection closes.
const (
	minWriteTimeout = 30 * time.Second
	minWriteRate    = 32 << 10 // bytes a second
)

func writeTimeout(size int) time.Duration {
	return minWriteTimeout + time.Duration(size/minWriteRate)*time.Second
}
