//go:build cgo

package dispatcher

// Only with the fast driver: the bugs have nothing to do with drivers.

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// planted is a bug that somebody could make. Text that is not there exactly
// once any more fails the test, so that the bugs stay bugs of the present code.
type planted struct {
	name     string
	edits    []edit
	promises []string // one of these is broken first
}

type edit struct{ file, from, to string }

var bugs = []planted{
	{"an attempt is counted when it has ended", []edit{
		{"store/lane.go", "attempts_made = attempts_made + 1, claimed_at = ?2", "attempts_made = max(attempts_made, 1), claimed_at = ?2"},
		{"store/lane.go", "RETURNING num, id, program_id, attempts_made, seqs, ping", "RETURNING num, id, program_id, (SELECT count(*) + 1 FROM attempts WHERE delivery = num), seqs, ping"},
		{"store/lane.go", "UPDATE deliveries SET status = ?, failure_reason", "UPDATE deliveries SET attempts_made = (SELECT count(*) FROM attempts WHERE delivery = num), status = ?, failure_reason"},
		{"store/lane.go", "return t.finishAttempt(num, &a, step)", `return t.exec("UPDATE deliveries SET status = 'retryable', next_attempt_at = ?, claimed_at = NULL WHERE num = ?", t.w.clock.stored(now), num)`},
	}, []string{promiseCounted, promiseFive, promiseEarly}}, // the waits go by the count
	{"a 4xx is tried again", []edit{
		{"webhook/attempt.go", "status >= 500 && status <= 599", "status >= 400 && status <= 599"},
	}, []string{promiseFinal, promiseEnds}},
	{"all subscriptions share the slots of one", []edit{
		{"dispatcher/slot.go", "if d.inFlight >= d.cfg.MaxConnections {", "if d.inFlight >= d.cfg.MaxInFlight {"},
	}, []string{promiseServed, promiseLate}},
	{"the loop is not told of an earlier time", []edit{
		{"dispatcher/schedule.go", "d.wake() // the loop waits for a later time", ""},
	}, []string{promiseLate, promiseServed, promiseEnds}},
	{"of several events that are published together the first alone is told of", []edit{
		{"store/watch.go", "for i := range events {", "for i := range events[:1] {"},
	}, []string{promiseServed, promiseKept}},
	{"a change that comes while a delivery is formed is not read", []edit{
		{"dispatcher/claim.go", "if q.stale && q.forming == 0 {", "if q.stale && q.forming == 0 && err != nil {"},
		{"dispatcher/schedule.go", "if q.stale && q.forming == 0 && !q.gone && !now.Before(q.suspendedUntil) {", "if !q.suspendedUntil.IsZero() && q.stale && q.forming == 0 && !q.gone && !now.Before(q.suspendedUntil) {"},
	}, []string{promiseServed, promiseLate, promiseKept}},
	{"a redelivery wakes nobody", []edit{
		{"store/delivery.go", "t.afterCommit(func() { s.watchers.queued(subscriptionID) })", "_ = s"},
	}, []string{promiseServed}},
	{"a pause forgets what was owed", []edit{
		{"store/subscription.go", `"UPDATE interests SET until_seq = ? WHERE subscription_id = ? AND name = ? AND until_seq IS NULL", head.seq, after.ID, name`,
			`"DELETE FROM interests WHERE subscription_id = ? AND name = ? AND until_seq IS NULL", after.ID, name`},
	}, []string{promiseKept, promiseServed}},
	{"a deletion is told to nobody", []edit{
		{"store/subscription.go", "active = 0, authorization_header = NULL, signing_secret = x'', revision = revision + 1 WHERE", "active = 0, authorization_header = NULL WHERE"},
		{"store/subscription.go", `"DELETE FROM interests WHERE subscription_id = ?"`, `"DELETE FROM interests WHERE subscription_id = ? AND FALSE"`},
		{"store/subscription.go", `"DELETE FROM cursors WHERE subscription_id = ?"`, `"DELETE FROM cursors WHERE subscription_id = ? AND FALSE"`},
		{"store/subscription.go", "t.afterCommit(func() { s.watchers.subscriptionChanged(id) })\n\tended, err := t.now()", "ended, err := t.now()"},
	}, []string{promiseDeleted}},
	{"a pause is not heeded", []edit{
		{"store/lane.go", "AND ping IS NULL AND EXISTS (SELECT 1 FROM subscriptions WHERE id = ?1 AND active = 1)", "AND ping IS NULL"},
		{"dispatcher/queue.go", "!q.Active || q.inFlight >= limit", "q.inFlight >= limit"},
	}, []string{promisePaused}},
	{"the jitter is twice as much", []edit{
		{"webhook/retry.go", "p.Jitter * (2*roll - 1)", "p.Jitter * (4*roll - 2)"},
	}, []string{promiseEarly, promiseLate}},
	{"what a 503 asks for is not heeded", []edit{
		{"webhook/retry.go", "wait = max(wait, min(a.RetryAfter, MaxRetryAfter))", ""},
	}, []string{promiseEarly}},
	{"order is not heeded", []edit{
		{"dispatcher/queue.go", "case q.Ordered && !q.nextDue.IsZero():", "case false:"},
	}, []string{promiseOrdered}},
	{"one slot too many", []edit{
		{"dispatcher/queue.go", "q.inFlight >= limit", "q.inFlight > limit || q.Ordered && q.inFlight > 0"},
	}, []string{promiseSlots}},
	{"a retry has a new id", []edit{
		{"dispatcher/attempt.go", "size := 192", "if c.Number > 1 {\n\t\tc.ID = webhook.NewID()\n\t}\n\tsize := 192"},
	}, []string{promiseOnce, promiseCounted, promiseLate}},
	{"a retry has its events in another order", []edit{
		{"dispatcher/attempt.go", "size := 192", "if n := len(c.Events) - 1; c.Number > 1 {\n\t\tc.Events[0], c.Events[n] = c.Events[n], c.Events[0]\n\t}\n\tsize := 192"},
	}, []string{promiseBytes}},
	{"the cursor moves in a commit before that of the delivery", []edit{
		{"store/lane.go", "return t.insertFormed(&f.claim, f.seqs, \"\")", "f.later = func(t *tx) error { return t.insertFormed(&f.claim, f.seqs, \"\") }\n\treturn nil"},
		{"store/lane.go", "seqs     string\n\tclaim    Claim", "seqs string\n\tlater func(*tx) error\n\tclaim Claim"},
		{"store/lane.go", "return &f.claim, nil\n}\n\nfunc appendSeqs", "if err := f.s.writer.do(f.later); err != nil {\n\t\treturn nil, err\n\t}\n\treturn &f.claim, nil\n}\n\nfunc appendSeqs"},
		{"dispatcher/inline.go", "len(queues) > maxInline", "len(queues) > 0"},
	}, []string{promiseKept, promiseServed}},
	{"a delivery formed inline skips waiting events", []edit{
		{"store/early.go", "a.s.tail.scan(l.ProgramID, l.Seen, visit)", "reached = e.Seq - 1"},
	}, []string{promiseKept, promiseServed}},
	{"a slot reserved inline for no delivery is lost", []edit{
		{"dispatcher/inline.go", "j.queue.reading = false\n\td.releaseInline(j, nil)", "j.queue.reading = false\n\td.workers.Done()"},
		{"store/early.go", "if len(g.Seqs) == 0 {", "if len(g.Seqs) < 2 {"},
	}, []string{promiseServed, promiseKept, promiseLate}},
	{"a first attempt that was cut off is not found again", []edit{
		{"store/lane.go", "AND claimed_at IS NOT NULL\"", "AND claimed_at IS NOT NULL AND attempts_made > 1\""},
	}, []string{promiseLate, promiseEnds}},
	{"a slot that found nothing to do is lost", []edit{
		{"dispatcher/slot.go", "d.release(j, next, now)\n", "if claim != nil {\n\t\t\td.release(j, next, now)\n\t\t}\n"},
	}, []string{promiseServed, promiseLate, promiseEnds, promiseIdle}},
	{"a request is sent again when its connection broke", []edit{
		{"dispatcher/client/attempt.go", "if !reused || sent {", "if !reused || sent && err == nil {"},
	}, []string{promiseEarly, promiseFive}},
	{"the cursor moves in memory alone", []edit{
		{"store/lane.go", "UPDATE cursors SET seq = ?1 WHERE subscription_id = ?2 AND seq = ?3 AND EXISTS", "UPDATE cursors SET seq = seq + 0 * ?1 WHERE subscription_id = ?2 AND ?3 IS NOT NULL AND EXISTS"},
	}, []string{promiseOnce}},
}

// maxPlanted is in how many plans a planted bug must be found. Most take a
// dozen; those that are a matter of the scheduler took up to 2,400.
const maxPlanted = "12000"

// Each planted bug is found by the simulation.
func TestPlantedBugs(t *testing.T) {
	if testing.Short() {
		t.Skip("planted bugs: each is a build of its own")
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, bug := range bugs {
		t.Run(bug.name, func(t *testing.T) {
			t.Parallel()
			bug.find(t, root)
		})
	}
}

func (bug *planted) find(t *testing.T, root string) {
	dir := t.TempDir()
	texts := make(map[string]string)
	for _, e := range bug.edits {
		if _, ok := texts[e.file]; !ok {
			text, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				t.Fatal(err)
			}
			texts[e.file] = string(text)
		}
		if n := strings.Count(texts[e.file], e.from); n != 1 {
			t.Fatalf("%s has %q %d times, want once: plant the bug in the code as it is now", e.file, e.from, n)
		}
		texts[e.file] = strings.Replace(texts[e.file], e.from, e.to, 1)
	}
	overlay := struct{ Replace map[string]string }{make(map[string]string)}
	for name, text := range texts {
		to := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(root, name)] = to
	}
	text, err := json.Marshal(&overlay)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	binary := filepath.Join(dir, "planted.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-ldflags=-s -w", "-o", binary, "./dispatcher")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the bug does not build: %v\n%s", err, out)
	}
	run := exec.CommandContext(ctx, binary, "-test.run=^TestSimulation$", "-simulation.plans="+maxPlanted, "-rapid.shrinktime=1ns")
	run.Dir = dir
	run.Env = append(os.Environ(), "GOMAXPROCS=2") // some are a matter of two at a time
	out, err := run.CombinedOutput()
	if err == nil {
		t.Fatalf("it was not found in %s plans", maxPlanted)
	}
	var exit *exec.ExitError
	found := regexp.MustCompile(`plan (\d+) broke a promise: ([^:]*): (.*)`).FindSubmatch(out)
	if !errors.As(err, &exit) || found == nil {
		t.Fatalf("the simulation ended otherwise: %v\n%s", err, out)
	}
	t.Logf("found by plan %s: %s: %s", found[1], found[2], found[3])
	for _, p := range bug.promises {
		if p == string(found[2]) {
			return
		}
	}
	t.Errorf("it broke %q, want one of %q", found[2], bug.promises)
}
