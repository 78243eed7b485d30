package main

import (
	"net/netip"
	"net/url"
	"strings"
	"time"

	"service/internal/server"
	"service/store/replica"
	"service/webhook"
)

// proxies reads the addresses and networks of trusted proxies.
func (f *faults) proxies(flag string, list []string) (p server.TrustedProxies) {
	for _, s := range list {
		prefix, err := netip.ParsePrefix(s)
		if err != nil {
			var a netip.Addr
			if a, err = netip.ParseAddr(s); err == nil && a.Zone() == "" {
				prefix = netip.PrefixFrom(a, a.BitLen())
			}
		}
		switch {
		case err != nil || !prefix.IsValid():
			f.add(flag, "must be addresses or networks such as 10.0.0.7 or 10.0.0.0/24, not %q", s)
		case prefix.Bits() == 0:
			f.add(flag, "%s is every address there is, and whoever calls could say to be anyone", s)
		case prefix.Addr().Is4In6():
			f.add(flag, "%s is written as 10.0.0.0/24 is", s)
		default:
			p = append(p, prefix.Masked())
		}
	}
	return p
}

// AlertURL reads where alerts are to be sent. No error holds the URL: where it
// leads to may be a secret.
func (f *faults) alertURL(value, file string, rules webhook.SubscriptionRules) string {
	u, err := secret("alert-url", value, file)
	if err != nil {
		if text, ok := strings.CutPrefix(err.Error(), "--alert-url-file: "); ok {
			f.add("alert-url-file", "%s", text)
		} else {
			*f = append(*f, fault{text: err.Error()})
		}
		return ""
	}
	if u == "" {
		return ""
	}
	if parsed, err := url.Parse(u); err == nil && parsed.User != nil {
		f.add("alert-url", "must not hold a user name or password; a secret can stand in its path or query")
		return u
	}
	for _, v := range rules.CheckURL(u) {
		f.add("alert-url", "%s", v.Detail)
	}
	return u
}

// lease reads how long a lease is good for; 0 is none.
func (f *faults) lease(flag, value string, attemptTimeout time.Duration, cfg *replica.Config) time.Duration {
	d := f.duration(flag, value, 0, 24*time.Hour)
	least := server.MinLease(attemptTimeout)
	switch {
	case d == 0:
	case d < least:
		f.add(flag, "must be at least %s with this --attempt-timeout, not %q: an attempt that is under way must have ended before the lease does", formatDuration(least), value)
	case cfg == nil || !cfg.IsS3():
		f.add(flag, "is kept in the bucket of the replica, and so needs --litestream with a replica of the type s3")
	}
	return d
}
