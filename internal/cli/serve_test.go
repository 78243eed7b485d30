package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"
)

// TestSignalWhileStarting has a signal arrive before the service is open: that is
// an orderly end, not a failure.
func TestSignalWhileStarting(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, run := range []string{"new", "existing"} {
		var out, errs bytes.Buffer
		code := Run(ctx, []string{"serve", "--data", dir, "--listen", "127.0.0.1:0"}, Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
		if code != exitDone || errs.Len() > 0 || out.Len() > 0 {
			t.Errorf("%s data: status %d, want %d without a word\n%s%s", run, code, exitDone, &out, &errs)
		}
	}
}
