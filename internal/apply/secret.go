package apply

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"service/internal/durable"
)

// maxSecret bounds a file or variable with a secret, in bytes.
const maxSecret = 64 << 10

// resolve returns the secret that s refers to. Its errors never contain the secret.
func (s *Secret) resolve(lookup func(string) (string, bool)) (string, error) {
	text, from := "", s.Path
	if s.Env != "" {
		from = "variable " + s.Env
		value, ok := lookup(s.Env)
		if !ok {
			return "", fmt.Errorf("%s: variable %s is not set", s.At, s.Env)
		}
		text = value
	} else {
		content, err := readBounded(s.Path, maxSecret)
		if err != nil {
			return "", fmt.Errorf("%s: %s; it must be a file with the secret on one line (or use {env: NAME})", s.At, unreadable(s.Path, err))
		}
		text = string(content)
	}
	text = strings.TrimSpace(text)
	if text == "" || len(text) > maxSecret || strings.ContainsAny(text, "\r\n") {
		return "", fmt.Errorf("%s: %s must have exactly one line, the secret", s.At, from)
	}
	return text, nil
}

// unreadable describes an error of reading the file with a secret.
func unreadable(path string, err error) string {
	var failed *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "the file " + path + " does not exist"
	case errors.As(err, &failed):
		return "the file " + path + " cannot be read: " + failed.Err.Error()
	}
	return err.Error()
}

// Output is the state of a file to which a secret is to be written.
type Output struct {
	Exists  bool
	Problem string    // why it cannot be created; "" if it can
	Began   time.Time // when an interrupted run requested the secret; zero for none
}

// Pending reports whether an interrupted run requested the secret without writing it.
func (o Output) Pending() bool { return !o.Began.IsZero() && !o.Exists }

// pendingSuffix ends the name of the pending file, which exists from before a request for a secret
// until the secret is written.
const pendingSuffix = ".pending"

// pending is the content of a pending file.
type pending struct {
	Began time.Time `json:"began_at"`
}

// Outputs returns the state of the files that f names for secrets.
func Outputs(f *File) map[string]Output {
	all := make(map[string]Output)
	for _, p := range f.Programs {
		for _, s := range p.Subscriptions {
			if s.SigningSecretFile != "" {
				all[s.SigningSecretFile] = inspect(s.SigningSecretFile)
			}
		}
		for _, t := range p.Tokens {
			all[t.SecretFile] = inspect(t.SecretFile)
		}
	}
	return all
}

func inspect(path string) (o Output) {
	dir := filepath.Dir(path)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		o.Problem = dir + " is not a directory"
		return o
	}
	_, err := os.Lstat(path)
	o.Exists = err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		o.Problem = "it is not readable"
	}
	content, err := readBounded(path+pendingSuffix, maxSecret)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return o
	case err != nil:
		o.Problem = path + pendingSuffix + " is not readable"
		return o
	}
	var p pending
	if json.Unmarshal(content, &p) != nil || p.Began.IsZero() {
		o.Problem = path + pendingSuffix + " is not a file of service apply: remove it"
		return o
	}
	o.Began = p.Began
	return o
}

// begin writes the pending file of a request.
func begin(path string, now time.Time) error {
	content, err := json.Marshal(pending{now.UTC()})
	if err != nil {
		return err
	}
	return durable.WriteFile(path+pendingSuffix, content, 0o600)
}

// finish creates the file with a secret and removes the pending file. It never overwrites a
// file. The file is complete as soon as it exists.
func finish(path, secret string) error {
	f, err := durable.CreateTemp(path)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(secret + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil {
		return err // link fails if the file exists
	}
	if err := durable.SyncDir(filepath.Dir(path)); err != nil {
		return err
	}
	return os.Remove(path + pendingSuffix)
}

// Tidy removes what interrupted runs left next to the files with secrets: incomplete files, and
// pending files whose secret is written.
func Tidy(outputs map[string]Output) error {
	var errs []error
	dirs := make(map[string]bool)
	for path, o := range outputs {
		if o.Exists && !o.Began.IsZero() {
			errs = append(errs, os.Remove(path+pendingSuffix))
		}
		dirs[filepath.Dir(path)] = true
	}
	for dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // Diff reports it if a file must be created there
		}
		for _, e := range entries {
			name, _, incomplete := strings.Cut(e.Name(), durable.TempSuffix)
			if _, ours := outputs[filepath.Join(dir, strings.TrimSuffix(name, pendingSuffix))]; incomplete && ours {
				errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
			}
		}
	}
	return errors.Join(errs...)
}
