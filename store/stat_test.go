package store

import (
	"testing"
	"testing/synctest"
	"time"

	"service/store/record"
	"service/webhook"
)

// totalStats returns the sum of the statistics of the last days, and the number of their
// spans.
func totalStats(t *testing.T, s *Store, programID, subscriptionID string, span time.Duration) (sum webhook.Stat, spans int) {
	t.Helper()
	all, err := s.Figures().Stats(t.Context(), programID, subscriptionID, span, time.Now().Add(-100*time.Hour), time.Now().Add(time.Hour))
	must(t, err)
	for i := range all {
		if i > 0 && !all[i].At.After(all[i-1].At) {
			t.Errorf("got span %v after %v, want increasing order", all[i].At, all[i-1].At)
		}
		sum.Add(&all[i])
	}
	return sum, len(all)
}

// checkStats compares the statistics with the attempts of TestStats.
func checkStats(t *testing.T, s *Store, subscriptionID string) {
	t.Helper()
	for span, want := range map[time.Duration]int{record.StatMinute: 5, record.StatHour: 1} {
		got, spans := totalStats(t, s, "p", subscriptionID, span)
		if got.Success != 20 || got.Retryable != 10 || got.Failed != 0 || got.Answers["503"] != 10 || spans != want {
			t.Errorf("subscription, per %s: got %+v in %d spans, want %d spans", span, got, spans, want)
		}
		if got, _ := totalStats(t, s, "p", "", span); got.Total() != 60 || got.Failed != 30 {
			t.Errorf("program, per %s: got %+v, want 60 with 30 failed", span, got)
		}
		if got, _ := totalStats(t, s, "", "", span); got.Total() != 61 {
			t.Errorf("all programs, per %s: got %+v, want 61", span, got)
		}
	}
}

// Attempts are counted by minute and by hour, for the subscription, the program and all programs, including
// those that are not written yet. A restart keeps the statistics, and retention removes old ones.
func TestStats(t *testing.T) {
	dir := memoryDir(t)
	synctest.Test(t, func(t *testing.T) {
		s := opened(t, Config{Dir: dir})
		program(t, s, "p")
		sub, other := subscribe(t, s, "p", "content_updated"), subscribe(t, s, "p", "content_updated")
		program(t, s, "q")
		third := subscribe(t, s, "q", "content_updated")
		for i := range 30 {
			publish(t, s, "p", "content_updated")
			send(t, s, queue(t, s, sub.ID), []int{200, 200, 503}[i%3])
			send(t, s, queue(t, s, other.ID), 404)
			time.Sleep(10 * time.Second)
		}
		publish(t, s, "q", "content_updated")
		send(t, s, queue(t, s, third.ID), 200)
		checkStats(t, s, sub.ID)
		must(t, s.Close())
		again := openDir(t, dir)
		checkStats(t, again, sub.ID)

		time.Sleep(49 * time.Hour)
		sweepAt(t, again, time.Now().Add(-60*time.Hour))
		if got, _ := totalStats(t, again, "", "", record.StatMinute); got.Total() != 0 {
			t.Errorf("after two days: got minutes %+v, want none", got)
		}
		if got, _ := totalStats(t, again, "", "", record.StatHour); got.Total() != 61 {
			t.Errorf("after two days: got hours %+v", got)
		}
		sweepAt(t, again, time.Now())
		if got, _ := totalStats(t, again, "", "", record.StatHour); got.Total() != 0 {
			t.Errorf("got hours %+v, want none", got)
		}
	})
}

// An export and the chore may write the statistics in one transaction: they count once.
func TestStatsWrittenOnce(t *testing.T) {
	dir := memoryDir(t)
	synctest.Test(t, func(t *testing.T) {
		s := opened(t, Config{Dir: dir})
		program(t, s, "p")
		sub := subscribe(t, s, "p", "content_updated")
		publish(t, s, "p", "content_updated")
		send(t, s, queue(t, s, sub.ID), 200)
		time.Sleep(5 * time.Second) // the chore is due
		must(t, s.writeCounts())
		for _, span := range []time.Duration{record.StatMinute, record.StatHour} {
			if got, _ := totalStats(t, s, "p", sub.ID, span); got.Total() != 1 {
				t.Errorf("per %s: got %d attempts, want 1", span, got.Total())
			}
		}
		must(t, s.Close())
	})
}
