package control

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"service/store"
	"service/store/replica"
	"service/test/harness"
	"service/webhook"
)

// TestAcknowledge checks that a write fails while the replica does not have it, and that the
// error says that it is stored on this host. Reads do not wait for the replica.
func TestAcknowledge(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(t.TempDir(), "litestream.yml")
	if err := os.WriteFile(name, []byte("dbs: [{path: "+dir+"/service.db, replica: {path: "+t.TempDir()+"}}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := replica.ReadConfig(name, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	create := func(c *Client) error {
		_, _, err := c.CreateToken(t.Context(), webhook.NewToken{ProgramID: "p", UserID: "u", Scopes: webhook.Scopes()})
		return err
	}
	withReplicated(t, store.Config{Dir: dir, Replica: cfg, AcknowledgeTimeout: time.Millisecond}, func(_ *store.Store, c *Client) {
		if err := create(c); err == nil || !strings.Contains(err.Error(), "stored on this host") {
			t.Errorf("without replication: got %v, want an error", err)
		}
		if all, err := c.Tokens(t.Context()); err != nil || len(all) != 1 {
			t.Errorf("got %d tokens, %v; want 1", len(all), err)
		}
	})
	withReplicated(t, store.Config{Dir: dir, Replica: cfg, AcknowledgeTimeout: harness.Timeout()}, func(st *store.Store, c *Client) {
		ctx, stop := context.WithCancel(context.Background())
		replicating := make(chan error)
		go func() { replicating <- st.Replica().Run(ctx) }()
		if err := create(c); err != nil {
			t.Errorf("with replication: %v", err)
		}
		stop()
		<-replicating
	})
}

// withReplicated calls use with a store and a client of its socket.
func withReplicated(t *testing.T, cfg store.Config, use func(*store.Store, *Client)) {
	t.Helper()
	st, err := store.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := Listen(t.Context(), cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: (&Server{Store: AuditedStore{Store: st, Version: "v1"}, Logger: slog.New(slog.DiscardHandler)}).Handler()}
	done := make(chan error)
	go func() { done <- server.Serve(l) }()
	c, err := Dial(t.Context(), cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	use(st, c)
	c.Close()
	server.Close()
	<-done
	if err := st.Close(); err != nil {
		t.Error(err)
	}
}
