package certs

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"

	"service/store/certificate"
)

// databaseStorage implements certmagic's storage in the database.
type databaseStorage struct{ *certificate.Storage }

// Stat implements [certmagic.Storage].
func (s databaseStorage) Stat(ctx context.Context, path string) (certmagic.KeyInfo, error) {
	f, err := s.Storage.Stat(ctx, path)
	return certmagic.KeyInfo{Key: f.Path, Modified: f.Changed, Size: f.Size, IsTerminal: !f.Folder}, err
}

// String keeps the contents out of logs.
func (databaseStorage) String() string { return "the database" }

// memoryStorage implements certmagic's storage in memory, for the certificate of the local
// CA: each start issues a new one, so it needs no disk.
type memoryStorage struct {
	mu    sync.Mutex
	files map[string]memoryFile
	locks map[string]chan struct{} // held locks; closed by Unlock
}

type memoryFile struct {
	value   []byte
	changed time.Time
}

func newMemoryStorage() *memoryStorage {
	return &memoryStorage{files: make(map[string]memoryFile), locks: make(map[string]chan struct{})}
}

// String keeps the contents out of logs.
func (*memoryStorage) String() string { return "memory" }

// Store implements [certmagic.Storage].
func (m *memoryStorage) Store(_ context.Context, path string, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[path] = memoryFile{value, time.Now()}
	return nil
}

// Load implements [certmagic.Storage].
func (m *memoryStorage) Load(_ context.Context, path string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.files[path]
	if !ok {
		return nil, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	return f.value, nil
}

// Delete implements [certmagic.Storage].
func (m *memoryStorage) Delete(_ context.Context, path string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.files {
		if name == path || strings.HasPrefix(name, path+"/") {
			delete(m.files, name)
		}
	}
	return nil
}

// Exists implements [certmagic.Storage].
func (m *memoryStorage) Exists(ctx context.Context, path string) bool {
	_, err := m.Stat(ctx, path)
	return err == nil
}

// List implements [certmagic.Storage]. certmagic does not list local certificates.
func (m *memoryStorage) List(_ context.Context, folder string, _ bool) ([]string, error) {
	return nil, fmt.Errorf("%s: %w", folder, fs.ErrNotExist)
}

// Stat implements [certmagic.Storage].
func (m *memoryStorage) Stat(_ context.Context, path string) (certmagic.KeyInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.files[path]
	if !ok {
		return certmagic.KeyInfo{}, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	return certmagic.KeyInfo{Key: path, Modified: f.changed, Size: int64(len(f.value)), IsTerminal: true}, nil
}

// Lock implements [certmagic.Locker].
func (m *memoryStorage) Lock(ctx context.Context, name string) error {
	for {
		m.mu.Lock()
		held, taken := m.locks[name]
		if !taken {
			m.locks[name] = make(chan struct{})
		}
		m.mu.Unlock()
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
func (m *memoryStorage) Unlock(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if held, ok := m.locks[name]; ok {
		close(held)
		delete(m.locks, name)
	}
	return nil
}
