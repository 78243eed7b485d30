package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"service/internal/durable"
	"service/store/replica"
)

// writeSign writes the sign of life of a service on another machine to the first term of a replica
// in a folder.
func writeSign(t *testing.T, target string, writes int, released bool) {
	t.Helper()
	dir := filepath.Join(target, "terms", "0001")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"term.json": `{"term":1,"began":"2026-03-14T08:00:00Z","nonce":"x","snapshot":true}`,
		"writer.json": fmt.Sprintf(`{"generation":1,"owner":"machine-1 0198","since":"2026-03-14T08:24:48Z","period_ms":30000,`+
			`"writes":%d,"released":%t}`, writes, released),
	} {
		// As the service does: a reader must not see half a file.
		if err := durable.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A service without a lease does not start while another service with the same replica is alive,
// and its error says where that service is, since when, and what to do.
func TestSecondServiceRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, target := unleasedConfig(t)
		writeSign(t, target, 1, false)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for n := 2; ctx.Err() == nil; n++ {
				select {
				case <-ctx.Done():
				case <-time.After(10 * time.Second):
					writeSign(t, target, n, false)
				}
			}
		}()
		err := cfg.checkUnleased(ctx)
		cancel()
		<-done
		if !errors.Is(err, replica.ErrWriting) {
			t.Fatalf("got %v, want %v", err, replica.ErrWriting)
		}
		for _, part := range []string{
			"host machine-1, since 2026-03-14T08:24:48", "file://" + target, "stop that one first", "--litestream off", "--lease",
		} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("got %q, want %q", err, part)
			}
		}
	})
}

// unleasedConfig returns a configuration with a replica in the folder target.
func unleasedConfig(t *testing.T) (cfg *Config, target string) {
	t.Helper()
	target = t.TempDir()
	from, err := replica.ParseURL("file://" + target)
	if err != nil {
		t.Fatal(err)
	}
	return &Config{Data: Data{Dir: t.TempDir(), Replica: from}, Logger: slog.New(slog.DiscardHandler)}, target
}

// A service without a lease starts if the replica is empty or cannot be read, or if the service
// that wrote to it is gone. It checks again after the database was restored.
func TestSecondServiceStarts(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, target string){
		"killed":  func(t *testing.T, target string) { writeSign(t, target, 1, false) },
		"stopped": func(t *testing.T, target string) { writeSign(t, target, 1, true) },
		"empty":   func(*testing.T, string) {},
		"unreadable": func(t *testing.T, target string) { // the restore fails
			if err := os.WriteFile(filepath.Join(target, "terms"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg, target := unleasedConfig(t)
				prepare(t, target)
				if err := errors.Join(cfg.checkUnleased(t.Context()), cfg.checkGone(t.Context())); err != nil {
					t.Errorf("got %v, want no error", err)
				}
				if name != "killed" {
					return
				}
				writeSign(t, target, 2, false)
				if err := cfg.checkGone(t.Context()); !errors.Is(err, replica.ErrWriting) {
					t.Errorf("back again: got %v, want %v", err, replica.ErrWriting)
				}
			})
		})
	}
}

// Data that was restored from a replica waits until the replica can be read, and the error says how
// to start without it.
func TestRestoredDataWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, target := unleasedConfig(t)
		writeSign(t, target, 1, true)
		meta, terms := filepath.Join(cfg.Dir, ".service.db-litestream"), filepath.Join(target, "terms")
		record := fmt.Sprintf(`{"replica":%q,"term":1,"nonce":"x"}`, cfg.Replica.Target())
		if err := errors.Join(os.Mkdir(meta, 0o700), os.WriteFile(filepath.Join(meta, "term.json"), []byte(record), 0o600),
			os.WriteFile(filepath.Join(cfg.Dir, "service.db"), nil, 0o600), os.Rename(terms, terms+"-away"),
			os.WriteFile(terms, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		log := new(lockedBuffer)
		cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
		done := make(chan error, 1)
		go func() { done <- cfg.checkUnleased(t.Context()) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("got %v while the replica cannot be read", err)
		default:
		}
		if !strings.Contains(log.String(), "--litestream off") {
			t.Errorf("log: want how to do without the replica:\n%s", log)
		}
		// In one step: without the folder, the replica is empty.
		if err := errors.Join(os.Symlink(terms+"-away", terms+"-back"), os.Rename(terms+"-back", terms)); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("readable again, and the other has stopped: got %v, want no error", err)
		}
	})
}
