// Command clients uses the client that oapi-codegen generates from the OpenAPI
// document. It exits with the first error.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"

	"clients/client"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("all as it should be")
}

func run(ctx context.Context) error {
	c, err := client.NewClientWithResponses(os.Getenv("URL"), client.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
		r.Header.Set("Authorization", "Bearer "+os.Getenv("TOKEN"))
		return nil
	}))
	if err != nil {
		return err
	}

	key := "first-of-2026-03-14"
	create := client.NewSubscription{Url: os.Getenv("RECEIVER"), Events: []client.WantedEvent{{Name: "content_published"}}}
	created, err := c.CreateSubscriptionWithResponse(ctx, &client.CreateSubscriptionParams{IdempotencyKey: &key}, create)
	if err != nil || created.JSON201 == nil {
		return fmt.Errorf("create: %v %s", err, created.Body)
	}
	sub := created.JSON201.Data
	if sub.Url != create.Url || sub.SigningSecret == nil || time.Since(sub.CreatedAt) > time.Hour {
		return fmt.Errorf("created %+v", sub)
	}

	ping, err := c.PingSubscriptionWithResponse(ctx, sub.Id, client.PingSubscriptionJSONRequestBody{})
	if err != nil || ping.JSON200 == nil {
		return fmt.Errorf("ping: %v %s", err, ping.Body)
	}
	if ping.JSON200.Data.Delivery.Status != client.ResultSuccess || *ping.JSON200.Data.Delivery.ResponseStatus != 204 {
		return fmt.Errorf("the ping came to %+v", ping.JSON200.Data)
	}

	size := 1
	list, err := c.ListSubscriptionsWithResponse(ctx, &client.ListSubscriptionsParams{PageSize: &size,
		FilterEvent: &[]string{"content_published", "ping"}})
	if err != nil || list.JSON200 == nil || len(list.JSON200.Data) != 1 || list.JSON200.Data[0].Id != sub.Id ||
		list.JSON200.Meta.Pagination.TotalCount != 1 {
		return fmt.Errorf("list: %v %s", err, list.Body)
	}

	deliveries, err := c.ListDeliveriesWithResponse(ctx, sub.Id, &client.ListDeliveriesParams{
		FilterStatus: &client.FilterByStatus{"success"},
	})
	if err != nil || deliveries.JSON200 == nil || len(deliveries.JSON200.Data) == 0 {
		return fmt.Errorf("deliveries: %v %s", err, deliveries.Body)
	}
	old := deliveries.JSON200.Data[0]
	again, err := c.RedeliverWithResponse(ctx, sub.Id, old.Id, &client.RedeliverParams{}, client.RedeliverJSONRequestBody{})
	if err != nil || again.JSON201 == nil || again.JSON201.Data.RedeliveryOf == nil || *again.JSON201.Data.RedeliveryOf != old.Id {
		return fmt.Errorf("redeliver: %v %s", err, again.Body)
	}

	incidents, err := c.ListIncidentsWithResponse(ctx,
		&client.ListIncidentsParams{FilterStatus: &[]client.ListIncidentsParamsFilterStatus{"open"}})
	if err != nil || incidents.JSON200 == nil || len(incidents.JSON200.Data) != 0 {
		return fmt.Errorf("incidents: %v %s", err, incidents.Body)
	}

	missing, err := c.ReadSubscriptionWithResponse(ctx, "none", &client.ReadSubscriptionParams{})
	if err != nil || missing.JSON404 == nil || missing.JSON404.Error.Code != 404 || missing.JSON404.Error.Detail == "" {
		return fmt.Errorf("a subscription that is not there: %v %s", err, missing.Body)
	}

	if err := platform(ctx); err != nil {
		return err
	}

	// The client can also decode deliveries.
	var body client.DeliveryBody
	if err := json.Unmarshal([]byte(os.Getenv("DELIVERY")), &body); err != nil {
		return err
	}
	event, err := body.Events[0].ValueByDiscriminator()
	if published, ok := event.(client.EventContentPublished); err != nil || !ok || published.ContentId != 48211 {
		return fmt.Errorf("a delivery: %v %+v", err, event)
	}
	return details()
}

// details reads the details of a notification, which have the type of its category.
func details() error {
	var notification client.EventUserNotificationCreated
	if err := json.Unmarshal([]byte(`{"details":{"like_count":1,"content_id":48211,"acting_user_ids":[7]}}`), &notification); err != nil {
		return err
	}
	like, err := notification.Details.AsEventUserNotificationCreatedLike()
	if err != nil || like.LikeCount != 1 {
		return fmt.Errorf("details: %v %+v", err, like)
	}
	return nil
}

// platform creates a program with a token, and acts in the program, with a platform token.
func platform(ctx context.Context) error {
	c, err := client.NewClientWithResponses(os.Getenv("URL"), client.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
		r.Header.Set("Authorization", "Bearer "+os.Getenv("PLATFORM_TOKEN"))
		return nil
	}))
	if err != nil {
		return err
	}
	name := "Customer"
	program, err := c.PutProgramWithResponse(ctx, "customer", &client.PutProgramParams{}, client.ProgramFields{Name: &name})
	if err != nil || program.JSON201 == nil || program.JSON201.Data.Name != name || program.JSON201.Data.Limits.RateLimit != nil {
		return fmt.Errorf("program: %v %s", err, program.Body)
	}
	token, err := c.CreateTokenWithResponse(ctx, "customer", &client.CreateTokenParams{},
		client.NewToken{UserId: "backend", Scopes: []client.NewTokenScopes{"events.write"}})
	if err != nil || token.JSON201 == nil || token.JSON201.Data.Secret == nil {
		return fmt.Errorf("token: %v", err)
	}
	list, err := c.ListProgramsWithResponse(ctx, &client.ListProgramsParams{FilterId: &[]string{"customer"}})
	if err != nil || list.JSON200 == nil || len(list.JSON200.Data) != 1 || list.JSON200.Data[0].Statistics.Tokens != 1 {
		return fmt.Errorf("programs: %v %s", err, list.Body)
	}
	subs, err := c.ListSubscriptionsWithResponse(ctx, &client.ListSubscriptionsParams{}, func(_ context.Context, r *http.Request) error {
		r.Header.Set("X-Program-Id", "customer")
		return nil
	})
	if err != nil || subs.JSON200 == nil || len(subs.JSON200.Data) != 0 {
		return fmt.Errorf("subscriptions of the program: %v %s", err, subs.Body)
	}
	audit, err := c.ListAuditWithResponse(ctx, &client.ListAuditParams{FilterProgramId: &[]string{"customer"}})
	if err != nil || audit.JSON200 == nil || len(audit.JSON200.Data) == 0 || audit.JSON200.Data[0].PreviousHash == "" {
		return fmt.Errorf("audit log: %v %s", err, audit.Body)
	}
	return nil
}
