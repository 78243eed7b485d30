package main

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"

	"service/store"
)

// storedCertificates is certmagic's storage in the database.
type storedCertificates struct{ *store.Certificates }

// Stat implements [certmagic.Storage].
func (s storedCertificates) Stat(ctx context.Context, path string) (certmagic.KeyInfo, error) {
	f, err := s.Certificates.Stat(ctx, path)
	return certmagic.KeyInfo{Key: f.Path, Modified: f.Changed, Size: f.Size, IsTerminal: !f.Folder}, err
}

// String keeps what the storage leads to out of logs.
func (storedCertificates) String() string { return "the database" }

// heldCertificates is certmagic's storage for what a start makes anew, in
// memory: the certificate of the local CA needs no disk that can be written. It
// holds a handful of files, each of a path with / in it.
type heldCertificates struct {
	mu    sync.Mutex
	files map[string]heldFile
	locks map[string]chan struct{} // closed when the lock is free again
}

type heldFile struct {
	value   []byte
	changed time.Time
}

func newHeldCertificates() *heldCertificates {
	return &heldCertificates{files: make(map[string]heldFile), locks: make(map[string]chan struct{})}
}

// String keeps what it holds out of logs.
func (*heldCertificates) String() string { return "memory" }

// Store implements [certmagic.Storage].
func (h *heldCertificates) Store(_ context.Context, path string, value []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.files[path] = heldFile{value, time.Now()}
	return nil
}

// Load implements [certmagic.Storage].
func (h *heldCertificates) Load(_ context.Context, path string) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f, ok := h.files[path]
	if !ok {
		return nil, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	return f.value, nil
}

// Delete implements [certmagic.Storage].
func (h *heldCertificates) Delete(_ context.Context, path string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name := range h.files {
		if name == path || strings.HasPrefix(name, path+"/") {
			delete(h.files, name)
		}
	}
	return nil
}

// Exists implements [certmagic.Storage].
func (h *heldCertificates) Exists(ctx context.Context, path string) bool {
	_, err := h.Stat(ctx, path)
	return err == nil
}

// List implements [certmagic.Storage]. Nothing of what is held is looked for by
// a list.
func (h *heldCertificates) List(_ context.Context, folder string, _ bool) ([]string, error) {
	return nil, fmt.Errorf("%s: %w", folder, fs.ErrNotExist)
}

// Stat implements [certmagic.Storage].
func (h *heldCertificates) Stat(_ context.Context, path string) (certmagic.KeyInfo, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f, ok := h.files[path]
	if !ok {
		return certmagic.KeyInfo{}, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	return certmagic.KeyInfo{Key: path, Modified: f.changed, Size: int64(len(f.value)), IsTerminal: true}, nil
}

// Lock implements [certmagic.Locker].
func (h *heldCertificates) Lock(ctx context.Context, name string) error {
	for {
		h.mu.Lock()
		held, taken := h.locks[name]
		if !taken {
			h.locks[name] = make(chan struct{})
		}
		h.mu.Unlock()
		if !taken {
			return nil
		}
		select {
		case <-held:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Unlock implements [certmagic.Locker].
func (h *heldCertificates) Unlock(_ context.Context, name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if held, ok := h.locks[name]; ok {
		close(held)
		delete(h.locks, name)
	}
	return nil
}
