package replica

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// The client of the lease uses the same settings as Litestream's client: skip-verify, the region,
// and the bucket's own region if none is set.
func TestLeaseClient(t *testing.T) {
	b := newBucket(t)
	behind, err := url.Parse(b.url)
	must(t, err)
	proxy := httputil.NewSingleHostReverseProxy(behind)
	regions := make(chan string, 100) // regions for which requests are signed
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, scope, ok := strings.Cut(r.Header.Get("Authorization"), "Credential=id/"); ok {
			regions <- strings.Split(scope, "/")[1]
		}
		if r.URL.Query().Has("location") {
			fmt.Fprint(w, `<LocationConstraint xmlns="http://s3.amazonaws.com/doc/2006-03-01/">eu-central-1</LocationConstraint>`)
			return
		}
		proxy.ServeHTTP(w, r)
	})
	secure, plain := httptest.NewTLSServer(handler), httptest.NewServer(handler)
	defer secure.Close()
	defer plain.Close()
	t.Setenv("AWS_ENDPOINT_URL_S3", plain.URL) // for replicas without an endpoint
	t.Setenv("AWS_REGION", "us-west-2")
	for _, test := range []struct {
		name, settings string
		regions        []string // nil if Acquire fails
	}{
		{"skip-verify", "endpoint: " + secure.URL + "\n      skip-verify: true", []string{"us-east-1"}},
		{"untrusted certificate", "endpoint: " + secure.URL, nil},
		{"region", "endpoint: " + plain.URL + "\n      region: eu-west-3", []string{"eu-west-3"}},
		{"no region and no endpoint", "force-path-style: true", []string{"eu-central-1", "us-east-1"}},
	} {
		dir := t.TempDir()
		cfg := mustParseConfig(t, fmt.Sprintf(`dbs:
  - path: %s/service.db
    replica:
      type: s3
      bucket: b
      path: %s
      access-key-id: id
      secret-access-key: secret
      %s
`, dir, url.PathEscape(test.name), test.settings))
		l, err := NewLease(t.Context(), LeaseConfig{Replica: cfg, Dir: dir, TTL: time.Minute, Logger: testLogger(t)})
		if err == nil {
			err = l.Acquire(t.Context(), 0)
		}
		if (err == nil) != (test.regions != nil) {
			t.Errorf("%s: got %v", test.name, err)
		}
		var got []string
		for len(regions) > 0 {
			got = append(got, <-regions)
		}
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, test.regions) {
			t.Errorf("%s: got requests for the regions %q, want %q", test.name, got, test.regions)
		}
	}
}
