package record_test

import (
	"context"
	"testing"

	"service/store/record"
	"service/store/storetest"
	"service/webhook"
)

func TestFind(t *testing.T) {
	s, ctx := storetest.Open(t), context.Background()
	url, active, names := "https://example.com/", true, []string{"user_created"}
	var tokens []webhook.Token
	for _, program := range []string{"a", "b"} {
		token, _, err := storetest.CreateToken(ctx, s, webhook.NewToken{ProgramID: program, UserID: "1", Scopes: webhook.Scopes()})
		must(t, err)
		tokens = append(tokens, token)
	}
	sub, _, err := storetest.CreateSubscription(ctx, s, "a", "1", &webhook.SubscriptionFields{URL: &url, Active: &active, Events: &names})
	must(t, err)
	const eventID = "ffffffff-0000-7000-8000-000000000001"
	e := webhook.Event{ID: eventID, Name: "user_created", JSON: []byte(`{"id":"` + eventID + `","name":"user_created"}`)}
	for _, program := range []string{"a", "b"} {
		_, err = s.Events().Publish(ctx, program, []webhook.Event{e})
		must(t, err)
	}
	for _, tt := range []struct {
		prefix string
		limit  int
		want   []record.Found
	}{
		{"", 5, nil},
		{"%", 5, nil},
		{"_", 5, nil},
		{"e", 5, nil},
		{tokens[0].ID, 5, []record.Found{{record.FoundToken, tokens[0].ID, "a"}}},
		{sub.ID, 5, []record.Found{{record.FoundSubscription, sub.ID, "a"}}},
		{"FFFFFFFF", 5, []record.Found{{record.FoundEvent, eventID, "a"}, {record.FoundEvent, eventID, "b"}}},
		{"ff", 1, []record.Found{{record.FoundEvent, eventID, "a"}}},
		{eventID + "0", 5, nil},
	} {
		got, err := s.Search().Prefix(ctx, tt.prefix, tt.limit)
		must(t, err)
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
	// Creating a subscription creates a ping. All IDs have the same time prefix.
	kinds := make(map[record.FoundKind]int)
	all, err := s.Search().Prefix(ctx, sub.ID[:4], 10)
	must(t, err)
	for _, f := range all {
		kinds[f.Kind]++
	}
	if kinds[record.FoundDelivery] != 1 || kinds[record.FoundSubscription] != 1 || kinds[record.FoundToken] != 2 {
		t.Errorf("got %v", kinds)
	}
	ids, err := s.Programs().IDs(ctx, 1)
	if err != nil || len(ids) != 1 || ids[0] != "a" {
		t.Errorf("programs: got %v (%v), want the first", ids, err)
	}
}
