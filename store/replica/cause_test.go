package replica

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Errors of a real client get the cause that tells the operator where to look.
func TestCauseOf(t *testing.T) {
	answer := func(status int, code string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprintf(w, "<Error><Code>%s</Code><Message>m</Message></Error>", code)
		}
	}
	for _, test := range []struct {
		name    string
		handler http.HandlerFunc
		want    Cause
	}{
		{"a wrong key", answer(403, "InvalidAccessKeyId"), CauseRefused},
		{"no permission", answer(403, "AccessDenied"), CauseRefused},
		{"a wrong clock", answer(403, "RequestTimeTooSkewed"), CauseRefused},
		{"no such bucket", answer(404, "NoSuchBucket"), CauseRefused},
		{"another region, as a redirect", answer(301, "PermanentRedirect"), CauseRefused},
		{"another region", answer(400, "AuthorizationHeaderMalformed"), CauseRefused},
		{"a full disk", answer(507, "InsufficientStorage"), CauseFull},
		{"a full disk, without a code", answer(507, ""), CauseFull},
		{"a quota", answer(403, "QuotaExceeded"), CauseFull},
		{"a quota of MinIO", answer(400, "XMinioAdminBucketQuotaExceeded"), CauseFull},
		{"too many requests", answer(503, "SlowDown"), CauseSlow},
		{"a gateway that waited", answer(504, ""), CauseSlow},
		{"a server that fails", answer(500, "InternalError"), CauseUnreachable},
		{"a server that is down", answer(503, ""), CauseUnreachable},
		{"a broken connection", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, CauseUnreachable},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(test.handler)
			defer server.Close()
			l := leaseAt(t, server.URL)
			_, err := l.put(t.Context(), leaseObject{Generation: 1}, "")
			if got := CauseOf(err); got != test.want {
				t.Errorf("got %q, want %q: %v", got, test.want, err)
			}
		})
	}
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	for _, test := range []struct {
		name, url string
	}{{"a closed port", closed.URL}, {"an unknown host", "http://bucket.invalid"}} {
		if _, err := leaseAt(t, test.url).put(t.Context(), leaseObject{Generation: 1}, ""); CauseOf(err) != CauseUnreachable {
			t.Errorf("%s: got %q, want %q: %v", test.name, CauseOf(err), CauseUnreachable, err)
		}
	}
	for err, want := range map[error]Cause{
		nil:                      "",
		errUploadStalled:         CauseSlow,
		context.DeadlineExceeded: CauseSlow,
		os.NewSyscallError("write", syscall.ENOSPC): CauseFull,
		os.NewSyscallError("write", syscall.EDQUOT): CauseFull,
		os.NewSyscallError("open", syscall.EACCES):  CauseRefused,
		os.NewSyscallError("open", syscall.EROFS):   CauseRefused,
		fmt.Errorf("%w: other", ErrLeaseHeld):       CauseLeaseLost,
		fmt.Errorf("%w: other", ErrWriting):         CauseLeaseLost,
		ErrUnconditional:                            CauseRefused,
	} {
		if got := CauseOf(err); got != want {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
	}
	for _, c := range Causes() {
		if !strings.HasSuffix(c.Remedy(), ".") {
			t.Errorf("remedy of %q: got %q, want a sentence", c, c.Remedy())
		}
	}
}

// leaseAt returns a lease in a bucket at a URL.
func leaseAt(t *testing.T, url string) *Lease {
	t.Helper()
	dir := t.TempDir()
	cfg := mustParseConfig(t, "dbs:\n  - path: "+dir+"/service.db\n    replica:\n      type: s3\n      bucket: b\n      path: copy\n"+
		"      endpoint: "+url+"\n      access-key-id: id\n      secret-access-key: secret\n")
	l, err := NewLease(t.Context(), LeaseConfig{Replica: cfg, Dir: dir, TTL: time.Minute, Logger: testLogger(t)})
	must(t, err)
	return l
}
