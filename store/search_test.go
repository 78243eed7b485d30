package store

import (
	"context"
	"testing"

	"service/webhook"
)

func TestFind(t *testing.T) {
	s, ctx := open(t), context.Background()
	url, active, names := "https://example.com/", true, []string{"user_created"}
	var tokens []webhook.Token
	for _, program := range []string{"a", "b"} {
		token, _, err := s.Tokens().Create(ctx, webhook.NewToken{ProgramID: program, UserID: "1", Scopes: webhook.Scopes()})
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, token)
	}
	sub, _, err := s.Subscriptions().Create(ctx, "a", "1", &webhook.SubscriptionFields{URL: &url, Active: &active, Events: &names}, 0)
	if err != nil {
		t.Fatal(err)
	}
	const eventID = "ffffffff-0000-7000-8000-000000000001"
	e := webhook.Event{ID: eventID, Name: "user_created", JSON: []byte(`{"id":"` + eventID + `","name":"user_created"}`)}
	for _, program := range []string{"a", "b"} {
		if _, err := s.Events().Publish(ctx, program, []webhook.Event{e}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		prefix string
		limit  int
		want   []Found
	}{
		{"", 5, nil},
		{"%", 5, nil},
		{"_", 5, nil},
		{"e", 5, nil},
		{tokens[0].ID, 5, []Found{{FoundToken, tokens[0].ID, "a"}}},
		{sub.ID, 5, []Found{{FoundSubscription, sub.ID, "a"}}},
		{"FFFFFFFF", 5, []Found{{FoundEvent, eventID, "a"}, {FoundEvent, eventID, "b"}}},
		{"ff", 1, []Found{{FoundEvent, eventID, "a"}}},
		{eventID + "0", 5, nil},
	} {
		got, err := s.Search().Prefix(ctx, tt.prefix, tt.limit)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(tt.want) {
			t.Errorf("%q: got %v, want %v", tt.prefix, got, tt.want)
			continue
		}
		for i := range got {
			if got[i] != tt.want[i] {
				t.Errorf("%q: got %v, want %v", tt.prefix, got, tt.want)
			}
		}
	}
	// Creating a subscription creates a ping. All ids have the same time prefix.
	kinds := make(map[FoundKind]int)
	all, err := s.Search().Prefix(ctx, sub.ID[:4], 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		kinds[f.Kind]++
	}
	if kinds[FoundDelivery] != 1 || kinds[FoundSubscription] != 1 || kinds[FoundToken] != 2 {
		t.Errorf("got %v", kinds)
	}
	ids, err := s.Programs().IDs(ctx, 1)
	if err != nil || len(ids) != 1 || ids[0] != "a" {
		t.Errorf("programs: got %v (%v), want the first", ids, err)
	}
}
