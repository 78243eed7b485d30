package api_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"service/api"
	"service/store"
	"service/webhook"
)

// Publishes an event with an access token. A 201 means that it is on disk.
func ExampleNew() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	s, err := store.Open(ctx, store.Config{Dir: dir})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	var token string
	err = s.Write(ctx, func(w store.Write) (err error) {
		_, token, err = w.Tokens().Create(webhook.NewToken{ProgramID: "acme", UserID: "ada", Scopes: webhook.Scopes()}, webhook.AuditEntry{})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	catalog, err := webhook.LoadCatalog()
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(api.New(api.Config{Store: s, Catalog: catalog}))
	defer server.Close()

	publish := func(body string) {
		r, err := http.NewRequest("POST", server.URL+"/v2/events", strings.NewReader(body))
		if err != nil {
			log.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", "application/json")
		resp, err := server.Client().Do(r)
		if err != nil {
			log.Fatal(err)
		}
		resp.Body.Close()
		fmt.Println(resp.Status, "for program", resp.Header.Get("X-Program-Id"))
	}
	publish(`{"name": "content_deleted", "version": "1", "content_id": 7}`)
	publish(`{"name": "content_deleted", "version": "1"}`)
	// Output:
	// 201 Created for program acme
	// 400 Bad Request for program acme
}
