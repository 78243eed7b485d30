package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"service/webhook"
)

// anyDelivery is a row of the list over all programs as a plain model has it.
type anyDelivery struct {
	modelDelivery
	program, subscription, url, original, replay string
	made                                         int
}

func (m *anyDelivery) letsAll(q *webhook.ListQuery) bool {
	in := func(name, value string) bool {
		return q.Filters[name] == nil || slices.Contains(q.Filters[name], value)
	}
	least := 0
	if v := q.Filters["attempts_made.from"]; v != nil {
		least, _ = strconv.Atoi(v[0])
	}
	named := func(part string) bool { return strings.Contains(strings.ToLower(m.url), strings.ToLower(part)) }
	if parts := q.Filters["subscription_url"]; parts != nil && !slices.ContainsFunc(parts, named) {
		return false
	}
	return m.lets(q) && in("program_id", m.program) && in("subscription_id", m.subscription) && in("id", m.id) &&
		in("redelivery_of", m.original) && in("replay_id", m.replay) && m.made >= least
}

// Random lists over all programs against a plain model, with limits so small
// that every path is taken.
func TestAllDeliveriesAgainstAModel(t *testing.T) {
	ctx := context.Background()
	for seed := range uint64(3) {
		s := open(t)
		r := rand.New(rand.NewPCG(seed, 5))
		s.lists = []listLimits{{set: 4, scan: 6, costlyScan: 3}, {set: 1000, scan: 100, costlyScan: 100}, {set: 20, scan: 20, costlyScan: 20}}[seed]
		var subs []webhook.Subscription
		seqs := make(map[string]map[string]int64)
		for _, p := range []string{"p", "q"} {
			program(t, s, p)
			seqs[p] = make(map[string]int64)
			for _, name := range modelNames {
				seqs[p][name] = publish(t, s, p, name)[0].Seq
			}
			subs = append(subs, subscribe(t, s, p, modelNames...), subscribe(t, s, p, modelNames...))
		}
		for i := range subs { // the last is deleted
			subs[i].URL = fmt.Sprintf("https://%s-%d.Example/in?n=%d", subs[i].ProgramID, i, i%2)
			err := s.writer.do(func(tx *tx) error {
				return tx.Exec("UPDATE subscriptions SET url = ?1, deleted_at = CASE WHEN ?2 THEN created_at END WHERE id = ?3", subs[i].URL, i == len(subs)-1, subs[i].ID)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		var model []*anyDelivery
		replays := []string{webhook.NewID(), webhook.NewID()}
		base := date("2026-03-14")
		err := s.writer.do(func(tx *tx) error {
			if err := tx.Exec("DELETE FROM deliveries"); err != nil {
				return err
			}
			for i := range 80 {
				sub := subs[r.IntN(len(subs))]
				m := &anyDelivery{program: sub.ProgramID, subscription: sub.ID, url: sub.URL}
				m.num, m.id, m.created = int64(3+2*i), webhook.NewID(), base+int64(i/2)
				var ping, seq, reason, claimed any
				if r.IntN(6) == 0 {
					m.names, ping = []string{"ping"}, webhook.PingEvent(webhook.NewID(), time.UnixMilli(m.created))
				} else {
					name := modelNames[min(r.IntN(7)/3, 2)]
					m.names, seq = []string{name}, fmt.Sprintf("[%d]", seqs[sub.ProgramID][name])
				}
				m.made = 1 + r.IntN(4)
				switch r.IntN(5) {
				case 0, 1:
					m.status, m.response, m.completed = "success", []int{200, 202}[r.IntN(2)], m.created+int64(r.IntN(4))
				case 2:
					m.status, m.response, m.completed, reason = "failed", []int{404, 500}[r.IntN(2)], m.created+int64(r.IntN(4)), "rejected"
				case 3:
					m.status, m.code, m.next = "retryable", []string{"timeout", "dns"}[r.IntN(2)], m.created+int64(r.IntN(9))
				case 4:
					m.status = "pending"
					if r.IntN(2) == 0 {
						m.made, m.next = 0, m.created
					} else {
						claimed = m.created
					}
				}
				if i > 10 && r.IntN(6) == 0 {
					m.original = model[r.IntN(len(model))].id
				} else if r.IntN(6) == 0 {
					m.replay = replays[r.IntN(2)]
				}
				model = append(model, m)
				err := tx.Exec("INSERT INTO deliveries (num, id, subscription_id, program_id, status, failure_reason, attempts_made, claimed_at, next_attempt_at, response_status, error, seqs, ping, redelivery_of, replay_id, created_at, completed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
					m.num, m.id, m.subscription, m.program, m.status, reason, m.made, claimed, null(m.next), null(m.response), null(m.code), seq, blob(bytesOf(ping)), null(m.original), null(m.replay), m.created, null(m.completed))
				if err == nil && seq != nil {
					err = tx.linkEvents(m.program, m.num, seq.(string))
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Reverse(model) // newest first
		for walk := range 150 {
			raw := fmt.Sprintf("page[size]=%d", 1+r.IntN(7)) + []string{"", "&sort=created_at"}[r.IntN(2)]
			pick := func(often int, name string, values ...string) {
				if r.IntN(often) == 0 {
					raw += "&filter[" + name + "]=" + values[r.IntN(len(values))]
				}
			}
			any := func() *anyDelivery { return model[r.IntN(len(model))] }
			pick(3, "status", "pending", "retryable", "success", "failed", "failed,retryable", "pending,failed", "pending,failed,retryable")
			pick(6, "event", "content_updated", "channel_created", "ping", "ping,content_deleted")
			pick(6, "response_status", "404", "4xx,5xx", "2xx,404", "500")
			pick(8, "error", "timeout", "dns,timeout", "tls")
			pick(4, "program_id", "p", "q", "p,q", "nobody")
			pick(4, "subscription_id", subs[0].ID, subs[1].ID+","+subs[2].ID, webhook.NewID())
			pick(5, "subscription_url", "P-0", "p-1.EXAMPLE,q-3", "n=1", "example", "nowhere", "https://q-2")
			pick(5, "attempts_made.from", "1", "2", "3", "5")
			pick(12, "id", any().id, any().id+","+any().id+","+webhook.NewID())
			pick(12, "redelivery_of", any().id, webhook.NewID())
			pick(12, "replay_id", replays[0], replays[0]+","+replays[1])
			pick(8, "next_attempt_at.from", webhook.FormatTime(time.UnixMilli(any().created)))
			pick(8, "created_at.from", webhook.FormatTime(time.UnixMilli(any().created)))
			pick(8, "created_at.to", webhook.FormatTime(time.UnixMilli(any().created)))
			pick(8, "completed_at.to", webhook.FormatTime(time.UnixMilli(any().created)))
			if walk < 4 { // few of the one kind, in a set, beside many of the others, by an index
				raw = fmt.Sprintf("filter[status]=pending,failed,retryable&filter[attempts_made.from]=%d&page[size]=%d", 3+walk%2, 5+20*(walk/2))
			}
			q := query(t, webhook.AllDeliveryList, raw)
			var want, got []string
			for _, m := range model {
				if m.letsAll(q) {
					want = append(want, m.id)
				}
			}
			newestFirst := slices.Clone(want)
			if !q.Sort[0].Descending {
				slices.Reverse(want)
			}
			for pages := 0; ; pages++ {
				page, next, err := s.Deliveries().PageAll(ctx, q)
				if err != nil || len(page) > q.Size || pages > 5*len(model) {
					t.Fatalf("%s: page %d has %d rows (%v)", raw, pages, len(page), err)
				}
				for _, d := range page {
					got = append(got, d.ID)
				}
				if q.Cursor = next; next == "" {
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d, walk %d, %s:\ngot  %s\nwant %s", seed, walk, raw, strings.Join(got, " "), strings.Join(want, " "))
			}

			// What is new behind a place, and what a bulk action picks, is the same.
			after := any().num
			page, newest, more, err := s.Deliveries().After(ctx, q, after, 5)
			if err != nil || newest != model[0].num {
				t.Fatalf("%s: newest %d (%v)", raw, newest, err)
			}
			var fresh []string
			for _, m := range model {
				if m.num > after && m.letsAll(q) {
					fresh = append(fresh, m.id)
				}
			}
			for i, d := range page {
				if i >= len(fresh) || d.ID != fresh[i] {
					t.Fatalf("%s after %d: row %d is %s, want of %v", raw, after, i, d.ID, fresh)
				}
			}
			if len(page) < len(fresh) && !more {
				t.Fatalf("%s after %d: %d of %d, and no more", raw, after, len(page), len(fresh))
			}
			var picked []string
			for from := int64(0); ; {
				pick := func(newest, oldest int64, pages int) (nums []int64, from, rest int64) {
					from, rest, err := s.BulkRuns().pick(ctx, q, newest, oldest, func(page []int64) (bool, error) {
						nums = append(nums, page...)
						pages--
						return pages != 0, nil
					})
					if err != nil {
						t.Fatal(err)
					}
					return nums, from, rest
				}
				// What a plan has picked in its time is what its run picks.
				nums, newest, rest := pick(from, 0, 1)
				if again, _, left := pick(newest, rest, -1); !slices.Equal(again, nums) || left != rest {
					t.Fatalf("%s from %d to %d: picked %v, and then %v to %d", raw, newest, rest, nums, again, left)
				}
				for _, num := range nums {
					picked = append(picked, model[len(model)-1-int(num-3)/2].id)
				}
				if from = rest; rest <= 0 {
					break
				}
			}
			if !slices.Equal(picked, newestFirst) {
				t.Fatalf("%s:\npicked %v\nwant   %v", raw, picked, newestFirst)
			}
		}
	}
}

// What names more subscriptions by a part of their URLs than are looked for is
// refused, and not answered with some of them; a program narrows it.
func TestDeliveriesByTooManyURLs(t *testing.T) {
	s := open(t)
	program(t, s, "p")
	program(t, s, "q")
	first := subscribe(t, s, "p", "content_updated")
	subscribe(t, s, "q", "content_updated")
	more := func(from, to int) {
		t.Helper()
		err := s.writer.do(func(tx *tx) error {
			if err := tx.Exec("CREATE TEMP TABLE one AS SELECT * FROM subscriptions WHERE id = ?", first.ID); err != nil {
				return err
			}
			for i := from; i < to; i++ {
				if err := tx.Exec("UPDATE one SET id = ?", fmt.Sprintf("00000000-0000-7000-8000-%012x", i)); err != nil {
					return err
				}
				if err := tx.Exec("INSERT INTO subscriptions SELECT * FROM one"); err != nil {
					return err
				}
			}
			return tx.Exec("DROP TABLE one")
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	list := func(raw, want string) {
		t.Helper()
		_, _, err := s.Deliveries().PageAll(t.Context(), query(t, webhook.AllDeliveryList, raw))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(fmt.Sprint(err), want)) {
			t.Errorf("%s: got %v, want %q", raw, err, want)
		}
	}
	more(0, maxNamed-2)
	list("filter[subscription_url]=partner", "")
	more(maxNamed-2, maxNamed-1)
	list("filter[subscription_url]=partner", "more than 1000 subscriptions; give more of the URL")
	list("filter[subscription_url]=partner&filter[program_id]=q", "")
	list("filter[subscription_url]=partner&filter[subscription_id]="+first.ID, "")
	list("filter[subscription_url]=nowhere", "")
	more(maxNamed-1, namedAmong)
	list("filter[subscription_url]=nowhere", "among more than 10000 subscriptions; choose a program")
	list("filter[subscription_url]=nowhere&filter[program_id]=q", "")
}
