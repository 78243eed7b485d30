package dispatcher_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"service/dispatcher"
	"service/store"
	"service/webhook"
)

// The dispatcher sends published events to the subscriptions in a store.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := store.Open(ctx, store.Config{Dir: dir})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	// The operator must permit the receiver, since it is on this machine.
	names := make(chan string, 2)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var delivery struct{ Events []struct{ Name string } }
		if err := json.NewDecoder(r.Body).Decode(&delivery); err != nil {
			log.Print(err)
		}
		for _, event := range delivery.Events {
			names <- event.Name
		}
	}))
	defer receiver.Close()
	destinations, err := webhook.ParseDestinations([]string{"127.0.0.0/8", "::1"})
	if err != nil {
		log.Fatal(err)
	}
	d := dispatcher.New(dispatcher.Config{Store: s, Destinations: destinations, AllowHTTP: true})
	done := make(chan error)
	go func() { done <- d.Run(ctx) }()

	// Creating the first token creates the program. A new subscription gets a ping
	// first.
	err = s.Write(ctx, func(w store.Write) error {
		n := webhook.NewToken{ProgramID: "acme", UserID: "ada", Scopes: webhook.Scopes()}
		if _, _, err := w.Tokens().Create(n, webhook.AuditEntry{}); err != nil {
			return err
		}
		fields := webhook.SubscriptionFields{URL: &receiver.URL, Events: &[]string{"content_deleted"}}
		_, _, err := w.Subscriptions().Create("acme", "ada", &fields, 0, webhook.AuditEntry{})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-names)

	catalog, err := webhook.LoadCatalog()
	if err != nil {
		log.Fatal(err)
	}
	event, invalid := catalog.NewEvent([]byte(`{"name": "content_deleted", "version": "1", "content_id": 7}`), "", time.Now())
	if invalid != nil {
		log.Fatal(invalid)
	}
	if _, err := s.Events().Publish(ctx, "acme", []webhook.Event{event}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-names)

	cancel() // the attempt in flight ends and is recorded
	fmt.Println("error:", <-done)
	// Output:
	// ping
	// content_deleted
	// error: <nil>
}
