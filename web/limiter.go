package web

import (
	"net/netip"
	"time"

	"service/internal/ratelimit"
	"service/webhook"
)

// deviceLimit and sessionLimit limit wrong passwords from a browser that the admin has signed in
// with before. Tries from other browsers do not count against them.
//
// The other limits apply to unknown browsers. addressLimit applies per network. Wrong passwords
// from other networks do not affect a network within ownLimit, nor an IPv6 network also within
// siteLimit. Beyond that, a network shares adminLimit, the limit per admin, with all others: an
// attacker with many addresses gets few guesses.
var (
	addressLimit = ratelimit.Limit{Name: "address", Burst: 10, Interval: time.Minute}
	ownLimit     = ratelimit.Limit{Name: "own", Burst: 20, Interval: 72 * time.Minute}
	siteLimit    = ratelimit.Limit{Name: "site", Burst: 100, Interval: 15 * time.Minute}
	adminLimit   = ratelimit.Limit{Name: "admin", Burst: 60, Interval: 10 * time.Second}
	deviceLimit  = ratelimit.Limit{Name: "device", Burst: 10, Interval: time.Minute}
	sessionLimit = ratelimit.Limit{Name: "session", Burst: 10, Interval: time.Minute}
)

// maxLimitKeys bounds the memory of a limiter.
const maxLimitKeys = 10_000

// allowUnknown is [ratelimit.Limiter.Allow] for a browser that has not signed in as an admin
// before. rank orders browsers that wait for their password to be hashed, lowest first: it is the
// number of wrong passwords from the same site. The caller refunds counted if the password is right
// or was not checked.
func allowUnknown(t *ratelimit.Limiter, from netip.Addr, email string) (counted []ratelimit.Try, rank int, wait time.Duration) {
	return allowUnknownOf(t, "", from, email)
}

// allowUnknownOf is allowUnknown for tries of a kind, which count separately. All browsers beyond
// their own limits share key.
func allowUnknownOf(
	t *ratelimit.Limiter, kind string, from netip.Addr, key string,
) (counted []ratelimit.Try, rank int, wait time.Duration) {
	network := kind + webhook.Network(from).String()
	address, own := ratelimit.Try{Limit: addressLimit, Key: network}, ratelimit.Try{Limit: ownLimit, Key: network}
	rank, counted = t.Used(own), []ratelimit.Try{address, own}
	if from.Is6() {
		// One sender may have many networks of a site. Prefix fails only for an IPv4 address.
		prefix, _ := from.Prefix(siteBits) // fails only for an IPv4 address
		site := ratelimit.Try{Limit: siteLimit, Key: kind + prefix.String()}
		rank, counted = max(rank, t.Used(site)), append(counted, site)
	}
	if wait = t.Allow(counted...); wait == 0 {
		return counted, rank, 0
	}
	counted = []ratelimit.Try{address, {Limit: adminLimit, Key: kind + key}}
	return counted, sharedRank, min(wait, t.Allow(counted...))
}

const (
	siteBits   = 48  // of an IPv6 address: the network that a provider assigns to one customer
	sharedRank = 100 // of a browser that is only within adminLimit; no rank is higher
)

// addressOf returns the address that a request came from; it is invalid when unknown.
func addressOf(r *request) netip.Addr {
	a, _ := netip.ParseAddrPort(r.RemoteAddr) // all unparsable addresses share one limit
	return a.Addr().Unmap().WithZone("")
}

// addressText returns addressOf in its stored form, "" if unknown.
func addressText(r *request) string {
	if a := addressOf(r); a.IsValid() {
		return a.String()
	}
	return ""
}
