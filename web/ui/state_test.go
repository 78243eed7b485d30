package ui

import (
	"testing"
	"time"

	"service/webhook"
)

func TestSubscriptionState(t *testing.T) {
	failed := webhook.Stat{Success: 9, Failed: 1, Retryable: 2}
	active := webhook.Subscription{Active: true, Status: webhook.HealthHealthy}
	with := func(change func(*webhook.Subscription)) *webhook.Subscription {
		s := active
		change(&s)
		return &s
	}
	for _, c := range []struct {
		sub    *webhook.Subscription
		recent webhook.Stat
		want   string
	}{
		{&active, webhook.Stat{}, "success healthy"},
		{&active, webhook.Stat{Success: 12}, "success healthy"},
		{&active, failed, "retryable degraded"},
		{&active, webhook.Stat{Retryable: 1}, "retryable degraded"},
		{with(func(s *webhook.Subscription) { s.Active = false }), failed, "pending paused"},
		{with(func(s *webhook.Subscription) { s.Status = webhook.HealthFailing }), failed, "failed failing"},
		{with(func(s *webhook.Subscription) { s.Active, s.Status = false, webhook.HealthDisabled }), failed, "failed disabled"},
		{with(func(s *webhook.Subscription) { s.DeletedAt = time.Now() }), failed, "pending deleted"},
	} {
		s := NewSubscriptionState(c.sub, c.recent)
		if state, word := s.badge(); state+" "+word != c.want {
			t.Errorf("%+v with %d failed attempts: got %s %s, want %s", *c.sub, c.recent.FailedAttempts(), state, word, c.want)
		}
	}
	s := NewSubscriptionState(&active, failed)
	if got, want := s.Reason(), "3 of 12 attempts did not succeed in the last hour"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if s = NewSubscriptionState(&active, webhook.Stat{Failed: 1}); s.Reason() != "1 of 1 attempt did not succeed in the last hour" {
		t.Errorf("got %q", s.Reason())
	}
}
