package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"service/store/sqlite"
)

// otherWriter is a service on another machine, which writes to a replica in a folder.
type otherWriter struct {
	t      *testing.T
	at     *folderLocation
	object writerObject
}

// newOtherWriter begins a term, as the data directory dir if that is not "".
func newOtherWriter(t *testing.T, target, dir string, number int64) *otherWriter {
	t.Helper()
	w := &otherWriter{t: t, at: &folderLocation{target}}
	begun := term{Number: number, Parent: number - 1, Began: time.Now(), Nonce: "other"}
	must(t, claim(t.Context(), w.at, begun))
	if dir != "" {
		here, err := identifyDir(dir)
		if err == nil {
			err = writeRecord(filepath.Join(dir, "service.db"), record{
				Replica: fileConfig(t, dir, target).Target(), Term: number, Nonce: "other", Own: true,
				dirID: here,
			})
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "service.db"), nil, 0o600)
		}
		must(t, err)
	}
	w.object.Owner, w.object.Since = "machine-1 0198f3a1", time.Date(2026, 3, 14, 8, 24, 48, 0, time.UTC)
	return w
}

// sign renews the sign of life.
func (w *otherWriter) sign() {
	w.t.Helper()
	w.object.Writes++
	text, err := json.Marshal(w.object)
	if err == nil {
		var numbers []int64
		if numbers, err = w.at.terms(w.t.Context()); err == nil {
			err = w.at.write(w.t.Context(), numbers[len(numbers)-1], writerName, text)
		}
	}
	if err != nil {
		w.t.Error(err)
	}
}

// live renews the sign of life until the returned function is called.
func (w *otherWriter) live() (end func()) {
	w.sign()
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(writerInterval):
				w.sign()
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// writerStart is the start of a service on a replica that another one has written to.
type writerStart struct {
	*otherWriter
	one, two string // directories of the writer and of another service
	from     string // the directory that starts
	target   string
}

func (s *writerStart) liveOn() { s.t.Cleanup(s.live()) }

func (s *writerStart) release() {
	s.object.Released = true
	s.sign()
}

// restored makes the other directory a restored copy of the replica.
func (s *writerStart) restored() {
	s.t.Helper()
	last := record{Replica: fileConfig(s.t, s.two, s.target).Target(), Term: 1, Nonce: "other"}
	err := writeRecord(filepath.Join(s.two, "service.db"), last)
	if err == nil {
		err = os.WriteFile(filepath.Join(s.two, "service.db"), nil, 0o600)
	}
	must(s.t, err)
}

// garble replaces the sign of life.
func (s *writerStart) garble() {
	s.t.Helper()
	must(s.t, s.at.write(s.t.Context(), 1, writerName, []byte("{")))
}

// endOnThisMachine makes the writer a process of this machine that has ended.
func (s *writerStart) endOnThisMachine() {
	s.t.Helper()
	cmd := exec.Command("sh", "-c", ":")
	must(s.t, cmd.Run())
	s.object.writerProcess = currentProcess()
	s.object.PID, s.object.Started = cmd.Process.Pid, "1"
	s.sign()
}

// A service without a lease starts at once with the directory that wrote the newest term, and
// otherwise once the writer has stopped or has shown no sign of life for a period.
func TestWriterAtStart(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		prepare func(*writerStart)
		waits   time.Duration
		refused bool
	}{
		{"same directory, killed", func(s *writerStart) { s.sign(); s.from = s.one }, 0, false},
		{"another directory, alive", (*writerStart).liveOn, writerInterval, true},
		{"another directory, killed", func(s *writerStart) { s.sign() }, writerPeriod, false},
		{"no sign of life", func(*writerStart) {}, writerPeriod, false},
		{"stopped", (*writerStart).release, 0, false},
		{"stops", func(s *writerStart) { s.sign(); time.AfterFunc(writerInterval, s.release) }, writerInterval, false},
		{"restored data, alive", func(s *writerStart) { s.liveOn(); s.restored() }, writerInterval, true},
		{"copied directory, alive", func(s *writerStart) { s.liveOn(); copyDir(s.t, s.one, s.two) }, writerInterval, true},
		{"same directory, rebooted", func(s *writerStart) { s.reboot(s.one); s.sign(); s.from = s.one }, writerPeriod, false},
		{"same directory, superseded", func(s *writerStart) {
			s.t.Cleanup(newOtherWriter(s.t, s.target, "", 2).live())
			s.from = s.one
		}, writerInterval, true},
		{"garbage", (*writerStart).garble, writerPeriod, false},
		{"ended on this machine", (*writerStart).endOnThisMachine, 0, false},
		{"alive on this machine", func(s *writerStart) {
			s.object.writerProcess = currentProcess()
			s.liveOn()
		}, writerInterval, true},
		{"process id of another container", func(s *writerStart) {
			s.object.writerProcess = writerProcess{Boot: bootID(), Namespace: "pid:[1]", PID: 1 << 21, Started: "1"}
			s.liveOn()
		}, writerInterval, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &writerStart{one: t.TempDir(), two: t.TempDir(), target: t.TempDir()}
				s.otherWriter, s.from = newOtherWriter(t, s.target, s.one, 1), s.two
				test.prepare(s)
				began := time.Now()
				err := AwaitUnleased(t.Context(), fileConfig(t, s.from, s.target), s.from, testLogger(t))
				if test.refused != errors.Is(err, ErrWriting) || !test.refused && err != nil {
					t.Errorf("got %v, want a refusal: %t", err, test.refused)
				}
				if test.refused && !strings.Contains(err.Error(), "host machine-1, since 2026-03-14T08:24:48") {
					t.Errorf("got %q, want the host and since when", err)
				}
				if took := time.Since(began); took < test.waits || took > test.waits+2*time.Second {
					t.Errorf("waited for %s, want about %s", took, test.waits)
				}
			})
		})
	}
}

// reboot makes the record of a directory one of another boot of the machine.
func (w *otherWriter) reboot(dir string) {
	w.t.Helper()
	path := filepath.Join(dir, "service.db")
	last, err := readRecord(path)
	if err == nil {
		last.Boot, last.Device = "another", last.Device+1
		err = writeRecord(path, last)
	}
	must(w.t, err)
}

// away makes the replica unreadable until the returned function is called.
func (w *otherWriter) away() (back func()) {
	w.t.Helper()
	terms := filepath.Join(w.at.root, termsFolder)
	must(w.t, errors.Join(os.Rename(terms, terms+"-away"), os.WriteFile(terms, nil, 0o600)))
	return func() {
		w.t.Helper()
		// In one step: without the folder, the replica is empty.
		must(w.t, errors.Join(os.Symlink(terms+"-away", terms+"-back"), os.Rename(terms+"-back", terms)))
	}
}

// While the replica cannot be read, the directory that wrote to it starts, and so does data that
// was never in it.
func TestWriterUnreadable(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		prepare func(s *writerStart)
	}{
		{"same directory", func(s *writerStart) { s.from = s.one }},
		{"same directory, rebooted", func(s *writerStart) { s.reboot(s.one); s.from = s.one }},
		{"no database", func(*writerStart) {}},
		{"never in the replica", func(s *writerStart) {
			must(s.t, os.WriteFile(filepath.Join(s.two, "service.db"), nil, 0o600))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &writerStart{one: t.TempDir(), two: t.TempDir(), target: t.TempDir()}
				s.otherWriter, s.from = newOtherWriter(t, s.target, s.one, 1), s.two
				s.sign()
				test.prepare(s)
				s.away()
				began := time.Now()
				err := AwaitUnleased(t.Context(), fileConfig(t, s.from, s.target), s.from, testLogger(t))
				if err == nil || errors.Is(err, ErrWriting) || time.Since(began) != 0 {
					t.Errorf("got %v after %s, want the error of the replica at once", err, time.Since(began))
				}
			})
		})
	}
}

// A network file system that hangs does not keep the directory that wrote to the replica from
// starting.
func TestWriterHangs(t *testing.T) {
	t.Parallel()
	s := &writerStart{one: t.TempDir(), target: t.TempDir()}
	s.otherWriter = newOtherWriter(t, s.target, s.one, 1)
	name := filepath.Join(s.at.dir(1), writerName)
	if err := syscall.Mkfifo(name, 0o600); err != nil { // whose opening waits for a writer
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if f, err := os.OpenFile(name, os.O_RDWR, 0); err == nil { // ends the opening
			f.Close()
		}
	})
	err := AwaitUnleased(t.Context(), fileConfig(t, s.one, s.target), s.one, testLogger(t))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
	}
}

// Restored and copied data waits while the replica cannot be read, and is refused if its writer is
// alive.
func TestWriterOfRestoredDataUnreadable(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(s *writerStart){
		"copied": func(s *writerStart) { copyDir(s.t, s.one, s.two) }, "restored": (*writerStart).restored,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &writerStart{one: t.TempDir(), two: t.TempDir(), target: t.TempDir()}
				s.otherWriter = newOtherWriter(t, s.target, s.one, 1)
				s.sign()
				prepare(s)
				back := s.away()
				done := make(chan error, 1)
				go func() { done <- AwaitUnleased(t.Context(), fileConfig(t, s.two, s.target), s.two, testLogger(t)) }()
				time.Sleep(10*time.Minute + 10*time.Second)
				select {
				case err := <-done:
					t.Fatalf("got %v, want it to wait for the replica", err)
				default:
				}
				back()
				s.liveOn()
				wantError(t, "readable again", <-done, ErrWriting)
			})
		})
	}
}

// filesOf returns the names of the files of a term, without its sign of life.
func (w *otherWriter) filesOf(number int64) (names string) {
	w.t.Helper()
	err := filepath.WalkDir(w.at.dir(number), func(name string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != writerName {
			names += name + "\n"
		}
		return err
	})
	must(w.t, err)
	return names
}

// A service whose term was superseded uploads nothing and begins no term while the other is
// alive, and continues with a term of its own after that.
func TestSupersededWriter(t *testing.T) {
	t.Parallel()
	for _, killed := range []bool{true, false} {
		t.Run(fmt.Sprintf("killed %t", killed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testSupersededWriter(t, killed) })
		})
	}
}

func testSupersededWriter(t *testing.T, killed bool) {
	dir, target := t.TempDir(), t.TempDir()
	cfg := fileConfig(t, dir, target)
	r := openWriter(t, dir, cfg, func(*Replication) {})
	r.insert(10)
	r.await("up to date", upToDate)
	if y, err := readWriter(t.Context(), cfg, r.path); err != nil || !y.ours || y.object.Generation != 1 || y.object.Released {
		t.Errorf("sign of life: got %+v, %v", y, err)
	}
	other := &writerStart{otherWriter: newOtherWriter(t, target, "", 2)}
	stop := other.live()
	r.await("failing", failingFor("host machine-1, since"))
	before := other.filesOf(1)
	r.insert(10)
	time.Sleep(time.Hour)
	if after := other.filesOf(1); after != before || r.current() != nil {
		t.Errorf("superseded: got the files\n%swant\n%s", after, before)
	}
	if numbers, err := other.at.terms(t.Context()); err != nil || len(numbers) != 2 {
		t.Errorf("superseded: got terms %v, %v, want 2", numbers, err)
	}
	began := time.Now()
	stop()
	if !killed {
		other.release()
	}
	r.insert(10)
	r.await("up to date", upToDate)
	if took := time.Since(began); took > writerPeriod+2*writerInterval {
		t.Errorf("went on after %s", took)
	}
	if s := r.Status(); s.Term != 3 {
		t.Errorf("got term %d, want 3", s.Term)
	}
	if err := r.close(); err != nil {
		t.Error(err)
	}
	wantNumber(t, "rows restored", restoredRows(t, cfg), 3)
	if y, err := readWriter(t.Context(), cfg, r.path); err != nil || y.term.Number != 3 || !y.object.Released {
		t.Errorf("after the end: got %+v, %v, want a released sign of life in term 3", y, err)
	}
}

// failingFor returns a condition: the replication fails with an error that contains text.
func failingFor(text string) func(Status) bool {
	return func(s Status) bool { return s.State == StateFailing && strings.Contains(s.Err, text) }
}

// After a long outage of the replica, changes that are only on this disk are uploaded within
// seconds.
func TestUploadAfterOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, target := t.TempDir(), t.TempDir()
		r := openWriter(t, dir, fileConfig(t, dir, target), func(*Replication) {})
		r.insert(10)
		r.await("up to date", upToDate)
		away := target + ".away"
		must(t, errors.Join(os.Rename(target, away), os.WriteFile(target, nil, 0o600)))
		r.insert(10)
		r.await("failing", func(s Status) bool { return s.State == StateFailing })
		time.Sleep(10*time.Minute + 10*time.Second)
		must(t, errors.Join(os.Remove(target), os.Rename(away, target)))
		back := time.Now()
		r.insert(10)
		r.await("up to date", upToDate)
		if took := time.Since(back); took > 6*time.Second {
			t.Errorf("uploaded %s after the end of the outage, want at most 6 s", took)
		}
	})
}

// A service that was suspended checks for a later term before it uploads anything.
func TestSuspendedWriter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testSuspendedWriter)
}

func testSuspendedWriter(t *testing.T) {
	dir, target := t.TempDir(), t.TempDir()
	r := openWriter(t, dir, fileConfig(t, dir, target), func(r *Replication) { r.limits.termInterval = 24 * time.Hour })
	r.insert(10)
	r.await("up to date", upToDate)
	synctest.Wait() // for the first check, which would count as that after the suspension
	other := newOtherWriter(t, target, "", 2)
	other.sign()
	before := other.filesOf(1)
	r.sign.confirmed.Store(int64(uptime() - time.Minute))
	r.insert(10)
	r.await("failing", failingFor("host machine-1"))
	if after := other.filesOf(1); after != before {
		t.Errorf("superseded: got the files\n%swant\n%s", after, before)
	}
}

// A service that begins to replicate after a start without the replica does not supersede a live
// one, and a writer that comes back while a database is restored is seen.
func TestWriterComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, target := t.TempDir(), t.TempDir()
		cfg := fileConfig(t, dir, target)
		other := newOtherWriter(t, target, "", 1)
		other.sign()
		wantError(t, "before the watch", CheckGone(t.Context(), cfg, dir), nil)
		wantError(t, "not watched", CheckWriter(t.Context(), cfg, dir), ErrWriting)
		must(t, AwaitUnleased(t.Context(), cfg, dir, testLogger(t)))
		wantError(t, "gone", errors.Join(CheckGone(t.Context(), cfg, dir), CheckWriter(t.Context(), cfg, dir)), nil)
		stop := other.live()
		wantError(t, "back", CheckGone(t.Context(), cfg, dir), ErrWriting)
		r := openWriter(t, dir, cfg, func(*Replication) {})
		r.insert(10)
		r.await("failing", failingFor("host machine-1"))
		stop()
		r.await("up to date", upToDate)
	})
}

// The sign of life works in a bucket, and a stop releases it.
func TestWriterInBucket(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	one, two := t.TempDir(), t.TempDir()
	r := openWriter(t, one, b.config(t, one), func(*Replication) {})
	r.insert(10)
	r.await("up to date", upToDate)
	host, err := os.Hostname()
	must(t, err)
	cfg := b.config(t, two)
	if err := CheckWriter(t.Context(), cfg, two); !errors.Is(err, ErrWriting) || !strings.Contains(err.Error(), host) {
		t.Errorf("alive: got %v, want %v with the host", err, ErrWriting)
	}
	wantError(t, "the directory itself", CheckWriter(t.Context(), cfg, one), nil)
	r.mustClose()
	wantError(t, "stopped", AwaitUnleased(t.Context(), cfg, two, testLogger(t)), nil)
	y, err := readWriter(t.Context(), cfg, filepath.Join(two, "service.db"))
	if err != nil || !y.object.Released || y.object.Writes < 2 || y.object.PeriodMS != writerPeriod.Milliseconds() {
		t.Errorf("got %+v, %v", y.object, err)
	}
	// Without the bucket, its directory starts at once; the caller logs the error.
	refuses := func(*http.Request) bool { return true }
	b.refuses.Store(&refuses)
	if err := AwaitUnleased(t.Context(), b.config(t, one), one, testLogger(t)); err == nil || errors.Is(err, ErrWriting) {
		t.Errorf("without the bucket: got %v, want its error", err)
	}
	b.refuses.Store(nil)
	// A lease proves more: no sign of life is written.
	r = openWriter(t, one, b.config(t, one), func(r *Replication) { r.Fence(func() bool { return true }) })
	r.insert(10)
	r.await("up to date", upToDate)
	if again, err := readWriter(t.Context(), cfg, filepath.Join(two, "service.db")); err != nil || again.mark != y.mark {
		t.Errorf("with a lease: got %+v, %v, want it unchanged", again.object, err)
	}
}

// Before a service without a lease has reached the bucket, it renews the sign of life in the term
// that its directory wrote last.
func TestSignedTerm(t *testing.T) {
	dir, target := t.TempDir(), t.TempDir()
	cfg := fileConfig(t, dir, target)
	other := newOtherWriter(t, target, dir, 1)
	r := NewReplication(cfg, filepath.Join(dir, "service.db"), new(sqlite.Writer), testLogger(t))
	if number, err := r.signedTerm(); err != nil || number != 1 {
		t.Errorf("got term %d, %v, want 1", number, err)
	}
	r.renewSign(t.Context())
	if text, err := other.at.read(t.Context(), 1, writerName); err != nil || len(text) == 0 {
		t.Errorf("got %q, %v, want a sign of life", text, err)
	}
	other.reboot(dir)
	if number, err := r.signedTerm(); err != nil || number != 0 {
		t.Errorf("another boot: got term %d, %v, want 0", number, err)
	}
}
