package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"service/internal/durable"
	"service/webhook"
)

// ErrKey says that the key of the secrets, or its file, cannot be used. No
// error holds anything of the file's content.
var ErrKey = errors.New("the secret key")

// keyFault is an error about the key's file, in words for whoever runs the
// service.
type keyFault struct{ error }

func (keyFault) Is(target error) bool { return target == ErrKey }
func (e keyFault) Unwrap() error      { return e.error }

func keyError(format string, args ...any) error { return keyFault{fmt.Errorf(format, args...)} }

const (
	// maxKeys bounds how many keys a file may hold: the new one, and those it
	// replaces.
	maxKeys = 8
	// maxKeyFile bounds the file, in bytes.
	maxKeyFile = 4 << 10
)

// secretKey is what all secrets in a database are sealed with.
type secretKey [32]byte

func newSecretKey() (k secretKey) {
	rand.Read(k[:])
	return k
}

// String keeps the key out of logs and errors.
func (secretKey) String() string { return "[redacted]" }

// keyring is the file of the keys: a line of 64 hexadecimal digits each. The
// first seals. Others are there while a rotation is under way, and open what
// it has not come to.
type keyring struct {
	path  string
	named bool // by the operator; otherwise it is the one in the data directory
}

// newKeyring returns the file named by the operator, or the one in the data
// directory when name is "", and removes what a crash has left beside it.
func newKeyring(dir, name string) (*keyring, error) {
	k, err := keyringOf(dir, name)
	if err != nil {
		return nil, err
	}
	// Keys must not lie about.
	err = durable.RemoveTemp(filepath.Dir(k.path), filepath.Base(k.path)+durable.TempSuffix)
	if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EROFS) {
		return nil, keyError("what a crash has left: %w", err)
	}
	return k, nil
}

// keyringOf returns the same, and touches nothing.
func keyringOf(dir, name string) (*keyring, error) {
	inside := filepath.Join(dir, keyFile)
	k := &keyring{path: inside}
	if name != "" {
		lies, err := liesIn(dir, name)
		if err != nil {
			return nil, keyError("%s: %w", name, err)
		}
		switch lies {
		case keyFile:
		case "":
			k.path, k.named = name, true
		default:
			return nil, keyError("%s lies in the data directory %s: a copy of that would hold the secrets and their key; keep the key elsewhere, or name none, which means %s", name, dir, inside)
		}
	}
	return k, nil
}

// CheckKeyFile says what is wrong with the file of a key that the operator has
// named for a data directory, be that there yet or not; "" names none. It touches
// nothing, and does not know whether the key fits the database. The error wraps
// [ErrKey].
func CheckKeyFile(dir, name string) error {
	if name == "" {
		return nil
	}
	k, err := keyringOf(dir, name)
	if err != nil || !k.named {
		return err
	}
	if _, err = k.read(); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, err = os.Stat(filepath.Join(dir, databaseFile))
	return k.missing(err == nil)
}

// missing says that the file is not there, and what to do: the secrets of a
// database need the key that they were sealed with.
func (k *keyring) missing(needed bool) error {
	if needed {
		return keyError("%s is missing: it is the key of the secrets in this database; put it back", k.path)
	}
	// Perhaps its disk is not mounted yet. A key that is made in its stead
	// would be gone with the next restart, and all secrets with it.
	return keyError("%s is missing, and is not made: put 64 random hexadecimal digits into it, readable for this user alone: (umask 077; openssl rand -hex 32 > FILE)", k.path)
}

// liesIn returns a file's path below a directory, "" when it lies elsewhere.
// Links count as what they lead to, as far as that is there.
func liesIn(dir, name string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if led, err := filepath.EvalSymlinks(dir); err == nil {
		dir = led
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	file, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	if led, err := filepath.EvalSymlinks(file); err == nil {
		file = led
	} else if folder, err := filepath.EvalSymlinks(filepath.Dir(file)); err == nil {
		file = filepath.Join(folder, filepath.Base(file))
	}
	below, err := filepath.Rel(dir, file)
	if err != nil || !filepath.IsLocal(below) {
		return "", nil // not below it, or on another drive
	}
	return below, nil
}

func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// read returns the keys, the first of which seals. The error wraps
// fs.ErrNotExist when the file is not there, and [ErrKey] in all cases.
func (k *keyring) read() ([]secretKey, error) {
	info, err := os.Stat(k.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, keyError("%s is missing: %w", k.path, err)
	case err != nil:
		return nil, k.unreadable(err)
	case info.IsDir():
		return nil, keyError("%s is a directory; it must be a file that holds the key", k.path)
	case !info.Mode().IsRegular():
		return nil, keyError("%s is not a regular file; the key is read again when it is replaced", k.path)
	case info.Size() == 0:
		return nil, keyError("%s is empty; %s", k.path, keyForm)
	case info.Size() > maxKeyFile:
		return nil, keyError("%s is no key file, it has %d bytes; %s", k.path, info.Size(), keyForm)
	}
	if err := k.checkMode(info); err != nil {
		return nil, err
	}
	f, err := os.Open(k.path)
	if err != nil {
		return nil, k.unreadable(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return nil, k.unreadable(err)
	}
	keys, ok := parseKeys(text)
	if !ok {
		return nil, keyError("%s does not hold a key; %s", k.path, keyForm)
	}
	return keys, nil
}

const keyForm = "it must hold 64 hexadecimal digits, the key, and below it, while one is being replaced, the older ones, a line each, 8 in all at the most"

func (k *keyring) unreadable(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return keyError("%s may not be read by the user that the service runs as (%d): %w", k.path, os.Geteuid(), err)
	}
	return keyError("%s cannot be read: %w", k.path, err)
}

// checkMode refuses a key that other users could read or change, when it is
// this user's to protect. Another user's file may well be meant for a group,
// and shows it: so systemd and Kubernetes hand over secrets.
func (k *keyring) checkMode(info fs.FileInfo) error {
	mode := info.Mode().Perm()
	owner, known := info.Sys().(*syscall.Stat_t)
	switch {
	case mode&0o022 != 0:
		return keyError("%s can be changed by other users than its owner (mode %04o): chmod 600 %[1]s", k.path, mode)
	case mode&0o077 != 0 && known && int(owner.Uid) == os.Geteuid():
		return keyError("%s can be read by other users (mode %04o): chmod 600 %[1]s (for a secret that Kubernetes mounts: defaultMode: 0400)", k.path, mode)
	}
	return nil
}

// exposed says whether every user of the machine can read the file.
func (k *keyring) exposed() bool {
	info, err := os.Stat(k.path)
	return err == nil && info.Mode().Perm()&0o004 != 0
}

// write replaces the keys. When it fails the file is as it was, or the new one
// is whole in its place.
func (k *keyring) write(keys []secretKey) error {
	return durable.ReplaceFile(k.path, formatKeys(keys))
}

func formatKeys(keys []secretKey) []byte {
	var b bytes.Buffer
	for _, k := range keys {
		b.WriteString(hex.EncodeToString(k[:]))
		b.WriteByte('\n')
	}
	return b.Bytes()
}

func parseKeys(text []byte) ([]secretKey, bool) {
	var keys []secretKey
	for line := range bytes.Lines(bytes.TrimSpace(text)) {
		var k secretKey
		line = bytes.TrimSpace(line)
		if hex.DecodedLen(len(line)) != len(k) {
			return nil, false
		}
		if _, err := hex.Decode(k[:], line); err != nil {
			return nil, false
		}
		keys = append(keys, k)
	}
	return keys, 0 < len(keys) && len(keys) <= maxKeys
}

// KeyRotation is what became of the secrets when their key was replaced.
type KeyRotation struct {
	File                 string // where the key is
	AuthorizationHeaders int    // sealed anew, as are the others
	SigningSecrets       int    // those that were replaced and still sign among them
	Answers              int    // kept for requests that are sent again
	CertificateFiles     int    // certificates, their keys, accounts at their issuer
	OldKeyKept           bool   // in the file, which cannot be written: its lines but the first are of no more use
}

// Secrets is how many secrets were sealed anew.
func (r *KeyRotation) Secrets() int {
	return r.AuthorizationHeaders + r.SigningSecrets + r.Answers + r.CertificateFiles
}

// RotateKey replaces the key that the secrets are sealed with, while all else
// goes on. The new key is random; or, when the operator has put one above the
// present one in the file, that one.
//
// At every moment, and so after every crash, the file holds the keys of all
// that is sealed: first the new key is put above the old one, then everything
// is sealed anew in small writes, and at the end the old key is dropped. When
// ctx ends in between, or something fails, both keys stay, and the next call,
// or the next start, goes on.
//
// The error wraps [ErrKey] when the file is the cause.
func (s *Store) RotateKey(ctx context.Context) (KeyRotation, error) {
	s.seal.rotating.Lock()
	defer s.seal.rotating.Unlock()
	r := KeyRotation{File: s.seal.file.path}
	keys, err := s.seal.file.read()
	if err != nil {
		return r, err
	}
	present := s.seal.current()
	given := keys[0] != present
	if given && !slices.Contains(keys, present) {
		return r, keyError("%s does not hold the key in use any more: put it back, below the new one", r.File)
	}
	if !given {
		if len(keys) > 1 { // an earlier one did not come to its end
			before := KeyRotation{File: r.File}
			if err := s.seal.use(keys); err != nil {
				return r, err
			}
			if err := s.reseal(ctx, &before); err != nil {
				return r, err
			}
			keys = keys[:1]
		}
		if err := ctx.Err(); err != nil {
			return r, err
		}
		keys = []secretKey{newSecretKey(), keys[0]}
		if err := s.seal.file.write(keys); err != nil {
			return r, keyError("%s cannot be written, and the secrets are sealed as before (%w); to replace the key put a new one, 64 random hexadecimal digits, into it on a line above the present one, and call this again or restart the service", r.File, err)
		}
	}
	if err := ctx.Err(); err != nil {
		return r, err
	}
	if err := s.seal.use(keys); err != nil {
		return r, err
	}
	if err := s.reseal(ctx, &r); err != nil {
		return r, err
	}
	if err := ctx.Err(); err != nil {
		return r, err
	}
	if err := s.seal.file.write(keys[:1]); err != nil {
		if !given {
			return r, keyError("%s cannot be written: all secrets are sealed with the new key, and the old one is still on its second line; the next start removes it: %w", r.File, err)
		}
		r.OldKeyKept = true
	}
	return r, nil
}

// finishRotation goes on with a rotation that did not come to its end, if
// there is one. If it cannot, nothing is lost: all the keys are there.
func (s *Store) finishRotation() {
	var keys []secretKey
	for _, k := range *s.seal.keys.Load() {
		keys = append(keys, k.key)
	}
	if len(keys) == 1 {
		return
	}
	r := KeyRotation{File: s.seal.file.path}
	if err := s.reseal(context.Background(), &r); err != nil {
		s.logger.Warn("the rotation of the secret key cannot be finished; both keys are in use", "file", r.File, "error", err)
		return
	}
	if err := s.seal.file.write(keys[:1]); err != nil {
		s.logger.Warn("nothing is sealed with the older keys any more: remove all lines but the first", "file", r.File, "resealed", r.Secrets(), "error", err)
		return
	}
	s.logger.Info("the rotation of the secret key is finished", "file", r.File, "resealed", r.Secrets())
}

// resealAtOnce is how many secrets are sealed anew in one write. The other
// writes wait for less than a millisecond then.
const resealAtOnce = 32

// sealedColumn is a column of sealed secrets.
type sealedColumn struct {
	count func(*KeyRotation) *int
	// next selects what comes after a row, (?1, ?2), in the order of an index,
	// the first ?3 rows whatever is in them: the row, as a text and a number;
	// the place that the secret is sealed for; the secret, if there is one.
	next string
	// update stores ?3 in the row (?1, ?2).
	update string
}

// sealedColumns is everything that is sealed: a column that is not here would
// be lost with the first rotation. Their order matters: replaced signing
// secrets are copies of present ones, which must be sealed anew before.
func sealedColumns() []sealedColumn {
	return []sealedColumn{
		{
			func(r *KeyRotation) *int { return &r.AuthorizationHeaders },
			"SELECT id, 0, 'authorization_header of ' || id, authorization_header FROM subscriptions WHERE id > ?1 AND ?2 = 0 ORDER BY id LIMIT ?3",
			"UPDATE subscriptions SET authorization_header = ?3 WHERE id = ?1 AND ?2 = 0",
		},
		{
			func(r *KeyRotation) *int { return &r.SigningSecrets },
			"SELECT id, 0, 'signing_secret of ' || id, signing_secret FROM subscriptions WHERE id > ?1 AND ?2 = 0 ORDER BY id LIMIT ?3",
			"UPDATE subscriptions SET signing_secret = ?3 WHERE id = ?1 AND ?2 = 0",
		},
		{
			func(r *KeyRotation) *int { return &r.SigningSecrets },
			"SELECT subscription_id, expires_at, 'signing_secret of ' || subscription_id, secret FROM old_signing_secrets WHERE (subscription_id, expires_at) > (?1, ?2) ORDER BY subscription_id, expires_at LIMIT ?3",
			"UPDATE old_signing_secrets SET secret = ?3 WHERE subscription_id = ?1 AND expires_at = ?2",
		},
		{
			func(r *KeyRotation) *int { return &r.Answers },
			"SELECT '', rowid, 'answer of ' || token_id || ' ' || key, body FROM idempotency_keys WHERE rowid > ?2 AND ?1 = '' ORDER BY rowid LIMIT ?3",
			"UPDATE idempotency_keys SET body = ?3 WHERE rowid = ?2 AND ?1 = ''",
		},
		{
			func(r *KeyRotation) *int { return &r.CertificateFiles },
			"SELECT path, 0, 'certificate file ' || path, value FROM certificate_files WHERE path > ?1 AND ?2 = 0 ORDER BY path LIMIT ?3",
			"UPDATE certificate_files SET value = ?3 WHERE path = ?1 AND ?2 = 0",
		},
		{
			// Last, so that as long as the old key is needed the check says so.
			nil,
			"SELECT name, 0, name, value FROM settings WHERE name > ?1 AND ?2 = 0 AND name IN ('" + cursorKey + "', '" + keyCheck + "') ORDER BY name LIMIT ?3",
			"UPDATE settings SET value = ?3 WHERE name = ?1 AND ?2 = 0",
		},
	}
}

// reseal seals everything with the present key that is sealed with an older
// one, and counts it into r. When it returns nil the older ones are of no more
// use.
func (s *Store) reseal(ctx context.Context, r *KeyRotation) error {
	unreadable := 0
	for _, c := range sealedColumns() {
		var text string
		var number int64
		for more := true; more; {
			if err := ctx.Err(); err != nil {
				return err
			}
			// What a write under way has sealed is committed before this one.
			err := s.writer.do(func(t *tx) (err error) {
				var done, failed int
				text, number, done, failed, more, err = s.resealSome(t, &c, text, number)
				t.AfterCommit(func() {
					if c.count != nil {
						*c.count(r) += done
					}
					unreadable += failed
				})
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	if unreadable > 0 {
		return keyError("%s cannot be opened with any key in %s, as the log tells one by one, so the older keys stay there: add the missing one on a line below them, or give those subscriptions new secrets", webhook.Count(unreadable, "secret"), r.File)
	}
	return nil
}

// resealSome deals with the next rows of a column after (text, number), and
// returns the last of them, how many it sealed anew, how many no key opens,
// and whether there may be more.
func (s *Store) resealSome(t *tx, c *sealedColumn, text string, number int64) (lastText string, last int64, done, failed int, more bool, err error) {
	type row struct {
		text   string
		number int64
		sealed []byte
	}
	var anew []row
	seen := 0
	lastText, last = text, number
	err = t.Each(c.next, []any{text, number, resealAtOnce}, func(scan func(...any) error) error {
		var r row
		var place string
		if err := scan(&r.text, &r.number, &place, &r.sealed); err != nil {
			return err
		}
		seen++
		lastText, last = r.text, r.number
		if len(r.sealed) == 0 {
			return nil // there is none, or it went with the subscription
		}
		secret, key, err := s.seal.openWith(r.sealed, place)
		switch {
		case err != nil:
			failed++
			s.logger.Error("a secret cannot be opened with any key, and is left as it is", "secret", place)
		case key != 0:
			r.sealed = s.seal.seal(secret, place)
			anew = append(anew, r)
		}
		return nil
	})
	if err != nil {
		return text, number, 0, 0, false, err
	}
	for _, r := range anew {
		if err := t.Exec(c.update, r.text, r.number, r.sealed); err != nil {
			return text, number, 0, 0, false, err
		}
	}
	return lastText, last, len(anew), failed, seen == resealAtOnce, nil
}
