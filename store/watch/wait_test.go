package watch

import (
	"testing"

	"service/webhook"
)

func awake(w *Waiter) bool {
	select {
	case <-w.C:
		return true
	default:
		return false
	}
}

// A commit wakes the waiters for its events, for any event of their programs, and no others. A closed
// waiter leaves nothing.
func TestAwait(t *testing.T) {
	var ws Watchers
	named := ws.Await(ProgramKey("p"), EventKey{"p", "a"}, EventKey{"p", "b"})
	all := ws.Await(ProgramKey("p"), EventKey{"p", AnyName})
	other := ws.Await(ProgramKey("q"), EventKey{"q", "a"}, RecordKey("id"))
	for _, step := range []struct {
		what              string
		do                func()
		named, all, other bool
	}{
		{"its events", func() {
			ws.Published([]webhook.Event{{ProgramID: "p", Name: "c"}, {ProgramID: "p", Name: "b"}, {ProgramID: "p", Name: "b"}})
		}, true, true, false},
		{"other events", func() { ws.Published([]webhook.Event{{ProgramID: "p", Name: "c"}}) }, false, true, false},
		{"events of two programs", func() {
			ws.Published([]webhook.Event{{ProgramID: "q", Name: "a"}, {ProgramID: "p", Name: "a"}})
		}, true, true, true},
		{"the program", func() { ws.ProgramChanged("p") }, true, true, false},
		{"a subscription", func() { ws.SubscriptionChanged("id") }, false, false, true},
		{"nothing", func() {}, false, false, false},
	} {
		step.do()
		if got, want := all.Changed(), step.what == "the program"; got != want {
			t.Errorf("%s: changed is %t, want %t", step.what, got, want)
		}
		if n, a, o := awake(named), awake(all), awake(other); n != step.named || a != step.all || o != step.other {
			t.Errorf("%s: woke %t %t %t, want %t %t %t", step.what, n, a, o, step.named, step.all, step.other)
		}
	}
	named.Close()
	ws.ProgramChanged("p")
	if awake(named) || !awake(all) {
		t.Error("a closed waiter is woken, or another one is not")
	}
	all.Close()
	other.Close()
	if len(ws.waiters) != 0 || ws.waiting.Load() != 0 {
		t.Errorf("%d keys and %d waiters are left", len(ws.waiters), ws.waiting.Load())
	}
}

// BenchmarkPublishedIdle measures the cost of a commit with 10,000 idle waiters of other programs
// and names.
func BenchmarkPublishedIdle(b *testing.B) {
	for _, waiters := range []int{0, 10_000} {
		b.Run(map[bool]string{true: "none", false: "10000"}[waiters == 0], func(b *testing.B) {
			var ws Watchers
			for i := range waiters {
				id := string(rune('a'+i%160)) + "-program"
				ws.Await(ProgramKey(id), EventKey{id, "idle"}, RecordKey(webhook.NewID()))
			}
			one := []webhook.Event{{ProgramID: "busy", Name: "a"}}
			for b.Loop() {
				ws.Published(one)
			}
		})
	}
}
