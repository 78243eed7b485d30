package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"service/webhook"
)

// NDJSON is a request body of lines, one JSON value each.
type NDJSON []byte

// Call calls the API. The body is sent as JSON, or unchanged if it is []byte or [NDJSON]. A
// successful response is decoded into into, unless that is nil. An error means that there was no
// complete response; the status may still be set.
func (in *Instance) Call(ctx context.Context, token, method, url string, body, into any) (status int, err error) {
	var b []byte
	media := "application/json"
	switch body := body.(type) {
	case nil:
	case []byte:
		b = body
	case NDJSON:
		b, media = body, "application/x-ndjson"
	default:
		if b, err = json.Marshal(body); err != nil {
			return 0, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(b))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", media)
	resp, err := in.Client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if b, err = io.ReadAll(resp.Body); err != nil {
		return resp.StatusCode, err
	}
	if into == nil || resp.StatusCode > 299 {
		return resp.StatusCode, nil
	}
	return resp.StatusCode, json.Unmarshal(b, into)
}

// Get reads one record, or one page of records, from the ready process. It also returns the
// cursor of the next page, "" if there is none.
func Get[T any](in *Instance, token, path string) (T, string, error) {
	var answer struct {
		Data T
		Meta struct{ Pagination struct{ Next string } }
	}
	base, _ := in.AwaitURL(in.TB.Context())
	status, err := in.Call(context.Background(), token, "GET", base+path, nil, &answer)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("GET %s: status %d", path, status)
	}
	return answer.Data, answer.Meta.Pagination.Next, err
}

// Feed reads all pages of a list, newest first.
func Feed[T any](in *Instance, token, path string) ([]T, error) {
	var all []T
	for query := "?page[size]=100"; ; {
		page, next, err := Get[[]T](in, token, path+query)
		all = append(all, page...)
		if err != nil || next == "" {
			return all, err
		}
		query = "?page[size]=100&page[cursor]=" + next
	}
}

// Delivery is a delivery as the API returns it.
type Delivery struct {
	ID             string
	SubscriptionID string `json:"subscription_id"`
	Status         webhook.Status
	FailureReason  webhook.FailureReason `json:"failure_reason"`
	AttemptsMade   int                   `json:"attempts_made"`
	RecoveredAt    *time.Time            `json:"recovered_at"`
	Events         []webhook.EventRef
	Attempts       []Attempt // only in responses with a single delivery
}

// Attempt is an attempt as the API returns it.
type Attempt struct {
	Number         int
	StartedAt      time.Time `json:"started_at"`
	Result         webhook.Result
	DurationMS     int64 `json:"duration_ms"`
	ResponseStatus int   `json:"response_status"`
	Error          struct{ Code webhook.ErrorCode }
}

// Subscription is the request that creates a subscription.
type Subscription struct {
	URL         string              `json:"url"`
	Events      []map[string]string `json:"events"`
	Ordered     bool                `json:"ordered,omitempty"`
	MaxInFlight int                 `json:"max_in_flight,omitempty"`
}

// Events returns the events of a [Subscription].
func Events(names ...string) []map[string]string {
	var list []map[string]string
	for _, n := range names {
		list = append(list, map[string]string{"name": n})
	}
	return list
}

// Subscribe creates a subscription and returns its ID.
func (in *Instance) Subscribe(token string, s Subscription) string {
	in.TB.Helper()
	var answer struct{ Data struct{ ID string } }
	status, err := in.Call(in.TB.Context(), token, "POST", in.URL()+"/v2/webhooks/subscriptions", s, &answer)
	if err != nil || status != http.StatusCreated {
		in.TB.Fatalf("create a subscription: status %d, %v", status, err)
	}
	return answer.Data.ID
}

// CreateEventType creates an event type of the operator, with the optional property content_id,
// using a platform token.
func (in *Instance) CreateEventType(platformToken, name string) {
	in.TB.Helper()
	body := map[string]any{"schema": map[string]any{
		"title": name, "description": "An event type of the operator's own.", "type": "object", "additionalProperties": false,
		"properties": map[string]any{
			"id": map[string]any{"type": "string", "format": "uuid"}, "timestamp": map[string]any{"type": "string", "format": "date-time"},
			"name": map[string]any{"const": name}, "version": map[string]any{"const": "1"}, "content_id": map[string]any{"type": "integer"},
		},
		"required": []string{"id", "timestamp", "name", "version"},
		"examples": []any{map[string]any{"id": "019ddcfe-0f37-7cf8-8f53-1f6be7c2d3c7", "timestamp": "2026-03-14T08:24:48.644Z", "name": name,
			"version": "1"}},
	}}
	status, err := in.Call(in.TB.Context(), platformToken, "PUT", in.URL()+"/v2/event_types/"+name, body, nil)
	if err != nil || status != http.StatusCreated {
		in.TB.Fatalf("create the event type %s: status %d, %v", name, status, err)
	}
}

// Publish publishes the body of a POST /v2/events, and fails the test unless it is accepted.
func (in *Instance) Publish(token string, body any) {
	in.TB.Helper()
	if status, err := in.Call(in.TB.Context(), token, "POST", in.URL()+"/v2/events", body, nil); err != nil || status != http.StatusCreated {
		in.TB.Fatalf("publish: status %d, %v", status, err)
	}
}

// Scrape reads /metrics from loopback, like a Prometheus on the same machine. Headers are pairs
// of a name and a value.
func (in *Instance) Scrape(headers ...string) (status int, text []byte) {
	in.TB.Helper()
	req, err := http.NewRequest("GET", in.URL()+"/metrics", nil)
	if err != nil {
		in.TB.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := in.Client.Do(req)
	if err != nil {
		in.TB.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err = io.ReadAll(resp.Body); err != nil {
		in.TB.Fatal(err)
	}
	return resp.StatusCode, text
}

// AwaitFinal waits until all deliveries of a list have ended and returns them.
func (in *Instance) AwaitFinal(token, path string) []Delivery {
	in.TB.Helper()
	var all []Delivery
	WaitFor(in.TB, "the end of all deliveries of "+path, func() bool {
		var err error
		all, err = Feed[Delivery](in, token, path)
		if err != nil {
			in.TB.Fatal(err)
		}
		for _, d := range all {
			if !d.Status.Final() {
				return false
			}
		}
		return true
	})
	return all
}
