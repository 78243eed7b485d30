package replica

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"service/test/harness"
)

// writeReplica writes a Litestream configuration with the given lines under "replica:",
// and returns its path.
func writeReplica(tb testing.TB, data, interval string, lines ...string) string {
	tb.Helper()
	text := "dbs:\n  - path: " + data + "/service.db\n    monitor-interval: " + interval + "\n    replica:\n      sync-interval: " + interval +
		"\n"
	for _, l := range lines {
		text += "      " + l + "\n"
	}
	name := filepath.Join(tb.TempDir(), "litestream.yml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return name
}

// copyDatabase copies a database that no process has open, with its log. A test reads
// the copy, so that the original does not change.
func copyDatabase(tb testing.TB, data string) string {
	tb.Helper()
	to := tb.TempDir()
	for _, name := range []string{"service.db", "service.db-wal"} {
		b, err := os.ReadFile(filepath.Join(data, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), b, 0o600)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	return to
}

// awaitReplica waits until /readyz reports the replica in a state and up to date.
func awaitReplica(in *harness.Instance, state string) {
	in.TB.Helper()
	awaitReplicaState(in, state, func(lag float64) bool { return lag == 0 })
}

// awaitFailing waits until /readyz reports that the replica fails.
func awaitFailing(in *harness.Instance) {
	in.TB.Helper()
	awaitReplicaState(in, "failing", func(float64) bool { return true })
}

// awaitReplicaState waits until /readyz reports the replica in a state with a lag that fits.
func awaitReplicaState(in *harness.Instance, state string, fits func(lag float64) bool) {
	in.TB.Helper()
	base := in.URL()
	harness.WaitFor(in.TB, "the replica to be "+state, func() bool {
		var answer struct {
			Data struct {
				Replica struct {
					State string
					Lag   float64 `json:"lag_seconds"`
				}
			}
		}
		resp, err := in.Client.Get(base + "/readyz")
		if err == nil {
			err = json.NewDecoder(resp.Body).Decode(&answer)
			resp.Body.Close()
		}
		r := answer.Data.Replica
		return err == nil && r.State == state && fits(r.Lag)
	})
}
