package webhook_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"service/webhook"
)

// A published event becomes the body of a delivery, which is signed and then
// verified by its receiver with the Standard Webhooks library.
func Example() {
	catalog, err := webhook.LoadCatalog()
	if err != nil {
		log.Fatal(err)
	}
	event, invalid := catalog.NewEvent([]byte(`{
		"id": "0198f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5", "timestamp": "2026-03-14T08:24:48.644Z",
		"name": "content_deleted", "version": "1", "content_id": 7
	}`), "", time.Now())
	if invalid != nil {
		log.Fatal(invalid)
	}

	// The service signs the body with the subscription's secret.
	secret := webhook.NewSigningSecret()
	at := time.Now()
	body := webhook.AppendBody(nil, "delivery-1", "subscription-1", "acme", [][]byte{event.JSON})
	head := webhook.RequestHead{
		DeliveryID: "delivery-1", SubscriptionID: "subscription-1", ProgramID: "acme", At: at,
		Signature: secret.Sign("delivery-1", at, body),
	}
	header := make(http.Header)
	for _, line := range head.AppendHeader(nil) {
		header.Set(line[0], line[1])
	}

	// The receiver has the secret shown when the subscription was created.
	verifier, err := standardwebhooks.NewWebhook(secret.Reveal())
	if err != nil {
		log.Fatal(err)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, body, "", "  "); err != nil {
		log.Fatal(err)
	}
	fmt.Println(indented.String())
	fmt.Println("error:", verifier.Verify(body, header))
	fmt.Println("error, changed:", verifier.Verify(body[1:], header))
	// Output:
	// {
	//   "delivery_id": "delivery-1",
	//   "subscription_id": "subscription-1",
	//   "program_id": "acme",
	//   "events": [
	//     {
	//       "id": "0198f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5",
	//       "timestamp": "2026-03-14T08:24:48.644Z",
	//       "name": "content_deleted",
	//       "version": "1",
	//       "content_id": 7
	//     }
	//   ]
	// }
	// error: <nil>
	// error, changed: unable to verify payload, err: no matching signature found
}
