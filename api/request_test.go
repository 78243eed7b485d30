package api

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

type boundedKey struct{}

// A bounded context behaves like that of context.WithDeadline, with and without a
// goroutine that waits for it.
func TestBounded(t *testing.T) {
	for name, wait := range map[string]func(*bounded){
		"no waiter": func(*bounded) {},
		"a waiter":  func(b *bounded) { b.Done() },
	} {
		t.Run(name+", cancelled", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				parent, cancel := context.WithCancel(context.WithValue(t.Context(), boundedKey{}, "v"))
				b := &bounded{Context: parent, deadline: time.Now().Add(time.Second)}
				defer b.end()
				wait(b)
				if at, ok := b.Deadline(); !ok || time.Until(at) != time.Second || b.Err() != nil || b.Value(boundedKey{}) != "v" {
					t.Errorf("at first: deadline %v, error %v, value %v", at, b.Err(), b.Value(boundedKey{}))
				}
				cancel()
				synctest.Wait()
				if err := b.Err(); !errors.Is(err, context.Canceled) {
					t.Errorf("after the client disconnected: %v", err)
				}
			})
		})
		t.Run(name+", deadline", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &bounded{Context: t.Context(), deadline: time.Now().Add(time.Second)}
				defer b.end()
				wait(b)
				child, endChild := context.WithCancel(b)
				defer endChild()
				time.Sleep(time.Second - 1)
				if err := b.Err(); err != nil {
					t.Errorf("before the deadline: %v", err)
				}
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				wantExceeded(t, "the context", b)
				wantExceeded(t, "its child", child)
			})
		})
	}
}

func wantExceeded(t *testing.T, name string, ctx context.Context) {
	t.Helper()
	select {
	case <-ctx.Done():
	default:
		t.Errorf("%s is not done at the deadline", name)
	}
	if err := ctx.Err(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s at the deadline: %v", name, err)
	}
}

// Err starts no timer, and end stops the timer.
func TestBoundedTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bounded{Context: context.Background(), deadline: time.Now().Add(time.Hour)}
		if b.timed.Load() != nil || b.Err() != nil {
			t.Error("got a timer")
		}
		done := b.Done()
		b.end()
		<-done
		if err := b.Err(); !errors.Is(err, context.Canceled) {
			t.Errorf("after its end: %v", err)
		}
	})
}
