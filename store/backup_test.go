package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"service/internal/durable"
	"service/store/datadir"
	"service/webhook"
)

// A snapshot contains everything written before it. The store refuses it if the disk has no room.
func TestSnapshot(t *testing.T) {
	dir := t.TempDir()
	s := openDir(t, dir)
	_, _, err := s.Tokens().Create(t.Context(), webhook.NewToken{ProgramID: "p", UserID: "u", Scopes: webhook.Scopes()})
	must(t, err)
	publish := func() {
		t.Helper()
		id := webhook.NewID()
		e := webhook.Event{ID: id, Name: "content_updated", ReceivedAt: time.Now(), JSON: []byte(`{"id":"` + id + `"}`)}
		publishAll(t, s, "p", e)
	}
	publish()
	snapshot, err := s.Snapshot(t.Context(), 1)
	must(t, err)
	publish()
	if info, err := os.Stat(snapshot.Path); err != nil || info.Mode().Perm() != 0o600 || info.Size() != snapshot.Bytes {
		t.Errorf("file: got %v, %v, want mode 0600 and %d bytes", info, err, snapshot.Bytes)
	}
	c, err := datadir.Inspect(t.Context(), snapshot.Path, snapshot.Keys)
	if err != nil || c.Events != 1 || c.Programs != 1 || c.Schema != snapshot.Schema {
		t.Errorf("got %+v, %v", c, err)
	}
	if _, err := datadir.Inspect(t.Context(), snapshot.Path, []byte(strings.Repeat("5f", 32))); !errors.Is(err, datadir.ErrUnusable) {
		t.Errorf("wrong key: got %v, want %v", err, datadir.ErrUnusable)
	}
	if _, err := datadir.Inspect(t.Context(), snapshot.Path, []byte("no key")); !errors.Is(err, datadir.ErrUnusable) {
		t.Errorf("malformed key: got %v, want %v", err, datadir.ErrUnusable)
	}
	damagedCopy, err := os.ReadFile(snapshot.Path)
	must(t, err)
	for i := 5 * 4096; i < 6*4096; i++ {
		damagedCopy[i] ^= 0xff
	}
	bad := filepath.Join(t.TempDir(), "bad.db")
	must(t, os.WriteFile(bad, damagedCopy, 0o600))
	if _, err := datadir.Inspect(t.Context(), bad, nil); !errors.Is(err, datadir.ErrUnusable) {
		t.Errorf("damaged: got %v, want %v", err, datadir.ErrUnusable)
	}
	if err := snapshot.Remove(); err != nil {
		t.Error(err)
	}

	var refused *webhook.Error
	if _, err := s.Snapshot(t.Context(), 1<<40); !errors.As(err, &refused) || refused.Code != webhook.CodeUnavailable {
		t.Errorf("no room: got %v, want an error", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Snapshot(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*"+durable.TempSuffix+"*")); err != nil || len(left) > 0 {
		t.Errorf("left-over files: got %v, %v", left, err)
	}
}
