package api

import (
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/julienschmidt/httprouter"

	"service/webhook"
)

// What a route needs instead of a certain scope.
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
	quiet   bool // logged at level debug
}

const (
	subscriptionsPath = "/v2/webhooks/subscriptions"
	subscriptionPath  = subscriptionsPath + "/:id"
	deliveriesPath    = subscriptionPath + "/deliveries"
	deliveryPath      = deliveriesPath + "/:delivery_id"
	replaysPath       = subscriptionPath + "/replays"
	replayPath        = replaysPath + "/:replay_id"
	eventsPath        = "/v2/events"
	bulkRunsPath      = "/v2/bulk_runs"
	bulkRunPath       = bulkRunsPath + "/:id"
	programPath       = "/v2/programs/:id"
	programTokensPath = programPath + "/tokens"
	portalLinksPath   = programPath + "/portal_links"
	programMovePath   = programPath + "/move"
	moveIDPath        = programMovePath + "/:move_id"
)

func listed(l *webhook.List) queryRules { return queryRules{list: l} }

// routes returns every route of the API. HEAD works wherever GET does.
func (a *API) routes() []route {
	const (
		webhooksRead, webhooksWrite = webhook.ScopeWebhooksRead, webhook.ScopeWebhooksWrite
		eventsRead, eventsWrite     = webhook.ScopeEventsRead, webhook.ScopeEventsWrite
	)
	var (
		subscriptions = subscriptionHandlers{a}
		deliveries    = deliveryHandlers{a}
		replays       = replayHandlers{a}
		incidents     = incidentHandlers{a}
		bulkRuns      = bulkRunHandlers{a}
		events        = eventHandlers{a}
		eventTypes    = eventTypeHandlers{a}
		tokens        = tokenHandlers{a}
		documents     = documentHandlers{a}
		status        = statusHandlers{a}

		none  = queryRules{}
		free  = queryRules{ignored: true}
		bySub = subscriptions.find
	)
	all := []route{
		{"POST", subscriptionsPath, webhooksWrite, nil, none, a.idempotent(subscriptions.create), false},
		{"GET", subscriptionsPath, webhooksRead, nil, listed(webhook.SubscriptionList), subscriptions.list, false},
		{"GET", subscriptionPath, webhooksRead, bySub, none, subscriptions.read, false},
		{"PUT", subscriptionPath, webhooksWrite, bySub, none, subscriptions.update, false},
		{"DELETE", subscriptionPath, webhooksWrite, bySub, none, subscriptions.delete, false},
		{"GET", deliveriesPath, webhooksRead, bySub, listed(webhook.DeliveryList), deliveries.list, false},
		{"GET", deliveryPath, webhooksRead, deliveries.find, none, deliveries.read, false},
		{"DELETE", deliveryPath + "/share", webhooksWrite, deliveries.find, none, deliveries.revokeShares, false},
		{"POST", replaysPath, webhooksWrite, bySub, none, a.idempotent(replays.create), false},
		{"GET", replaysPath, webhooksRead, bySub, listed(webhook.ReplayList), replays.list, false},
		{"GET", replayPath, webhooksRead, replays.find, none, replays.read, false},
		{"GET", "/v2/incidents", webhooksRead, nil, listed(webhook.IncidentList), incidents.list, false},
		{"GET", "/v2/incidents/:id", webhooksRead, incidents.find, none, incidents.read, false},
		{"POST", bulkRunsPath, webhooksWrite, nil, none, a.idempotent(bulkRuns.create), false},
		{"GET", bulkRunsPath, webhooksWrite, nil, listed(webhook.BulkRunList), bulkRuns.list, false},
		{"GET", bulkRunPath, webhooksWrite, bulkRuns.find, none, bulkRuns.read, false},
		{"POST", eventsPath, eventsWrite, nil, none, a.idempotent(events.publish), false},
		{"GET", eventsPath, eventsRead, nil, listed(webhook.EventList), events.list, false},
		{"GET", "/v2/events/:id", eventsRead, events.find, none, events.read, false},
		{"GET", "/v2/events/:id/deliveries", webhooksRead, events.find, listed(webhook.EventDeliveryList), deliveries.listOfEvent, false},
		{"GET", "/v2/deliveries", webhooksRead, nil, listed(webhook.ProgramDeliveryList), deliveries.listOfProgram, false},
		{"GET", "/v2/token", scopeAny, nil, none, tokens.read, false},
		{"GET", "/v2/event_types", scopeAny, nil, none, eventTypes.list, false},
		{"GET", "/v2/event_types/:name", scopeAny, eventTypes.find, none, eventTypes.read, false},
		{"PUT", "/v2/event_types/:name", webhook.ScopePlatform, nil, none, eventTypes.put, false},
		{"DELETE", "/v2/event_types/:name", webhook.ScopePlatform, eventTypes.find, none, eventTypes.delete, false},
		{"GET", "/v2/openapi.json", scopeNone, nil, free, documents.contract, true},
		{"GET", referencePath, scopeNone, nil, free, documents.page, true},
		{"GET", referenceStylePath, scopeNone, nil, free, documents.style, true},
		{"GET", "/healthz", scopeNone, nil, free, status.healthz, true},
		{"GET", "/readyz", scopeNone, nil, free, status.readyz, true},
		{"GET", metricsPath, webhook.ScopeMetricsRead, nil, free, status.metrics, true}, // see request.needsNoToken
	}
	return slices.Concat(all, a.platformRoutes(), a.actionRoutes())
}

// platformRoutes are the routes of platform tokens.
func (a *API) platformRoutes() []route {
	const platform = webhook.ScopePlatform
	var (
		programs = programHandlers{a}
		tokens   = tokenHandlers{a}
		audit    = auditHandlers{a}
		moves    = moveHandlers{a}

		none = queryRules{}
	)
	return []route{
		{"GET", "/v2/audit", platform, nil, listed(webhook.AuditList), audit.list, false},
		{"GET", programMovePath, platform, nil, none, moves.read, false},
		{"PUT", moveIDPath, platform, nil, none, moves.first, false},
		{"PUT", moveIDPath + "/changes", platform, nil, none, moves.changes, false},
		{"PUT", moveIDPath + "/rest", platform, nil, none, moves.rest, false},
		{"POST", moveIDPath + "/activate", platform, nil, none, moves.activate, false},
		{"DELETE", moveIDPath, platform, nil, none, moves.abort, false},
		{"GET", "/v2/programs", platform, nil, listed(webhook.ProgramList), programs.list, false},
		{"GET", programPath, platform, programs.find, none, programs.read, false},
		{"PUT", programPath, platform, nil, none, programs.put, false},
		{"DELETE", programPath, platform, programs.find, none, programs.delete, false},
		{"GET", programTokensPath, platform, programs.find, listed(webhook.TokenList), tokens.list, false},
		{"POST", programTokensPath, platform, programs.find, none, a.idempotent(tokens.create), false},
		{"POST", portalLinksPath, platform, programs.find, none, a.idempotent(portalHandlers{a}.createLink), false},
		{"DELETE", programTokensPath + "/:token_id", platform, tokens.find, none, tokens.revoke, false},
	}
}

// actionRoutes are the actions on a record, which accept POST and PUT (spec, section 4.4).
func (a *API) actionRoutes() (all []route) {
	const write = webhook.ScopeWebhooksWrite
	var (
		subscriptions = subscriptionHandlers{a}
		deliveries    = deliveryHandlers{a}
		replays       = replayHandlers{a}
		bulkRuns      = bulkRunHandlers{a}

		none  = queryRules{}
		bySub = subscriptions.find
	)
	for _, action := range []route{
		{"POST", subscriptionPath + "/ping", write, bySub, none, subscriptions.ping, false},
		{"POST", subscriptionPath + "/test", write, bySub, none, subscriptions.test, false},
		{"POST", subscriptionPath + "/probe", write, bySub, none, subscriptions.probe, false},
		{"POST", subscriptionPath + "/rotate_secret", write, bySub, none, a.idempotent(subscriptions.rotateSecret), false},
		{"POST", deliveryPath + "/redeliver", write, deliveries.find, none, a.idempotent(deliveries.redeliver), false},
		{"POST", deliveryPath + "/share", write, deliveries.find, none, a.idempotent(deliveries.share), false},
		{"POST", deliveryPath + "/cancel", write, deliveries.find, none, deliveries.cancel, false},
		{"POST", replayPath + "/cancel", write, replays.find, none, replays.cancel, false},
		{"POST", bulkRunPath + "/cancel", write, bulkRuns.find, none, bulkRuns.cancel, false},
	} {
		all = append(all, action)
		action.method = "PUT"
		all = append(all, action)
	}
	return all
}

// handle registers the routes.
func (a *API) handle(routes []route) {
	a.router, a.putPatterns = httprouter.New(), make(map[string]string)
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
		if list, name := path.Split(rt.pattern); rt.method == http.MethodPut && strings.HasPrefix(name, ":") && !strings.Contains(list, ":") {
			a.putPatterns[strings.TrimSuffix(list, "/")] = rt.pattern
		}
		if rt.method == http.MethodGet {
			add(http.MethodHead, rt)
		}
	}
	slices.Sort(a.methods)
}

// pathAdvice returns a sentence about the commonest mistakes in a path, with a space before it.
func pathAdvice(path string) string {
	switch {
	case strings.HasPrefix(path, "//"):
		return " It begins with two slashes: remove the slash at the end of the base URL."
	case !strings.HasPrefix(path, "/v2/"):
		return " Paths of the API begin with /v2/."
	}
	return ""
}

// unrouted returns the route of a request that matches none: its path is unknown, or
// supports other methods. It needs no token. Under /v2 the response names the program
// and user of a valid token, as every other does (spec, section 5).
func (a *API) unrouted(path string) *route {
	var allowed []string
	for _, method := range a.methods {
		if serve, _, _ := a.router.Lookup(method, path); serve != nil {
			allowed = append(allowed, method)
		}
	}
	rt := &route{pattern: "-", scope: scopeNone, query: queryRules{ignored: true}}
	if strings.HasPrefix(path, "/v2/") {
		rt.find = func(req *request) error {
			// Requests with a token count, but none is required.
			if err := a.authenticate(req); err != nil && !isUnauthenticated(err) {
				return err
			}
			return nil
		}
	}
	if allowed == nil {
		rt.handle = func(*request) (answer, error) {
			return answer{}, webhook.NewError(webhook.CodeNotFound, "No route matches this path."+pathAdvice(path))
		}
		return rt
	}
	list := strings.Join(allowed, ", ")
	rt.handle = func(req *request) (answer, error) {
		req.allow = list
		text := "This path supports the methods " + list + "."
		if pattern := a.putPatterns[path]; pattern != "" && req.http.Method == http.MethodPost {
			text += " To create a record, send PUT " + pattern + "."
		}
		return answer{}, webhook.NewError(webhook.CodeMethodNotAllowed, text)
	}
	return rt
}
