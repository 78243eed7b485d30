//go:build !race

// The race detector of Go cannot follow months of fake time: it ends with an error of its own.

package store

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"service/webhook"
)

// aging is a service with retention whose wall clock can be set, in a bubble.
type aging struct {
	*Store
	t     *testing.T
	dir   string
	keep  webhook.Retention
	ahead atomic.Int64 // of the wall clock, a time.Duration
	sub   webhook.Subscription
	end   func()
}

// inAging runs a test of a service that keeps records for a time.
func inAging(t *testing.T, keep webhook.Retention, test func(*testing.T, *aging)) {
	t.Helper()
	dir := memoryDir(t)
	synctest.Test(t, func(t *testing.T) {
		a := &aging{t: t, dir: dir, keep: keep}
		a.start()
		defer func() { a.end() }()
		program(t, a.Store, "p")
		a.sub = subscribe(t, a.Store, "p", "content_updated")
		test(t, a)
	})
}

// start opens the store and runs retention, until a.end.
func (a *aging) start() {
	a.t.Helper()
	s, err := Open(a.t.Context(), Config{Dir: a.dir, Retention: a.keep, Now: func() time.Time {
		return time.Now().Add(time.Duration(a.ahead.Load())).Round(0)
	}})
	must(a.t, err)
	ctx, cancel := context.WithCancel(a.t.Context())
	done := make(chan error)
	go func() { done <- s.Retain(ctx, a.keep) }()
	a.Store = s
	a.end = func() {
		cancel()
		must(a.t, <-done)
		must(a.t, s.Close())
	}
}

// set sets the wall clock.
func (a *aging) set(by time.Duration) { a.ahead.Add(int64(by)) }

// publish publishes and delivers an event.
func (a *aging) publish() {
	a.t.Helper()
	publish(a.t, a.Store, "p", "content_updated")
	send(a.t, a.Store, queue(a.t, a.Store, a.sub.ID), 200)
}

// live publishes an event every six hours for a number of days. After each day, the events and
// deliveries of between least and most days must be stored.
func (a *aging) live(days, least, most int) {
	a.t.Helper()
	for d := range days {
		for range 4 {
			a.publish()
			time.Sleep(6 * time.Hour)
		}
		synctest.Wait()
		for _, records := range []string{"events", "deliveries WHERE ping IS NULL"} {
			if n := count(a.t, a.Store, "SELECT count(*) FROM "+records); n < int64(4*least) || n > int64(4*most) {
				a.t.Fatalf("day %d: %d %s are stored, want those of %d to %d days", d+1, n, records, least, most)
			}
		}
	}
}

// lost returns how many of the events published so far were removed.
func (a *aging) lost() int64 {
	a.t.Helper()
	return count(a.t, a.Store, "SELECT max(seq) - count(*) FROM events")
}

const (
	month = 30 * day
	late  = 2 // days by which records may be removed late: one for a run of retention, one for a mark
)

// A wall clock that is set forward for some hours makes retention remove only old records, whether
// the service restarts in between or starts with that clock.
func TestClockSetForward(t *testing.T) {
	for name, restart := range map[string]func(a *aging, forward func()){
		"without a restart": func(_ *aging, forward func()) { forward() },
		"then a restart": func(a *aging, forward func()) {
			forward()
			publish(a.t, a.Store, "p", "content_updated")
			a.end()
			a.start()
		},
		"while it was down": func(a *aging, forward func()) {
			a.end()
			forward()
			a.start()
		},
		"and killed before it noticed": func(a *aging, forward func()) {
			forward()
			a.end()
			a.start()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inAging(t, webhook.Retention{All: month, Delivered: 5 * day}, func(t *testing.T, a *aging) {
				for range 10 { // all of them wait
					publish(t, a.Store, "p", "content_updated")
					time.Sleep(time.Minute)
				}
				time.Sleep(3 * time.Hour) // until marks cover them
				restart(a, func() { a.set(40 * day) })
				publish(t, a.Store, "p", "content_updated")
				time.Sleep(3 * time.Hour)
				a.set(-40 * day)
				publish(t, a.Store, "p", "content_updated")
				time.Sleep(20 * day)
				synctest.Wait()
				wantNumber(t, "events that are gone", a.lost(), 0)
				wantNumber(t, "events lost by the subscription", lostEvents(t, a.Store, a.sub.ID), 0)
			})
		})
	}
}

// A machine that pauses for two seconds a day, for a snapshot or a migration, keeps as much as
// any other.
func TestClockPausedDaily(t *testing.T) {
	for name, pause := range map[string]time.Duration{"without a pause": 0, "with a pause": 2 * time.Second} {
		t.Run(name, func(t *testing.T) {
			inAging(t, webhook.Retention{All: 2 * day}, func(t *testing.T, a *aging) {
				for d := range 30 {
					for range 24 {
						publish(t, a.Store, "p", "content_updated")
						time.Sleep(time.Hour)
					}
					a.set(pause)
					synctest.Wait()
					if n := count(t, a.Store, "SELECT count(*) FROM events"); d >= 3 && (n < 47 || n > 51) {
						t.Fatalf("day %d: %d events are stored, want those of two days", d, n)
					}
				}
			})
		})
	}
}

// A clock that is six months ahead for two months makes retention remove some more days once.
// Retention continues after the clock was set, and after it was corrected, when no stored time
// increases for months.
func TestClockWrongForMonths(t *testing.T) {
	inAging(t, webhook.Retention{All: month}, func(t *testing.T, a *aging) {
		a.live(40, 0, 30+late)
		a.set(6 * month)
		a.live(5, 26, 30+late)
		a.live(55, 27, 30+late)
		a.set(-6 * month)
		a.live(70, 29, 30+late)
		if more, _, err := a.clockDifference(t.Context()); err != nil || more.Abs() > time.Minute {
			t.Errorf("got a difference of %v, %v", more, err)
		}
	})
}

// A laptop that sleeps for 16 hours a day keeps records as long as its wall clock demands,
// although its monotonic clock stands still.
func TestClockSuspendedDaily(t *testing.T) {
	inAging(t, webhook.Retention{All: 10 * day}, func(t *testing.T, a *aging) {
		for d := range 40 {
			for range 4 {
				a.publish()
				time.Sleep(2 * time.Hour)
			}
			a.set(16 * time.Hour)
			synctest.Wait()
			if n := count(t, a.Store, "SELECT count(*) FROM events"); d > 11+late && (n < 4*10 || n > 4*(11+late)) {
				t.Fatalf("day %d: %d events are stored, want those of 10 days", d, n)
			}
		}
	})
}

// Events that wait when a service is switched off for three months still exist when it starts, and
// get no older than the retention.
func TestClockOffForMonths(t *testing.T) {
	inAging(t, webhook.Retention{All: month}, func(t *testing.T, a *aging) {
		a.live(20, 0, 20)
		a.end()
		a.set(3 * month)
		a.start()
		time.Sleep(6 * day)
		synctest.Wait()
		wantNumber(t, "events that are gone", a.lost(), 0)
		if more, _, err := a.clockDifference(t.Context()); err != nil || more.Round(time.Minute) != 3*month-month/10 {
			t.Errorf("got a difference of %v, %v", more, err)
		}
		time.Sleep((24 + late) * day)
		a.publish()
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		wantNumber(t, "stored events", count(t, a.Store, "SELECT count(*) FROM events"), 1) // the new one
	})
}

// A wall clock that stands still and is corrected every day counts once: the time has been counted
// while the service ran.
func TestClockStandsStill(t *testing.T) {
	inAging(t, webhook.Retention{All: 10 * day}, func(t *testing.T, a *aging) {
		for d := range 30 {
			for range 4 {
				for range 6 {
					time.Sleep(time.Hour)
					a.set(-time.Hour)
				}
				a.publish()
			}
			a.set(day)
			publish(t, a.Store, "p", "channel_created")
			synctest.Wait()
			if n := count(t, a.Store, "SELECT count(*) FROM events"); d > 10 && (n < 5*10 || n > 5*(10+late)) {
				t.Fatalf("day %d: %d events are stored, want those of 10 days", d, n)
			}
		}
	})
}

// A retention that is shortened applies within a day of its own marks, and a lengthened one keeps
// the existing records.
func TestRetentionChanged(t *testing.T) {
	inAging(t, webhook.Retention{All: 20 * day}, func(t *testing.T, a *aging) {
		change := func(keep webhook.Retention) {
			a.end()
			a.keep = keep
			a.start()
		}
		a.live(30, 0, 20+late)
		change(webhook.Retention{All: 5 * day})
		time.Sleep(6 * time.Hour)
		a.live(10, 4, 5+late)
		change(webhook.Retention{All: 20 * day})
		a.live(10, 4, 15+late)
		a.live(20, 14, 20+late)
		change(webhook.Retention{All: 20 * day, Delivered: day})
		time.Sleep(2 * day)
		synctest.Wait()
		wantNumber(t, "stored deliveries", count(t, a.Store, "SELECT count(*) FROM deliveries"), 1) // the newest
		time.Sleep(20 * day)
		synctest.Wait()
		if n := count(t, a.Store, "SELECT count(*) FROM retention_marks"); n < marks || n > 4*marks {
			t.Errorf("%d marks are stored, want about %d for each retention", n, marks)
		}
	})
}

// A delivery that waited for the whole retention stays visible for as long after it has failed.
func TestExpiredDeliveryStays(t *testing.T) {
	inAging(t, webhook.Retention{All: 10 * day}, func(t *testing.T, a *aging) {
		publish(t, a.Store, "p", "content_updated")
		form(t, a.Store, queue(t, a.Store, a.sub.ID), 1)
		a.end()
		a.start() // its attempt has ended
		_, err := a.Queues().RecoverInterrupted(webhook.DefaultRetryPolicy())
		must(t, err)
		publish(t, a.Store, "p", "channel_created")
		subscribe(t, a.Store, "p", "channel_created") // whose ping is the newest delivery
		const expired = "SELECT count(*) FROM deliveries WHERE failure_reason = 'expired' AND ping IS NULL"
		for d := range 25 {
			want := int64(0)
			if d >= 10+late && d < 20 {
				want = 1
			}
			if got := count(t, a.Store, expired); got != want && (d < 10 || d >= 10+late) && (d < 20 || d >= 20+late) {
				t.Errorf("after %d days: %d expired deliveries, want %d", d, got, want)
			}
			a.set(time.Duration(d%3-1) * 6 * month) // jumps that cancel out
			time.Sleep(day)
			synctest.Wait()
		}
	})
}

// Marks do not cover events that get the rowids of erased ones.
func TestMarksAfterErasure(t *testing.T) {
	inAging(t, webhook.Retention{All: 10 * day}, func(t *testing.T, a *aging) {
		publish(t, a.Store, "p", "content_updated")
		program(t, a.Store, "q")
		for range 10 {
			publish(t, a.Store, "q", "content_updated")
		}
		time.Sleep(5 * day)
		erase(t, a.Store, "q")
		must(t, a.Programs().Erase(t.Context()))
		for range 10 {
			publish(t, a.Store, "p", "content_updated")
		}
		time.Sleep(7 * day)
		synctest.Wait()
		if n := a.lost(); n != 1 {
			t.Errorf("%d events are gone, want that of 12 days ago", n)
		}
	})
}

// A program is as old after an import as before it, even if the clock of the source or of the
// target is wrong.
func TestImportedAge(t *testing.T) {
	for name, wrong := range map[string]struct{ source, target time.Duration }{
		"both clocks are right":  {0, 0},
		"the source's is ahead":  {20 * time.Hour, 0}, // an import accepts at most a day
		"the source's is behind": {-6 * month, 0},
		"the target's is ahead":  {0, 6 * month},
	} {
		t.Run(name, func(t *testing.T) {
			dir := memoryDir(t)
			inAging(t, webhook.Retention{All: 10 * day}, func(t *testing.T, a *aging) {
				for range 6 * 4 {
					a.publish()
					time.Sleep(6 * time.Hour)
				}
				publish(t, a.Store, "p", "content_updated") // waits
				a.set(wrong.source)
				publish(t, a.Store, "p", "content_updated")
				x := exported(t, a.Store, "p")
				b := &aging{t: t, dir: dir, keep: a.keep}
				b.set(wrong.target)
				b.start()
				defer b.end()
				_, err := b.Programs().Import(t.Context(), copyOf(t, x))
				must(t, err)
				stored := func() int64 { return count(t, b.Store, "SELECT count(*) FROM events WHERE program_id = 'p'") }
				time.Sleep(2 * day)
				synctest.Wait()
				if n, lost := stored(), lostEvents(t, b.Store, a.sub.ID); n != 26 || lost != 0 {
					t.Errorf("after 8 days: %d events are stored, and %d lost", n, lost)
				}
				time.Sleep((2 + late) * day)
				synctest.Wait()
				if n := stored(); wrong.source == 0 && (n > 26-4*2 || n < 26-4*(2+late)) {
					t.Errorf("after 12 days: %d events are stored", n)
				}
				time.Sleep(10 * day)
				synctest.Wait()
				if n := stored(); n != 2 {
					t.Errorf("after 22 days: %d events are stored, want the newest, and that of the newest delivery", n)
				}
			})
		})
	}
}

// Retain does not run right after startup.
func TestRetainStartsLate(t *testing.T) {
	inAging(t, webhook.Retention{All: 2 * day}, func(t *testing.T, a *aging) {
		publish(t, a.Store, "p", "content_updated", "content_updated")
		time.Sleep(2*day - time.Hour)
		publish(t, a.Store, "p", "channel_created")
		for range 100 { // each before its first run
			a.end()
			a.start()
			time.Sleep(30 * time.Minute)
		}
		wantNumber(t, "events that are gone", a.lost(), 0)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if got, want := a.Figures().Swept().Events, int64(2); got != want {
			t.Errorf("removed %d events, want %d", got, want)
		}
	})
}
