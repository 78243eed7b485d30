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

// rateWindow is the time in which the requests of a program are counted.
const rateWindow = time.Minute

// rateLimiter lets exactly limit requests of a program through in any
// rateWindow. What it refuses does not count. Programs do not affect each
// other.
//
// Each program costs 8 bytes for each request that counts, and nothing once it
// has been silent for a while.
type rateLimiter struct {
	limit  int       // at least 1
	policy string    // the RateLimit-Policy header
	start  time.Time // what times are counted from, so that no clock change matters

	mu       sync.Mutex
	programs map[string]*ring
	swept    time.Duration // when the silent were last dropped
}

func newRateLimiter(limit int) *rateLimiter {
	return &rateLimiter{
		limit: limit, start: time.Now(), programs: make(map[string]*ring),
		policy: fmt.Sprintf(`"program";q=%d;w=%d`, limit, int(rateWindow.Seconds())),
	}
}

// quota is where a program stands after a request.
type quota struct {
	ok        bool          // the request was let through, and counts
	remaining int           // requests that would be let through now
	more      time.Duration // until there is one more of them; above 0
}

// take counts a request of a program, or refuses it.
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

// ring is the times of the requests that count, oldest first.
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

// add adds a time; there may be up to most of them.
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

// authenticate finds the token of a request, and counts the request against the
// program's limit. The error is that of a token that is missing or not valid, or
// of a limit that is reached.
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
		"The program has made %d requests within %d seconds, as many as it may. Try again in %s s.",
		a.limiter.limit, int(rateWindow.Seconds()), req.retryAfter))
}

// quotaHeader tells a program where it stands, in the fields of
// draft-ietf-httpapi-ratelimit-headers.
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

// The bounds of what is remembered of addresses that send invalid tokens.
const (
	maxInvalidTokens = 300 // in a row, and in each rateWindow later on
	maxAddresses     = 16 << 10
)

// invalidTokenLimiter limits the addresses that send invalid access tokens. It is
// asked about those requests alone: a valid token is never refused because of the
// address it comes from.
//
// It is the generic cell rate algorithm (GCRA): an address may send
// maxInvalidTokens at once, and each moves its nextAllowed, the theoretical
// arrival time of the next, by an even share of rateWindow into the future.
type invalidTokenLimiter struct {
	start time.Time

	mu          sync.Mutex
	nextAllowed map[netip.Prefix]time.Duration // since start; an address that is not in it, or in the past, has sent none
}

func newInvalidTokenLimiter() *invalidTokenLimiter {
	return &invalidTokenLimiter{start: time.Now(), nextAllowed: make(map[netip.Prefix]time.Duration)}
}

// wait counts an invalid token. When its address has sent too many, it does not
// count it, and returns how long the address must wait.
func (l *invalidTokenLimiter) wait(remoteAddr string) time.Duration {
	const each = rateWindow / maxInvalidTokens
	address, _ := netip.ParseAddrPort(remoteAddr) // what is no address is one sender
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

// limit turns the refusal of a token into 429 when its address has sent too many
// invalid ones. A request without a token is no attempt to guess one, and does not
// count.
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
	return webhook.NewError(webhook.CodeRateLimited, "Too many access tokens from this address were not valid. Try again in "+req.retryAfter+" s; a valid one is taken at any time.")
}

func isUnauthenticated(err error) bool {
	var e *webhook.Error
	return errors.As(err, &e) && e.Code == webhook.CodeUnauthenticated
}

// The bounds of what comes before a body, in bytes. The server's own
// MaxHeaderBytes should be well above their sum: beyond it, net/http answers in
// its own words.
const (
	maxURI    = 8 << 10
	maxHeader = 16 << 10
)

// oversized returns what is too large about a request before its body, or nil.
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

// refusal is the route of a request that is refused whatever its path.
func refusal(e *webhook.Error) *route {
	return &route{
		pattern: "-", scope: scopeNone, query: queryRules{ignored: true},
		handle: func(*request) (answer, error) { return answer{}, e },
	}
}

// The time that an answer may take to be read: some, and more for a large one,
// so that a slow but honest client gets it and a stalled one is closed.
const (
	answerTime = 30 * time.Second
	answerRate = 32 << 10 // bytes a second
)

func timeToAnswer(size int) time.Duration {
	return answerTime + time.Duration(size/answerRate)*time.Second
}
