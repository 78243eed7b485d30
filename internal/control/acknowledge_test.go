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
	st, err := store.Open(t.Context(), store.Config{Dir: dir, Replica: cfg, AcknowledgeTimeout: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	l, err := Listen(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: (&Server{Store: AuditedStore{Store: st, Version: "v1"}, Logger: slog.New(slog.DiscardHandler)}).Handler()}
	done := make(chan error)
	go func() { done <- server.Serve(l) }()
	ctx, stop := context.WithCancel(context.Background())
	replicating := make(chan error)
	t.Cleanup(func() {
		server.Close()
		<-done
		stop()
		<-replicating
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	c, err := Dial(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	create := func() error {
		_, _, err := c.CreateToken(t.Context(), webhook.NewToken{ProgramID: "p", UserID: "u", Scopes: webhook.Scopes()})
		return err
	}
	if err := create(); err == nil || !strings.Contains(err.Error(), "stored on this host") {
		t.Errorf("without replication: got %v, want an error", err)
	}
	if all, err := c.Tokens(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("got %d tokens, %v; want 1", len(all), err)
	}
	go func() { replicating <- st.Replica().Run(ctx) }()
	for n := 0; create() != nil; n++ {
		if n == 100 {
			t.Fatal("with replication: the write was not acknowledged")
		}
	}
}
