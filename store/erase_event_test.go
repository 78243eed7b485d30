package store

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"service/store/erasure"
	"service/webhook"
)

const erasedText = "Kanarienvogel-7f3a"

// publishText publishes events of a free-form type with a text in their details, and returns them.
func publishText(t *testing.T, s *Store, n int, text string) []webhook.Event {
	t.Helper()
	events := make([]webhook.Event, n)
	for i := range events {
		e := event("content_updated")
		e.JSON = append(e.JSON[:len(e.JSON)-1], `,"details":{"text":"`+text+`"}}`...)
		events[i] = e
	}
	publishAll(t, s, "p", events...)
	return events
}

func eraseEvent(t *testing.T, s *Store, e *webhook.Event) webhook.Event {
	t.Helper()
	var left webhook.Event
	mustWrite(t, s, func(w Write) (err error) {
		left, err = w.EraseEvent("p", e.ID, anAdmin())
		return err
	})
	return left
}

// formSplitOf forms the next delivery of a subscription's splits, nil if there is none.
func formSplitOf(t *testing.T, s *Store, id string) *Claim {
	t.Helper()
	f, err := s.Queues().formSplit(t.Context(), &Credit{Queue: queue(t, s, id), Count: 1, Size: webhook.MaxDeliveryBytes}, nil)
	must(t, err)
	if f == nil {
		return nil
	}
	c, err := f.Wait()
	must(t, err)
	return c
}

func statusOf(t *testing.T, s *Store, id string) (webhook.Status, webhook.FailureReason) {
	t.Helper()
	d, err := s.Deliveries().View(t.Context(), id)
	must(t, err)
	return d.Status, d.FailureReason
}

func TestEraseEvent(t *testing.T) {
	s := openProgram(t)
	events := publishText(t, s, 2, erasedText)
	left := eraseEvent(t, s, &events[0])
	if left.ErasedAt.IsZero() || bytes.Contains(left.JSON, []byte(erasedText)) ||
		left.Timestamp != "2026-01-02T03:04:05.000Z" || left.Seq != 1 {
		t.Errorf("left: %+v %s", left, left.JSON)
	}
	if again := eraseEvent(t, s, &events[0]); !again.ErasedAt.Equal(left.ErasedAt) {
		t.Errorf("erased again at %v, want %v", again.ErasedAt, left.ErasedAt)
	}
	wantNumber(t, "entries of the audit log",
		count(t, s, "SELECT count(*) FROM audit WHERE action = 'event.erase' AND subject_id = ?", events[0].ID), 1)
	wantNumber(t, "erasures to complete", count(t, s, "SELECT count(*) FROM erasures WHERE cleared = 0"), 1)
	for _, other := range []string{erasedText, "other"} {
		again := events[0]
		again.JSON = bytes.ReplaceAll(events[0].JSON, []byte(erasedText), []byte(other))
		same := []webhook.Event{again}
		if added, err := s.Events().Publish(t.Context(), "p", same); added != 0 || err != nil || same[0].ErasedAt.IsZero() {
			t.Errorf("published again: added %d, %v", added, err)
		}
	}
	err := s.Write(t.Context(), func(w Write) error {
		_, err := w.EraseEvent("p", webhook.NewID(), anAdmin())
		return err
	})
	wantCode(t, err, webhook.CodeNotFound)
	must(t, s.Events().ClearErased(t.Context()))
	wantNumber(t, "rows left of the erasure", count(t, s, "SELECT (SELECT count(*) FROM erasures) + (SELECT count(*) FROM blanks)"), 0)
}

// A delivery is not formed from an erased event, wherever that is read: in memory, on disk, or before
// the erasure.
func TestErasedEventIsNotFormed(t *testing.T) {
	for _, where := range []string{"memory", "disk"} {
		t.Run(where, func(t *testing.T) {
			s, sub := openSubscribed(t)
			events := publishText(t, s, 4, erasedText)
			if where == "disk" {
				s.tail.Forget("p")
			}
			q := queue(t, s, sub.ID)
			read, err := s.Queues().waiting(t.Context(), q, 4, 4, webhook.MaxDeliveryBytes)
			must(t, err)
			eraseEvent(t, s, &events[1])
			before := s.Queues().form(&Credit{Queue: q}, &read)
			if _, err := before.Wait(); err != ErrStale {
				t.Errorf("a delivery read before the erasure: got %v, want ErrStale", err)
			}
			eraseEvent(t, s, &events[0])
			c := form(t, s, queue(t, s, sub.ID), 4)
			if c == nil || len(c.Events) != 2 {
				t.Fatalf("got %+v, want the two events that were not erased", c)
			}
			end(t, s, c, webhook.StatusSuccess)
			eraseEvent(t, s, &publishText(t, s, 1, erasedText)[0])
			if where == "disk" {
				s.tail.Forget("p")
			}
			if c := form(t, s, queue(t, s, sub.ID), 1); c != nil {
				t.Errorf("got %s, want nothing", c.Events)
			}
			u, err := s.Subscriptions().View(t.Context(), sub.ID, 1)
			if err != nil || u.WaitingEvents != 0 {
				t.Errorf("%d events wait, %v; want none", u.WaitingEvents, err)
			}
		})
	}
}

// A delivery that waits is cancelled, and its other events follow by themselves. One in flight ends
// its attempt first.
func TestEraseCancels(t *testing.T) {
	clear := func(t *testing.T, s *Store) { must(t, s.Events().ClearErased(t.Context())) }
	for when, erase := range map[string]func(t *testing.T, s *Store, c *Claim, e *webhook.Event){
		"waiting": func(t *testing.T, s *Store, c *Claim, e *webhook.Event) {
			retryLater(t, s, c)
			eraseEvent(t, s, e)
			clear(t, s)
		},
		"claimed": func(t *testing.T, s *Store, c *Claim, e *webhook.Event) {
			retryLater(t, s, c)
			eraseEvent(t, s, e)
			credit := &Credit{Queue: queue(t, s, c.SubscriptionID), Kind: CreditDue}
			if _, _, err := s.Queues().claimDue(t.Context(), credit); err != ErrStale {
				t.Errorf("a claim: got %v, want ErrStale", err)
			}
			clear(t, s)
		},
		"in flight": func(t *testing.T, s *Store, c *Claim, e *webhook.Event) {
			eraseEvent(t, s, e)
			clear(t, s)
			if status, _ := statusOf(t, s, c.ID); status != webhook.StatusPending || !s.erasedInFlight.Has(c.num) || s.erasedInFlight.Has(c.num+1) {
				t.Errorf("in flight: %s", status)
			}
			retryLater(t, s, c)
			if len(s.housekeeping.erased) == 0 {
				t.Error("the end of the attempt does not wake the erasure")
			}
			clear(t, s)
		},
	} {
		t.Run(when, func(t *testing.T) {
			s, sub := openSubscribed(t)
			events := publishText(t, s, 3, erasedText)
			c := form(t, s, queue(t, s, sub.ID), 3)
			erase(t, s, c, &events[1])
			if status, reason := statusOf(t, s, c.ID); status != webhook.StatusFailed || reason != webhook.FailureCancelled {
				t.Errorf("got %s, %s; want cancelled", status, reason)
			}
			checkSplit(t, s, sub.ID, &events[0], &events[2])
			d, err := s.Deliveries().View(t.Context(), c.ID)
			must(t, err)
			if d.RecoveredAt.IsZero() || d.Splitting {
				t.Errorf("after the split: recovered %v, splitting %t", d.RecoveredAt, d.Splitting)
			}
			const copies = "SELECT (SELECT count(*) FROM attempts WHERE instr(response_body, ?1) OR instr(response_header, ?1)) + " +
				"(SELECT count(*) FROM stored_responses)"
			wantNumber(t, "responses that are left", count(t, s, copies, erasedText), 0)
		})
	}
}

// checkSplit delivers what the splits of a subscription send: each of some events, and nothing more.
func checkSplit(t *testing.T, s *Store, subscriptionID string, events ...*webhook.Event) {
	t.Helper()
	for _, e := range events {
		one := formSplitOf(t, s, subscriptionID)
		if one == nil || len(one.Events) != 1 || !bytes.Contains(one.Events[0], []byte(e.ID)) {
			t.Fatalf("split: got %+v, want %s", one, e.ID)
		}
		end(t, s, one, webhook.StatusSuccess)
	}
	if one := formSplitOf(t, s, subscriptionID); one != nil {
		t.Errorf("split: got %s, want nothing more", one.Events)
	}
}

// What was delivered stays so, without the responses.
func TestEraseAfterDelivery(t *testing.T) {
	s, sub := openSubscribed(t)
	e := publishText(t, s, 1, erasedText)[0]
	c := form(t, s, queue(t, s, sub.ID), 1)
	a := webhook.Attempt{Number: 1, StartedAt: time.Now(), Result: webhook.ResultSuccess, ResponseStatus: 200,
		ResponseBody: []byte(erasedText)}
	recordResult(t, s, c, &a, webhook.Step{Status: webhook.StatusSuccess}, webhook.HealthPolicy{})
	eraseEvent(t, s, &e)
	must(t, s.Events().ClearErased(t.Context()))
	if status, _ := statusOf(t, s, c.ID); status != webhook.StatusSuccess || count(t, s, "SELECT count(*) FROM responses") != 0 {
		t.Errorf("got %s, want a success without its response", status)
	}
}

// Replays, redeliveries and bulk runs leave erased events out. A redelivery with nothing left is a
// conflict.
func TestErasedEventIsNotSentAgain(t *testing.T) {
	s, sub := openSubscribed(t)
	events := publishText(t, s, 3, erasedText)
	both := form(t, s, queue(t, s, sub.ID), 2)
	end(t, s, both, webhook.StatusSuccess)
	one := form(t, s, queue(t, s, sub.ID), 1)
	end(t, s, one, webhook.StatusFailed)
	eraseEvent(t, s, &events[0])
	eraseEvent(t, s, &events[2])
	must(t, s.Events().ClearErased(t.Context()))

	f := &webhook.ReplayFields{From: time.UnixMilli(0), Only: webhook.ReplayAll}
	n, err := s.Replays().Count(t.Context(), "p", sub.ID, f, 10)
	if err != nil || n.Events != 1 {
		t.Errorf("a replay would send %d events, %v; want 1", n.Events, err)
	}
	_, err = s.Replays().Create(t.Context(), "p", sub.ID, f)
	must(t, err)
	c := mustStep(t, s, sub.ID)
	if len(c.Events) != 1 || !bytes.Contains(c.Events[0], []byte(events[1].ID)) {
		t.Errorf("replay: got %+v, want %s", c, events[1].ID)
	}

	redeliver := func(id string) (d webhook.Delivery, err error) {
		err = s.Write(t.Context(), func(w Write) (err error) {
			d, err = w.Deliveries().Redeliver("p", sub.ID, id, anAdmin())
			return err
		})
		return d, err
	}
	d, err := redeliver(both.ID)
	if err != nil || len(d.Events) != 1 || d.Events[0].ID != events[1].ID {
		t.Errorf("redelivery: got %v, %v; want %s", d.Events, err, events[1].ID)
	}
	_, err = redeliver(one.ID)
	wantCode(t, err, webhook.CodeConflict)

	p := planBulk(t, s, webhook.BulkRedeliver, "filter[status]=failed")
	if p.Done != 0 || p.Skipped[webhook.SkipErased] != 1 {
		t.Errorf("bulk run: %d done, skipped %v; want 1 erased", p.Done, p.Skipped)
	}
	again := form(t, s, queue(t, s, sub.ID), 10)
	if again != nil {
		t.Errorf("log: got %s, want nothing", again.Events)
	}
}

// A bulk run redelivers the events that were not erased.
func TestBulkRunOfErased(t *testing.T) {
	s, sub := openSubscribed(t)
	events := publishText(t, s, 3, erasedText)
	c := form(t, s, queue(t, s, sub.ID), 3)
	end(t, s, c, webhook.StatusSuccess)
	eraseEvent(t, s, &events[1])
	runBulk(t, s, webhook.BulkRedeliver, webhook.NewID(), "filter[status]=success", 0)
	page, _, err := s.Deliveries().PageAll(t.Context(), query(t, webhook.AllDeliveryList, "page[size]=1"))
	must(t, err)
	var ids []string
	for _, e := range page[0].Events {
		ids = append(ids, e.ID)
	}
	if want := []string{events[0].ID, events[2].ID}; !slices.Equal(ids, want) {
		t.Errorf("got %v, want %v", ids, want)
	}
}

// Pulls leave erased events out, and their cursors go on.
func TestPullSkipsErased(t *testing.T) {
	s, sub := openSubscribed(t)
	_, start, _ := pull(t, s, &sub, "p", "", "")
	events := publishText(t, s, 3, erasedText)
	eraseEvent(t, s, &events[0])
	eraseEvent(t, s, &events[2])
	seqs, _, _ := pull(t, s, &sub, "p", "page[size]=1", start)
	wantSeqs(t, "pull", seqs, 2)
}

// The split of a failed delivery ends when all its events were erased, which does not make it recovered.
func TestEraseFailedWithSplit(t *testing.T) {
	s, sub := openSubscribed(t)
	events := publishText(t, s, 2, erasedText)
	c := form(t, s, queue(t, s, sub.ID), 2)
	end(t, s, c, webhook.StatusFailed)
	eraseEvent(t, s, &events[0])
	eraseEvent(t, s, &events[1])
	if one := formSplitOf(t, s, sub.ID); one != nil {
		t.Errorf("split: got %s, want nothing", one.Events)
	}
	must(t, s.Events().ClearErased(t.Context()))
	d, err := s.Deliveries().View(t.Context(), c.ID)
	must(t, err)
	if d.Splitting || !d.RecoveredAt.IsZero() || d.Undelivered != 0 {
		t.Errorf("splitting %t, recovered %v, undelivered %d; want none", d.Splitting, d.RecoveredAt, d.Undelivered)
	}
}

// Stored answers to requests keep the records of erased events as they are now, and the bytes of a token are counted.
func TestEraseStoredAnswers(t *testing.T) {
	s := openProgram(t)
	token := newTokenID(t, s)
	events := publishText(t, s, 3, erasedText)
	body := func(all ...webhook.Event) string {
		var records []string
		for i := range all {
			records = append(records, string(all[i].AppendLogged(nil, "")))
		}
		return `{"data":[` + strings.Join(records, ",") + `]}`
	}
	for _, name := range []string{"k", "other"} {
		must(t, keep(s, newKey(token, name, "request"), body(events[0], events[1], events[2], events[0])))
	}
	left, other := eraseEvent(t, s, &events[0]), eraseEvent(t, s, &events[2])
	must(t, s.Events().ClearErased(t.Context()))
	for _, name := range []string{"k", "other"} {
		a, err := s.StoredResponse(t.Context(), newKey(token, name, "request"))
		must(t, err)
		if want := body(left, events[1], other, left); string(a.Body) != want {
			t.Errorf("got %s, want %s", a.Body, want)
		}
	}
	wantNumber(t, "stored bytes more than those counted",
		count(t, s, "SELECT (SELECT sum(length(body)) FROM idempotency_keys) - (SELECT sum(bytes) FROM idempotency_use)"), 0)
}

// An export has no payload of an erased event, and an import erases it again.
func TestEraseExported(t *testing.T) {
	from := open(t)
	program(t, from, "p")
	events := publishText(t, from, 2, erasedText)
	eraseEvent(t, from, &events[0])
	x := exported(t, from, "p")
	s := open(t)
	_, err := s.Programs().Import(t.Context(), copyOf(t, x))
	must(t, err)
	e, err := s.Events().Get(t.Context(), "p", events[0].ID)
	if err != nil || e.ErasedAt.IsZero() || strings.Contains(string(e.JSON), erasedText) {
		t.Errorf("imported: %s, %v", e.JSON, err)
	}
	wantNumber(t, "erasures to complete", count(t, s, "SELECT count(*) FROM erasures"), 1)
}

// Each step is short and the next process continues.
func TestEraseEventsContinues(t *testing.T) {
	dir := memoryDir(t)
	s := openDir(t, dir)
	program(t, s, "p")
	sub := subscribe(t, s, "p", "content_updated")
	events := publishText(t, s, 40, erasedText)
	for range events {
		deliver(t, s, sub.ID, webhook.StatusFailed)
	}
	for i := range events {
		eraseEvent(t, s, &events[i])
	}
	for stop := 1; ; stop++ {
		if err := s.Events().ClearErased(interruptedAt(t, s, stop)); err == nil {
			break
		}
		must(t, s.Close())
		s = openDir(t, dir)
	}
	const left = "SELECT (SELECT count(*) FROM erasures) + (SELECT count(*) FROM blanks) + (SELECT count(*) FROM undelivered)"
	wantNumber(t, "rows left of the erasure", count(t, s, left), 0)
}

// retryLater records that an attempt failed, and that the next one is due.
func retryLater(t *testing.T, s *Store, c *Claim) {
	t.Helper()
	a := webhook.Attempt{Number: 1, StartedAt: time.Now(), Result: webhook.ResultRetryable, ResponseStatus: 503,
		ResponseHeader: "X: " + erasedText + "\r\n", ResponseBody: []byte(erasedText)}
	step := webhook.Step{Status: webhook.StatusRetryable, NextAttemptAt: time.Now().Add(-time.Second)}
	recordResult(t, s, c, &a, step, webhook.HealthPolicy{})
}

// One write of an erasure or of a claim ends few deliveries if they have many events, and many if they
// have few.
func TestEraseEndsFewEventsAtOnce(t *testing.T) {
	const deliveries = 5
	for _, of := range []struct{ events, atOnce int }{{endedAtOnce/2 + 1, 1}, {1, deliveries}} {
		s, sub := openSubscribed(t)
		events := publishText(t, s, of.events, erasedText)
		first := form(t, s, queue(t, s, sub.ID), of.events)
		end(t, s, first, webhook.StatusSuccess)
		for range deliveries {
			_, err := s.Deliveries().Redeliver(t.Context(), "p", sub.ID, first.ID)
			must(t, err)
		}
		cancelled := func() int {
			return int(count(t, s, "SELECT count(*) FROM deliveries WHERE failure_reason = 'cancelled'"))
		}
		eraseEvent(t, s, &events[0])
		if _, _, err := s.Queues().claimDue(t.Context(), &Credit{Queue: queue(t, s, sub.ID), Kind: CreditDue}); err != ErrStale {
			t.Errorf("a claim: got %v, want ErrStale", err)
		}
		ended := cancelled()
		if ended != of.atOnce {
			t.Errorf("deliveries of %d events: a claim ended %d, want %d", of.events, ended, of.atOnce)
		}
		most := 0
		s.afterStep = func() {
			n := cancelled()
			ended, most = n, max(most, n-ended)
		}
		must(t, s.Events().ClearErased(t.Context()))
		s.afterStep = nil
		if ended != deliveries || most > of.atOnce {
			t.Errorf("deliveries of %d events: %d ended, %d in one step, want %d, %d", of.events, ended, most, deliveries, of.atOnce)
		}
	}
}

// Erasing a program ends its erasures of events, and leaves no copy of any event.
func TestEraseProgramWithErasedEvents(t *testing.T) {
	s := openProgram(t)
	eraseEvent(t, s, &publishText(t, s, 300, erasedText)[0])
	erase(t, s, "p")
	must(t, s.eraseAll(t.Context(), false))
	wantNumber(t, "erasures that are left", count(t, s, "SELECT count(*) FROM erasures WHERE program_id = 'p'"), 0)
	must(t, s.Events().ClearErased(t.Context()))
	wantNumber(t, "erasures that are left after the copies", count(t, s, "SELECT count(*) FROM erasures"), 0)
	checkFiles(t, s.dir, erasedText)
}

// All free pages are overwritten, however many there are.
func TestEraseFillsFreePages(t *testing.T) {
	s := openProgram(t)
	kept := publishText(t, s, 1, "kept")
	must(t, s.writer.do(func(t *tx) error {
		if err := t.Exec("CREATE TABLE other (text TEXT)"); err != nil {
			return err
		}
		for range 300 {
			if err := t.Exec("INSERT INTO other VALUES (?)", strings.Repeat(erasedText, 400)); err != nil {
				return err
			}
		}
		return t.Exec("DROP TABLE other")
	}))
	var free int64
	must(t, s.writer.do(func(t *tx) (err error) {
		free, err = erasure.Free(t.Tx)
		return err
	}))
	if free < 500 {
		t.Fatalf("%d free pages, want more", free)
	}
	eraseEvent(t, s, &kept[0])
	must(t, s.Events().ClearErased(t.Context()))
	checkFiles(t, s.dir, erasedText)
}

// checkFiles checks that no file of a data directory contains a text.
func checkFiles(t *testing.T, dir, text string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if n := bytes.Count(b, []byte(text)); n > 0 {
			t.Errorf("%s contains %s %d times", d.Name(), text, n)
		}
		return err
	}))
}
