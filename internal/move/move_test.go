package move_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"service/api"
	"service/internal/move"
	"service/store"
	"service/store/replica"
	"service/store/storetest"
	"service/test/harness"
	"service/webhook"
)

// TestMoveWaitsForReplica ends the replication of the source after the program has arrived: the
// source does not activate the target, since a host that takes over would not know of the move.
func TestMoveWaitsForReplica(t *testing.T) {
	catalog, err := webhook.LoadCatalog()
	if err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.DiscardHandler)
	from, to := openStore(t, true), openStore(t, false)
	replicating, stopReplicating := context.WithCancel(t.Context())
	replicated := make(chan error, 1)
	go func() { replicated <- from.Replica().Run(replicating) }()

	target := &move.Target{Store: to, Catalog: catalog, Logger: logger}
	t.Cleanup(target.Close)
	handler := api.New(api.Config{Store: to, Catalog: catalog, Moves: target, Logger: logger, MaxSubscriptions: 10})
	activated := make(chan bool, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/activate") {
			activated <- true
		}
		handler.ServeHTTP(w, r)
		if strings.HasSuffix(r.URL.Path, "/rest") {
			stopReplicating()
			if err := <-replicated; err != nil {
				t.Error(err)
			}
		}
	}))
	t.Cleanup(server.Close)

	newToken(t, from, webhook.NewToken{ProgramID: "acme", UserID: "ada", Scopes: webhook.Scopes()})
	token := newToken(t, to, webhook.NewToken{UserID: "ops", Scopes: []webhook.Scope{webhook.ScopePlatform}})
	source := &move.Source{Store: from, Catalog: catalog, Cut: func(string) {}, Logger: logger}
	running, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- source.Run(running) }()
	var job *move.Job
	for job == nil { // Run may not have begun
		job, _, err = source.Start(t.Context(), "acme", &store.MoveTarget{URL: server.URL, Token: token},
			webhook.AuditEntry{Admin: webhook.Terminal})
		if refused, ok := err.(*webhook.Error); err != nil && (!ok || refused.Code != webhook.CodeUnavailable) {
			t.Fatal(err)
		}
	}
	lines := make(chan string, 100)
	go func() {
		_ = job.Follow(t.Context(), func(line string) { lines <- line })
		close(lines)
	}()
	for recorded := false; !recorded; {
		select {
		case <-activated:
			t.Fatal("the source activates the target before its replica has the move")
		case line, ok := <-lines:
			if !ok {
				t.Fatal("the move ended")
			}
			m := from.Programs().Move("acme")
			recorded = strings.HasPrefix(line, "Waiting for the replica") && m != nil && m.Status == webhook.ProgramMoved
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if m := to.Programs().Move("acme"); m == nil || m.Status != webhook.ProgramArriving {
		t.Errorf("the target has %+v", m)
	}
}

func openStore(t *testing.T, replicated bool) *store.Store {
	t.Helper()
	cfg := store.Config{Dir: t.TempDir()}
	if replicated {
		name := filepath.Join(t.TempDir(), "litestream.yml")
		text := "dbs:\n  - path: " + cfg.Dir + "/service.db\n    replica:\n      path: " + t.TempDir() + "\nshutdown-sync-timeout: 1s\n"
		err := os.WriteFile(name, []byte(text), 0o600)
		if err == nil {
			cfg.Replica, err = replica.ReadConfig(name, func(string) (string, bool) { return "", false })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s, err := store.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func newToken(t *testing.T, s *store.Store, n webhook.NewToken) string {
	t.Helper()
	_, secret, err := storetest.CreateToken(t.Context(), s, n)
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// A move whose certificates cannot be parsed does not end the other moves: the frozen programs are
// active again.
func TestUnusableMove(t *testing.T) {
	s := openStore(t, false)
	for id, to := range map[string]*store.MoveTarget{
		"acme": {URL: "https://127.0.0.1:1", CA: "not a certificate", Token: "x"},
		"beta": {URL: "http://127.0.0.1:1", Token: "x"},
	} {
		newToken(t, s, webhook.NewToken{ProgramID: id, UserID: "ada", Scopes: webhook.Scopes()})
		err := s.Write(t.Context(), func(w store.Write) error { return w.Moves().Begin(id, webhook.NewID(), to) })
		if err != nil {
			t.Fatal(err)
		}
	}
	source := &move.Source{Store: s, Logger: slog.New(slog.DiscardHandler), Cut: func(string) {}}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- source.Run(ctx) }()
	harness.WaitFor(t, "the programs to be active", func() bool {
		return s.Programs().Move("acme") == nil && s.Programs().Move("beta") == nil
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
