package web

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"service/store"
	"service/store/datadir"
	"service/store/replica"
	"service/web/ui"
)

// replicaOf configures a replica in a directory.
func replicaOf(t *testing.T, dir, target string) *replica.Config {
	t.Helper()
	name := filepath.Join(t.TempDir(), "litestream.yml")
	must(t, os.WriteFile(name, []byte("dbs: [{path: "+dir+"/service.db, replica: {path: "+target+"}}]"), 0o600))
	cfg, err := replica.ReadConfig(name, os.LookupEnv)
	must(t, err)
	return cfg
}

// TestHeldDeliveries restores a service and resumes its deliveries with the button.
func TestHeldDeliveries(t *testing.T) {
	lost, dir, target := t.TempDir(), t.TempDir(), t.TempDir()
	s, err := store.Open(t.Context(), store.Config{Dir: lost, Replica: replicaOf(t, lost, target)})
	must(t, err)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	must(t, s.Replica().Run(done))
	must(t, s.Close())
	key, err := os.ReadFile(filepath.Join(lost, "secret.key"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "secret.key"), key, 0o600)
	}
	must(t, err)
	r, err := datadir.Restore(dir, true)
	must(t, err)
	if _, err = r.FromReplica(t.Context(), replicaOf(t, dir, target), time.Time{}); err == nil {
		_, err = r.Commit()
	}
	must(t, errors.Join(err, r.Close()))
	if s, err = store.Open(t.Context(), store.Config{Dir: dir, Replica: replicaOf(t, dir, target)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	must(t, s.Holds().Begin(t.Context()))

	w := testWeb(t, func(c *Config) { c.Store = s })
	v := visit(t, w)
	v.do("POST", "/system/release").want(t, 401, "")
	if _, held := s.Holds().Current(); !held {
		t.Fatal("a stranger has ended the hold")
	}
	v.signIn(w)
	for _, path := range []string{"/", "/system"} {
		v.do("GET", path).want(t, 200, "The database was restored, and deliveries are paused.")
	}
	v.do("GET", "/system").want(t, 200, "file://"+target)
	v.do("POST", "/system/release").want(t, 303, "")
	if _, held := s.Holds().Current(); held {
		t.Error("the button has not ended the hold")
	}
	v.do("GET", "/system").hasNot(t, "The database was restored")
	v.do("POST", "/system/release").want(t, 409, "Deliveries are not paused.")
	wantAudit(t, w, "restore.release")
}

// TestVerifiedReplica checks that the page shows when the replica was last equal to the database,
// and any damage.
func TestVerifiedReplica(t *testing.T) {
	at := time.Date(2026, 3, 14, 8, 24, 48, 0, time.UTC)
	status := store.ReplicaStatus{State: store.ReplicaRunning, Target: "file:///copy", VerifyInterval: 24 * time.Hour}
	want := func(parts ...string) {
		t.Helper()
		contains(t, "the section", rendered(t, replicaSection(ui.Frame{}, &status)), parts, nil)
	}
	want("not yet; every 24 h")
	status.Verified = store.ReplicaVerification{Time: at, Bytes: 3 << 20, Took: 1200 * time.Millisecond}
	want("Matched the database", "(3.0 MiB in 1.2 s; every 24 h)")
	status.Verified.Failed, status.Verified.Err = at.Add(-time.Minute), "the object <0009> is damaged"
	want("the object &lt;0009&gt; is damaged", "replaced by a new snapshot")
	status.Verified.Failing = true
	want("not replaced yet")
	status.VerifyInterval = 0
	want("--verify-replica 0")
}
