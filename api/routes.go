package api

import (
	"net/http"
	"slices"
	"strings"

	"github.com/julienschmidt/httprouter"

	"service/webhook"
)

// What a route asks of the token, beside the scopes themselves.
const (
	scopeNone webhook.Scope = "none" // no token
	scopeAny  webhook.Scope = "any"  // a token, whatever its scopes
)

// route is one row of the table below.
type route struct {
	method  string
	pattern string
	scope   webhook.Scope
	find    func(*request) error // finds the record that the path names, or nil
	query   queryRules
	handle  func(*request) (answer, error)
	quiet   bool // its requests are logged at level debug

	deprecation *deprecation // nil: it is here to stay
}

// routes is every route of the API. HEAD works where GET does.
func (a *api) routes() []route {
	const (
		subscriptions = "/v2/webhooks/subscriptions"
		subscription  = subscriptions + "/:id"
		deliveries    = subscription + "/deliveries"
		delivery      = deliveries + "/:delivery_id"
		replays       = subscription + "/replays"
		replay        = replays + "/:replay_id"

		webhooksRead, webhooksWrite = webhook.ScopeWebhooksRead, webhook.ScopeWebhooksWrite
		eventsRead, eventsWrite     = webhook.ScopeEventsRead, webhook.ScopeEventsWrite
	)
	var (
		none  = queryRules{}
		free  = queryRules{ignored: true}
		bySub = a.findSubscription

		subscriptionList = queryRules{list: webhook.SubscriptionList}
		deliveryList     = queryRules{list: webhook.DeliveryList}
		eventList        = queryRules{list: webhook.EventList}
	)
	return []route{
		{"POST", subscriptions, webhooksWrite, nil, none, a.once(a.createSubscription), false, nil},
		{"GET", subscriptions, webhooksRead, nil, subscriptionList, a.listSubscriptions, false, nil},
		{"GET", subscription, webhooksRead, bySub, none, a.readSubscription, false, nil},
		{"PUT", subscription, webhooksWrite, bySub, none, a.updateSubscription, false, nil},
		{"DELETE", subscription, webhooksWrite, bySub, none, a.deleteSubscription, false, nil},
		{"POST", subscription + "/ping", webhooksWrite, bySub, none, a.pingSubscription, false, nil},
		{"POST", subscription + "/rotate_secret", webhooksWrite, bySub, none, a.once(a.rotateSecret), false, nil},
		{"GET", deliveries, webhooksRead, bySub, deliveryList, a.listDeliveries, false, nil},
		{"GET", delivery, webhooksRead, a.findDelivery, none, a.readDelivery, false, nil},
		{"POST", delivery + "/redeliver", webhooksWrite, a.findDelivery, none, a.once(a.redeliver), false, nil},
		{"POST", delivery + "/cancel", webhooksWrite, a.findDelivery, none, a.cancelDelivery, false, nil},
		{"POST", replays, webhooksWrite, bySub, none, a.once(a.createReplay), false, nil},
		{"GET", replay, webhooksRead, a.findReplay, none, a.readReplay, false, nil},
		{"DELETE", replay, webhooksWrite, a.findReplay, none, a.cancelReplay, false, nil},
		{"POST", "/v2/events", eventsWrite, nil, none, a.once(a.publish), false, nil},
		{"GET", "/v2/events", eventsRead, nil, eventList, a.listEvents, false, nil},
		{"GET", "/v2/events/:id", eventsRead, a.findEvent, none, a.readEvent, false, nil},
		{"GET", "/v2/event_types", scopeAny, nil, none, a.listEventTypes, false, nil},
		{"GET", "/v2/event_types/:name", scopeAny, a.findEventType, none, a.readEventType, false, nil},
		{"GET", "/v2/openapi.json", scopeNone, nil, free, a.readDocument, true, nil},
		{"GET", referencePath, scopeNone, nil, free, a.readReference, true, nil},
		{"GET", referenceStylePath, scopeNone, nil, free, a.readReferenceStyle, true, nil},
		{"GET", "/healthz", scopeNone, nil, free, a.healthz, true, nil},
		{"GET", "/readyz", scopeNone, nil, free, a.readyz, true, nil},
		{"GET", metricsPath, webhook.ScopeMetricsRead, nil, free, a.readMetrics, true, nil}, // see request.free
	}
}

// handle makes a serve the routes.
func (a *api) handle(routes []route) {
	a.router = httprouter.New()
	add := func(method string, rt *route) {
		a.router.Handle(method, rt.pattern, func(w http.ResponseWriter, r *http.Request, params httprouter.Params) {
			a.serve(rt, w, r, params)
		})
		if !slices.Contains(a.methods, method) {
			a.methods = append(a.methods, method)
		}
	}
	for i := range routes {
		rt := &routes[i]
		a.metrics.add(routeKey{rt.method, rt.pattern})
		add(rt.method, rt)
		if rt.method == http.MethodGet {
			add(http.MethodHead, rt)
		}
	}
	slices.Sort(a.methods)
}

// unrouted is the route of a request that the table has none for: the path is
// unknown, or known with other methods. Neither asks for a token, since the
// table is no secret; one that is given and valid is named in the answer, as
// under /v2 in every other (spec, section 5).
func (a *api) unrouted(path string) *route {
	var allowed []string
	for _, method := range a.methods {
		if serve, _, _ := a.router.Lookup(method, path); serve != nil {
			allowed = append(allowed, method)
		}
	}
	rt := &route{pattern: "-", scope: scopeNone, query: queryRules{ignored: true}}
	if strings.HasPrefix(path, "/v2/") {
		rt.find = func(req *request) error {
			req.token, _ = a.authenticate(req) // it does not matter when there is none
			return nil
		}
	}
	if allowed == nil {
		rt.handle = func(*request) (answer, error) {
			return answer{}, webhook.NewError(webhook.CodeNotFound, "There is nothing at this path.")
		}
		return rt
	}
	list := strings.Join(allowed, ", ")
	rt.handle = func(req *request) (answer, error) {
		req.allow = list
		return answer{}, webhook.NewError(webhook.CodeMethodNotAllowed, "This path takes the methods "+list+".")
	}
	return rt
}
