package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"service/internal/durable"
	"service/store/keyring"
	"service/store/list"
	"service/store/rekey"
	"service/store/sqlite"
	"service/test/harness"
	"service/webhook"
)

// encryptedThings are the values of a store that are encrypted.
type encryptedThings struct {
	program, header string
	subs            []webhook.Subscription
	secrets         map[string][]webhook.SigningSecret // by subscription, newest first
	answers         map[webhook.IdempotencyKey]string
	files           []string // certificate files
	cursor          string   // of the delivery list of subs[0]
}

// fillEncrypted creates count subscriptions with a header, a replaced secret, a stored response
// and a certificate file each.
func fillEncrypted(t testing.TB, s *Store, count int) *encryptedThings {
	t.Helper()
	ctx := context.Background()
	f := &encryptedThings{program: "p", header: "Bearer canary-5f1d", secrets: make(map[string][]webhook.SigningSecret),
		answers: make(map[webhook.IdempotencyKey]string)}
	token, _, err := s.Tokens().Create(ctx, webhook.NewToken{ProgramID: f.program, UserID: "u", Scopes: webhook.Scopes()})
	must(t, err)
	url, names, header := "https://partner.example", []string{"content_updated"}, &f.header
	for i := range count {
		sub, first, err := s.Subscriptions().Create(ctx, f.program, "u",
			&webhook.SubscriptionFields{URL: &url, Events: &names, AuthorizationHeader: &header,
				Headers: &[]webhook.Header{{Name: "X-Api-Key", Value: f.header}}}, 0)
		must(t, err)
		_, second, err := s.Subscriptions().RotateSecret(ctx, f.program, sub.ID)
		must(t, err)
		key := webhook.IdempotencyKey{TokenID: token.ID, Key: fmt.Sprint("key ", i)}
		err = s.Write(ctx, func(w Write) error {
			return w.StoreResponse(&key, &StoredResponse{Status: 201, Body: []byte("answer of " + sub.ID)})
		})
		must(t, err)
		f.files = append(f.files, "certificates/ca/"+sub.ID+"/key")
		must(t, s.Certificates().Store(ctx, f.files[i], []byte("content of "+f.files[i])))
		f.subs = append(f.subs, sub)
		f.secrets[sub.ID] = []webhook.SigningSecret{second, first}
		f.answers[key] = "answer of " + sub.ID
	}
	f.cursor = s.lists.Key.Cursor(list.Scope{List: "deliveries", ProgramID: f.program}, []int64{7})
	return f
}

// check checks that every secret can still be read.
func (f *encryptedThings) check(t testing.TB, s *Store) {
	t.Helper()
	for _, sub := range f.subs {
		l := queue(t, s, sub.ID)
		if l.Authorization != f.header || !slices.EqualFunc(l.Secrets, f.secrets[sub.ID],
			func(a, b webhook.SigningSecret) bool { return bytes.Equal(a, b) }) {
			t.Errorf("subscription %s lost its secrets", sub.ID)
		}
	}
	for _, path := range f.files {
		if b, err := s.Certificates().Load(context.Background(), path); err != nil || string(b) != "content of "+path {
			t.Errorf("certificate file: got %q, %v", b, err)
		}
	}
	for key, want := range f.answers {
		a, err := s.StoredResponse(context.Background(), &key)
		if err != nil || a == nil || string(a.Body) != want {
			t.Errorf("stored response of %q: got %v, %v", key.Key, a, err)
		}
	}
	place := make([]int64, 1)
	if err := s.lists.Key.ParseCursor(list.Scope{List: "deliveries", ProgramID: f.program}, f.cursor, place); err != nil || place[0] != 7 {
		t.Errorf("cursor made before: got %v, %v", place, err)
	}
}

// opened returns an open store, which the caller closes.
func opened(t testing.TB, cfg Config) *Store {
	t.Helper()
	s, err := Open(context.Background(), cfg)
	must(t, err)
	return s
}

// keysIn returns the keys in a key file.
func keysIn(t testing.TB, path string) []keyring.Key {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	keys, ok := keyring.Parse(b)
	if !ok {
		t.Fatalf("%s contains no keys", path)
	}
	return keys
}

// blobs returns all blobs in the database by column.
func blobs(t testing.TB, s *Store) map[string][]string {
	t.Helper()
	found := make(map[string][]string)
	var columns [][2]string
	err := s.db.Each(t.Context(),
		"SELECT m.name, c.name FROM sqlite_schema m, pragma_table_info(m.name) c WHERE m.type = 'table' AND c.type = 'BLOB' ORDER BY 1, 2",
		nil, func(scan func(...any) error) error {
			var c [2]string
			err := scan(&c[0], &c[1])
			columns = append(columns, c)
			return err
		})
	must(t, err)
	for _, c := range columns {
		name := c[0] + "." + c[1]
		found[name] = nil
		row := "''"
		if name == "settings.value" {
			row = "name"
		}
		err := s.db.Each(t.Context(), fmt.Sprintf("SELECT %s, %s FROM %s WHERE length(%s) > 0", row, c[1], c[0], c[1]), nil,
			func(scan func(...any) error) error {
				var row, value string
				err := scan(&row, &value)
				found[strings.TrimSuffix(name+" "+row, " ")] = append(found[strings.TrimSuffix(name+" "+row, " ")], value)
				return err
			})
		must(t, err)
	}
	return found
}

// inTheClear are the columns of blobs that contain no secret.
var inTheClear = []string{
	"alert_sends.json", "alerts.json", "attempts.response_body", "blanks.zeros", "deliveries.ping", "dictionaries.content", "events.json",
	"idempotency_keys.request", "responses.body",
	"sessions.hash", // of 256 random bits
	"settings.value checked_at", "settings.value clock", "settings.value counted",
	"invitations.hash", "portal_links.hash", "portal_sessions.hash", "shares.hash", "tokens.hash", // of 256 random bits
	"programs.log_key", // authenticates positions in the log of a program, which its tokens may choose
	"passkeys.credential", "passkeys.public_key",
	"audit.salt", "audit.digest", "audit.hash", "audit_anchor.hash",
}

// A rotation re-encrypts everything with the new key and removes the old one. Add new columns
// of blobs here or to inTheClear.
func TestRotateKey(t *testing.T) {
	dir := memoryDir(t)
	s := opened(t, Config{Dir: dir})
	f := fillEncrypted(t, s, rekey.Batch+3)
	createChannel(t, s, channel(webhook.ChannelWebhook, webhook.AlertFailing))
	must(t, s.write(t.Context(), func(w Write) error { return w.t.ensureProgram("moving-program", time.Now()) }))
	to := MoveTarget{URL: "https://other.example.com", Token: "token of the target"}
	must(t, s.Write(t.Context(), func(w Write) error { return w.Moves().Begin("moving-program", webhook.NewID(), &to) }))
	unsubscribe(t, s, f.program, subscribe(t, s, f.program, "content_updated").ID)
	path := filepath.Join(dir, "secret.key")
	before, oldKey := blobs(t, s), keysIn(t, path)[0]
	r, err := s.RotateKey(t.Context())
	must(t, err)
	n := len(f.subs)
	want := rekey.Rotation{File: path, AuthorizationHeaders: n, Headers: n, SigningSecrets: 2 * n,
		Answers: n, CertificateFiles: n, AlertChannels: 1}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("got %+v, want %+v", r, want)
	}
	f.check(t, s)
	if moves, err := s.Programs().OutgoingMoves(t.Context()); err != nil || len(moves) != 1 || moves[0].Token != to.Token {
		t.Errorf("the token of a move: %v", err)
	}
	after := blobs(t, s)
	for column, values := range before {
		if slices.Contains(inTheClear, column) || len(values) == 0 && column == "settings.value" {
			continue
		}
		if len(values) == 0 {
			t.Errorf("the test has no value in %s: is it encrypted?", column)
		}
		for _, v := range values {
			if slices.Contains(after[column], v) {
				t.Errorf("%s is unchanged, want it re-encrypted", column)
				break
			}
		}
	}
	if keys := keysIn(t, path); len(keys) != 1 || keys[0] == oldKey {
		t.Errorf("the file has %d keys, or the old one; want only the new key", len(keys))
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("got mode %v, %v; want 0600", info.Mode(), err)
	}
	// Rotate again, in this process and after a restart.
	_, err = s.RotateKey(t.Context())
	must(t, err)
	f.check(t, s)
	s.Close()
	s = opened(t, Config{Dir: dir})
	f.check(t, s)
	s.Close()
	must(t, os.WriteFile(path, keyring.Format([]keyring.Key{oldKey}), 0o600))
	if _, err := Open(t.Context(), Config{Dir: dir}); !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), "does not contain the key") {
		t.Errorf("with the old key: got %v, want a refusal", err)
	}
}

// After a rotation, neither the database nor its WAL contains anything that the old key encrypted:
// neither re-encrypted values, nor values replaced or removed before, however long.
func TestRotateKeyOverwrites(t *testing.T) {
	for _, withReplica := range []bool{false, true} {
		t.Run(fmt.Sprint("replica=", withReplica), func(t *testing.T) {
			dir := memoryDir(t)
			var s *Store
			if withReplica {
				r := openReplicated(t, dir, fileReplica(t, dir, t.TempDir()))
				r.await("the replica to be complete", upToDate)
				s = r.Store
			} else {
				s = opened(t, Config{Dir: dir})
				defer func() { s.Close() }()
			}
			testRotateKeyOverwrites(t, s, dir)
		})
	}
}

func testRotateKeyOverwrites(t *testing.T, s *Store, dir string) {
	written := make(map[string]bool)
	note := func() { noteEncrypted(t, s, written) }
	f := fillEncrypted(t, s, rekey.Batch+3)
	storeFile := func(i int) {
		must(t, s.Certificates().Store(t.Context(), fmt.Sprint("certificates/long/", i), bytes.Repeat([]byte{byte(i)}, 20_000)))
	}
	for i := range 20 {
		storeFile(i)
	}
	channel := createChannel(t, s, channel(webhook.ChannelWebhook, webhook.AlertFailing))
	note()
	for i := range 100 {
		sub := subscribe(t, s, f.program, "content_updated")
		header := new(strings.Repeat("long ", 800))
		_, err := s.Subscriptions().Update(t.Context(), f.program, sub.ID, &webhook.SubscriptionFields{AuthorizationHeader: &header})
		must(t, err)
		if i%3 == 0 {
			_, _, err = s.Subscriptions().RotateSecret(t.Context(), f.program, sub.ID)
			must(t, err)
		}
		note()
		if i%8 != 0 {
			unsubscribe(t, s, f.program, sub.ID)
		}
	}
	for i := range 10 {
		storeFile(i)
		must(t, s.Certificates().Delete(t.Context(), fmt.Sprint("certificates/long/", 10+i)))
	}
	mustWrite(t, s, func(w Write) error { return w.Channels().Delete(channel.ID) })
	mustWrite(t, s, func(w Write) error {
		var key webhook.IdempotencyKey
		for key = range f.answers {
			break
		}
		f.answers = nil
		key.Key = "another"
		return errors.Join(w.t.Exec("UPDATE idempotency_keys SET expires_at = 0"), // it removes those
			w.StoreResponse(&key, &StoredResponse{Status: 201, Body: bytes.Repeat([]byte("answer"), 2000)}))
	})
	note()
	r, err := s.RotateKey(t.Context())
	if err != nil || r.WALKept {
		t.Fatalf("got %+v, %v", r, err)
	}
	copied := filepath.Join(t.TempDir(), "data")
	harness.Copy(t, dir, copied)
	files := slices.Concat(harness.Read(t, filepath.Join(copied, "service.db")), harness.Read(t, filepath.Join(copied, "service.db-wal")))
	if left := countIn(files, written); left > 0 || len(written) < 400 {
		t.Errorf("%d of %d values that the old key encrypted remain", left, len(written))
	}
	f.check(t, s)
	clear(written)
	if note(); countIn(files, written) != len(written) {
		t.Errorf("%d of %d values of the new key are found", countIn(files, written), len(written))
	}
}

// noteEncrypted adds all encrypted values of the database to values.
func noteEncrypted(t *testing.T, s *Store, values map[string]bool) {
	t.Helper()
	for column, all := range blobs(t, s) {
		if slices.Contains(inTheClear, column) || column == "settings.value commits" {
			continue
		}
		for _, v := range all {
			values[v] = true
		}
	}
}

// countIn returns how many values are in a file, at least in part: long ones are in several pieces.
func countIn(file []byte, values map[string]bool) (n int) {
	for v := range values {
		for at := 0; at+16 <= len(v); at += 500 {
			if bytes.Contains(file, []byte(v[at:at+16])) {
				n++
				break
			}
		}
	}
	return n
}

// A read that uses the WAL keeps it, and the rotation says so.
func TestRotateKeyDuringRead(t *testing.T) {
	s := open(t)
	fillEncrypted(t, s, 1)
	var r rekey.Rotation
	err := s.db.View(t.Context(), func(v *sqlite.View) (err error) {
		if err = v.Scan("SELECT count(*) FROM subscriptions", nil, new(int)); err == nil {
			r, err = s.RotateKey(t.Context())
		}
		return err
	})
	if err != nil || !r.WALKept || r.Secrets() == 0 {
		t.Errorf("during a read: got %+v, %v", r, err)
	}
	if r, err := s.RotateKey(t.Context()); err != nil || r.WALKept {
		t.Errorf("after it: got %+v, %v", r, err)
	}
}

// countdown is a context that ends after a number of calls of Err.
type countdown struct {
	context.Context
	left int
}

func (s *countdown) Err() error {
	if s.left == 0 {
		return context.Canceled
	}
	s.left--
	return nil
}

// A rotation interrupted at any step is finished by the next start or the next rotation, and
// everything works in between. Completed steps are on disk, so an interruption is equivalent to
// a crash.
func TestRotateKeyInterrupted(t *testing.T) {
	for _, again := range []bool{false, true} {
		interrupted, both := 0, 0
		for at, done := 0, false; !done; at++ {
			var keys int
			if done, keys = rotateInterrupted(t, at, again); !done {
				interrupted++
			}
			if keys == 2 {
				both++
			}
		}
		if interrupted < 10 || both < 8 {
			t.Errorf("interrupted at %d steps, %d of them with both keys in the file; want more of both", interrupted, both)
		}
	}
}

// rotateInterrupted starts a rotation that is interrupted at a step, and finishes it by another
// rotation if again, else by the next start. It returns whether the rotation was complete
// before that step, and how many keys the file contained then.
func rotateInterrupted(t *testing.T, at int, again bool) (done bool, keys int) {
	dir := memoryDir(t)
	path := filepath.Join(dir, "secret.key")
	s := opened(t, Config{Dir: dir})
	f := fillEncrypted(t, s, rekey.Batch+1)
	oldKey := keysIn(t, path)[0]
	_, err := s.RotateKey(&countdown{t.Context(), at})
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	done = err == nil
	f.check(t, s)
	keys = len(keysIn(t, path))
	if again && !done {
		_, err := s.RotateKey(t.Context())
		must(t, err)
		f.check(t, s)
		if keys := keysIn(t, path); len(keys) != 1 || keys[0] == oldKey {
			t.Errorf("interrupted at step %d, and again: the file has %d keys", at, len(keys))
		}
	}
	s.Close()
	s = opened(t, Config{Dir: dir})
	f.check(t, s)
	if keys := keysIn(t, path); len(keys) != 1 {
		t.Errorf("interrupted at step %d, and opened: the file has %d keys", at, len(keys))
	}
	// The key in the file is sufficient.
	if _, old, err := s.keys.DecryptWith([]byte(blobs(t, s)["settings.value key_check"][0]), keyring.CheckPlace); err != nil || old != 0 {
		t.Errorf("interrupted at step %d: the check is encrypted with key %d, %v", at, old, err)
	}
	s.Close()
	return done, keys
}

// While a secret cannot be decrypted with any key, no key is removed.
func TestRotateKeyUnreadable(t *testing.T) {
	s := open(t)
	f := fillEncrypted(t, s, 2)
	spoiled := f.subs[1].ID
	err := s.writer.do(func(t *tx) error {
		return t.Exec("UPDATE subscriptions SET signing_secret = randomblob(60) WHERE id = ?", spoiled)
	})
	must(t, err)
	oldKey := keysIn(t, s.keys.File().Path)[0]
	for range 2 {
		if _, err := s.RotateKey(t.Context()); !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), "1 secret cannot be decrypted") {
			t.Errorf("got %v, want an error with the count", err)
		}
		if keys := keysIn(t, s.keys.File().Path); len(keys) != 2 || keys[1] != oldKey {
			t.Errorf("the file has %d keys, want the new and the old one", len(keys))
		}
	}
	if l := queue(t, s, f.subs[0].ID); l.Authorization != f.header {
		t.Error("the other subscription lost its secret")
	}
	unsubscribe(t, s, f.program, spoiled)
	if r, err := s.RotateKey(t.Context()); err != nil || r.SigningSecrets != 2 {
		t.Errorf("without the unreadable secret: got %+v, %v; want 2 signing secrets re-encrypted", r, err)
	}
	if keys := keysIn(t, s.keys.File().Path); len(keys) != 1 {
		t.Errorf("the file has %d keys, want one", len(keys))
	}
}

// A subscription with a secret that no key decrypts does not affect the other queues.
func TestQueuesWithUnusableRecord(t *testing.T) {
	for _, spoil := range []string{
		"UPDATE subscriptions SET signing_secret = randomblob(60) WHERE id = ?",
		"UPDATE subscriptions SET authorization_header = randomblob(60) WHERE id = ?",
		"INSERT INTO old_signing_secrets (subscription_id, expires_at, secret) VALUES (?, 1e15, randomblob(60))",
	} {
		s := openProgram(t)
		bad, good := subscribe(t, s, "p", "content_updated"), subscribe(t, s, "p", "content_updated")
		execute(t, s, spoil, bad.ID)
		queues, err := s.Queues().All(t.Context())
		if err != nil || len(queues) != 2 {
			t.Fatalf("%s: got %d queues, %v; want 2", spoil, len(queues), err)
		}
		for _, l := range queues {
			if l.SubscriptionID == bad.ID && (l.Unusable == nil || len(l.Interests) > 0) || l.SubscriptionID == good.ID &&
				(l.Unusable != nil || len(l.Interests) == 0) {
				t.Errorf("%s: got %+v", spoil, l)
			}
		}
	}
}

// Reads and writes succeed during a rotation.
func TestRotateKeyWhileRunning(t *testing.T) {
	s := open(t)
	f := fillEncrypted(t, s, 20)
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	subs := f.subs
	// A read that stalls for several rotations may find its key removed, so each reader reads
	// between two of them.
	reads := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	for _, read := range reads {
		all.Go(func() {
			defer close(read)
			for i := 0; ctx.Err() == nil; i++ {
				if l, err := s.Queues().Get(t.Context(), subs[i%len(subs)].ID); err != nil || l.Authorization != f.header {
					t.Errorf("queue: %v", err)
					return
				}
				select {
				case read <- struct{}{}:
				default:
				}
			}
		})
	}
	all.Go(func() {
		url, names, header := "https://partner.example", []string{"content_updated"}, &f.header
		for ctx.Err() == nil {
			sub, first, err := s.Subscriptions().Create(t.Context(), f.program, "u",
				&webhook.SubscriptionFields{URL: &url, Events: &names, AuthorizationHeader: &header}, 0)
			if err != nil {
				t.Error(err)
				return
			}
			_, second, err := s.Subscriptions().RotateSecret(t.Context(), f.program, sub.ID)
			if err != nil {
				t.Error(err)
				return
			}
			f.subs = append(f.subs, sub)
			f.secrets[sub.ID] = []webhook.SigningSecret{second, first}
		}
	})
	for range 15 {
		if _, err := s.RotateKey(t.Context()); err != nil {
			t.Error(err)
		}
		<-reads[0]
		<-reads[1]
	}
	stop()
	all.Wait()
	f.check(t, s)
	// The new key decrypts everything.
	var err error
	s.keys, err = keyring.New(s.keys.File(), keysIn(t, s.keys.File().Path))
	must(t, err)
	f.check(t, s)
}

// A rotation with a key file that is not writable.
func TestRotateKeyReadOnly(t *testing.T) {
	// The name is so long that a temporary file with a suffix cannot be created: not even
	// root can replace this file.
	path := filepath.Join(t.TempDir(), strings.Repeat("k", 250))
	first, second := keyring.NewKey(), keyring.NewKey()
	put := func(keys ...keyring.Key) {
		t.Helper()
		must(t, os.WriteFile(path, keyring.Format(keys), 0o400))
	}
	put(first)
	dir := t.TempDir()
	s := opened(t, Config{Dir: dir, SecretKeyFile: path})
	defer func() { s.Close() }()
	if _, err := os.Stat(filepath.Join(dir, "secret.key")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a key was created in the data directory: %v", err)
	}
	f := fillEncrypted(t, s, 3)
	if _, err := s.RotateKey(t.Context()); !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), "cannot be written") ||
		!strings.Contains(err.Error(), "on a line above the current one") {
		t.Errorf("got %v, want an error with instructions", err)
	}
	f.check(t, s)
	put(second)
	if _, err := s.RotateKey(t.Context()); !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), "add it below the new one") {
		t.Errorf("without the current key: got %v, want an error", err)
	}
	f.check(t, s)
	put(second, first)
	r, err := s.RotateKey(t.Context())
	if err != nil || !r.OldKeyKept || r.Secrets() != 6*3 {
		t.Errorf("got %+v, %v; want 18 secrets and OldKeyKept", r, err)
	}
	f.check(t, s)
	if r, err := s.RotateKey(t.Context()); err == nil {
		t.Errorf("got %+v without a new key, want an error", r)
	}
	put(second)
	s.Close()
	s = opened(t, Config{Dir: dir, SecretKeyFile: path})
	f.check(t, s)

	// The next start finishes a rotation without a running server.
	put(first, second)
	s.Close()
	s = opened(t, Config{Dir: dir, SecretKeyFile: path})
	put(first)
	s.Close()
	s = opened(t, Config{Dir: dir, SecretKeyFile: path})
	f.check(t, s)
}

// Key files are checked, and no error contains their content.
func TestKeyFile(t *testing.T) {
	good := strings.Repeat("0a", 32)
	canary := strings.Repeat("5f1d", 16)
	write := func(content string, mode os.FileMode) func(string) error {
		return func(path string) error {
			return errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chmod(path, mode))
		}
	}
	for _, c := range []struct {
		name string
		make func(path string) error
		want string // "" for no error
	}{
		{"one key", write(good+"\n", 0o600), ""},
		{"no end of line", write(good, 0o600), ""},
		{"as Windows writes it", write(good+"\r\n", 0o600), ""},
		{"capitals", write(strings.ToUpper(good), 0o600), ""},
		{"read-only", write(good, 0o400), ""},
		{"two keys", write(good+"\n"+canary+"\n", 0o600), ""},
		{"a link", func(path string) error {
			return errors.Join(write(good, 0o600)(path+".real"), os.Symlink(path+".real", path))
		}, ""},
		{"missing", func(string) error { return nil }, "is missing and is not created automatically: put 64 random hexadecimal digits into it"},
		{"empty", write("", 0o600), "is empty; it must contain the key as 64 hexadecimal digits"},
		{"blank", write("\n\n", 0o600), "does not contain a key; it must contain the key as 64 hexadecimal digits"},
		{"short", write(canary[:63], 0o600), "does not contain a key"},
		{"long", write(canary+"5", 0o600), "does not contain a key"},
		{"no digits", write(canary[:62]+"xy", 0o600), "does not contain a key"},
		{"a word behind", write(canary+" main", 0o600), "does not contain a key"},
		{"too many keys", write(strings.Repeat(canary+"\n", keyring.MaxKeys+1), 0o600), "at most 8 keys"},
		{"another file", write(strings.Repeat(canary, 100), 0o600), "is not a key file: it has 6400 bytes"},
		{"a directory", func(path string) error { return os.Mkdir(path, 0o700) }, "is a directory"},
		{"a pipe", func(path string) error { return syscall.Mkfifo(path, 0o600) }, "is not a regular file"},
		{"a loop of links", func(path string) error { return os.Symlink(path, path) }, "cannot be read"},
		{"readable by the group", write(canary, 0o640), "can be read by other users (mode 0640): chmod 600 "},
		{"readable by all", write(canary, 0o604), "can be read by other users (mode 0604): chmod 600 "},
		{"writable by the group", write(canary, 0o620), "can be changed by users other than its owner (mode 0620): chmod 600 "},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "key")
			must(t, c.make(path))
			err := openError(t, Config{Dir: t.TempDir(), SecretKeyFile: path})
			switch {
			case c.want == "" && err != nil:
				t.Errorf("got %v, want nil", err)
			case c.want == "":
			case !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path):
				t.Errorf("got %v, want ErrKey with the file and %q", err, c.want)
			case strings.Contains(err.Error(), canary[:16]):
				t.Errorf("the error contains the key: %v", err)
			}
		})
	}
}

// The key file is outside of the data directory, or at its default place in it.
func TestKeyFileInDataDirectory(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "keys"), 0o700))
	elsewhere := t.TempDir()
	must(t, os.Symlink(filepath.Join(dir, "keys"), filepath.Join(elsewhere, "keys")))
	for _, name := range []string{
		filepath.Join(dir, "key"), filepath.Join(dir, "keys", "key"), filepath.Join(dir, "service.db"),
		filepath.Join(elsewhere, "keys", "key"),
	} {
		err := openError(t, Config{Dir: dir, SecretKeyFile: name})
		if !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), "is in the data directory") {
			t.Errorf("%s: got %v, want an error", name, err)
		}
	}
	// The default file may be named explicitly.
	opened(t, Config{Dir: dir, SecretKeyFile: filepath.Join(dir, "keys", "..", "secret.key")}).Close()
	openDir(t, dir)
}

// A crash while the key file is written leaves an unused temporary file.
func TestKeyFileUnfinished(t *testing.T) {
	dir := t.TempDir()
	left, other := filepath.Join(dir, "secret.key"+durable.TempSuffix+"123"), filepath.Join(dir, "secret.key.mine")
	for _, path := range []string{left, other} {
		must(t, os.WriteFile(path, keyring.Format([]keyring.Key{keyring.NewKey()}), 0o600))
	}
	openDir(t, dir)
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the unfinished file is still there: %v", err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("an unrelated file was removed: %v", err)
	}
}

// BenchmarkRotateKey measures a rotation, and the longest time that a write waits for it.
func BenchmarkRotateKey(b *testing.B) {
	s := open(b)
	count := 10_000
	if testing.Short() {
		count = 100
	}
	fillEncrypted(b, s, count)
	var longest time.Duration
	ctx, stop := context.WithCancel(b.Context())
	var all sync.WaitGroup
	all.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			publish(b, s, "p", "content_updated")
			longest = max(longest, time.Since(began))
		}
	})
	for b.Loop() {
		_, err := s.RotateKey(b.Context())
		must(b, err)
	}
	stop()
	all.Wait()
	b.ReportMetric(float64(longest.Microseconds())/1000, "ms/longest-publish")
}
