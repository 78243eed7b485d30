package api

import (
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/julienschmidt/httprouter"

	"service/webhook"
)

// Requirements of a route other than a particular scope.
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

		free  = queryRules{ignored: true}
		bySub = subscriptions.find
	)
	all := []route{
		{method: "POST", pattern: subscriptionsPath, scope: webhooksWrite, handle: a.idempotent(subscriptions.create)},
		{method: "GET", pattern: subscriptionsPath, scope: webhooksRead, query: listed(webhook.SubscriptionList),
			handle: subscriptions.list},
		{method: "GET", pattern: subscriptionPath, scope: webhooksRead, find: bySub, handle: subscriptions.read},
		{method: "PUT", pattern: subscriptionPath, scope: webhooksWrite, find: bySub, handle: subscriptions.update},
		{method: "DELETE", pattern: subscriptionPath, scope: webhooksWrite, find: bySub, handle: subscriptions.delete},
		{method: "GET", pattern: deliveriesPath, scope: webhooksRead, find: bySub, query: listed(webhook.DeliveryList),
			handle: deliveries.list},
		{method: "GET", pattern: deliveryPath, scope: webhooksRead, find: deliveries.find, handle: deliveries.read},
		{method: "DELETE", pattern: deliveryPath + "/share", scope: webhooksWrite, find: deliveries.find, handle: deliveries.revokeShares},
		{method: "POST", pattern: replaysPath, scope: webhooksWrite, find: bySub, handle: a.idempotent(replays.create)},
		{method: "GET", pattern: subscriptionPath + "/events", scope: webhooksRead, find: bySub, query: listed(webhook.SubscriptionLog),
			handle: events.pull},
		{method: "GET", pattern: replaysPath, scope: webhooksRead, find: bySub, query: listed(webhook.ReplayList), handle: replays.list},
		{method: "GET", pattern: replayPath, scope: webhooksRead, find: replays.find, handle: replays.read},
		{method: "GET", pattern: "/v2/incidents", scope: webhooksRead, query: listed(webhook.IncidentList), handle: incidents.list},
		{method: "GET", pattern: "/v2/incidents/:id", scope: webhooksRead, find: incidents.find, handle: incidents.read},
		{method: "POST", pattern: filterTestsPath, scope: webhooksWrite, handle: events.testFilters},
		{method: "POST", pattern: bulkRunsPath, scope: webhooksWrite, handle: a.idempotent(bulkRuns.create)},
		{method: "GET", pattern: bulkRunsPath, scope: webhooksWrite, query: listed(webhook.BulkRunList), handle: bulkRuns.list},
		{method: "GET", pattern: bulkRunPath, scope: webhooksWrite, find: bulkRuns.find, handle: bulkRuns.read},
		{method: "POST", pattern: eventsPath, scope: eventsWrite, handle: a.idempotent(events.publish)},
		{method: "GET", pattern: eventsPath, scope: eventsRead, query: listed(webhook.EventLog), handle: events.list},
		{method: "GET", pattern: "/v2/events/:id", scope: eventsRead, find: events.find, handle: events.read},
		{method: "DELETE", pattern: "/v2/events/:id", scope: eventsWrite, find: events.find, handle: events.erase},
		{method: "GET", pattern: "/v2/events/:id/deliveries", scope: webhooksRead, find: events.find, query: listed(webhook.EventDeliveryList),
			handle: deliveries.listOfEvent},
		{method: "GET", pattern: "/v2/deliveries", scope: webhooksRead, query: listed(webhook.ProgramDeliveryList),
			handle: deliveries.listOfProgram},
		{method: "GET", pattern: "/v2/token", scope: scopeAny, handle: tokens.read},
		{method: "GET", pattern: "/v2/event_types", scope: scopeAny, handle: eventTypes.list},
		{method: "GET", pattern: "/v2/event_types/:name", scope: scopeAny, find: eventTypes.find, handle: eventTypes.read},
		{method: "PUT", pattern: "/v2/event_types/:name", scope: webhook.ScopePlatform, handle: eventTypes.put},
		{method: "DELETE", pattern: "/v2/event_types/:name", scope: webhook.ScopePlatform, find: eventTypes.find,
			handle: eventTypes.delete},
		{method: "GET", pattern: "/v2/openapi.json", scope: scopeNone, query: free, handle: documents.contract, quiet: true},
		{method: "GET", pattern: "/healthz", scope: scopeNone, query: free, handle: status.healthz, quiet: true},
		{method: "GET", pattern: "/readyz", scope: scopeNone, query: free, handle: status.readyz, quiet: true},
		// See request.needsNoToken.
		{method: "GET", pattern: metricsPath, scope: webhook.ScopeMetricsRead, query: free, handle: status.metrics, quiet: true},
	}
	for _, path := range documentPaths() {
		all = append(all, route{method: "GET", pattern: path, scope: scopeNone, query: free, handle: documents.page, quiet: true})
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
	)
	return []route{
		{method: "GET", pattern: "/v2/audit", scope: platform, query: listed(webhook.AuditList), handle: audit.list},
		{method: "GET", pattern: programMovePath, scope: platform, handle: moves.read},
		{method: "PUT", pattern: moveIDPath, scope: platform, handle: moves.first},
		{method: "PUT", pattern: moveIDPath + "/changes", scope: platform, handle: moves.changes},
		{method: "PUT", pattern: moveIDPath + "/rest", scope: platform, handle: moves.rest},
		{method: "POST", pattern: moveIDPath + "/activate", scope: platform, handle: moves.activate},
		{method: "DELETE", pattern: moveIDPath, scope: platform, handle: moves.abort},
		{method: "GET", pattern: "/v2/programs", scope: platform, query: listed(webhook.ProgramList), handle: programs.list},
		{method: "GET", pattern: programPath, scope: platform, find: programs.find, handle: programs.read},
		{method: "PUT", pattern: programPath, scope: platform, handle: programs.put},
		{method: "DELETE", pattern: programPath, scope: platform, find: programs.find, handle: programs.delete},
		{method: "GET", pattern: programTokensPath, scope: platform, find: programs.find, query: listed(webhook.TokenList),
			handle: tokens.list},
		{method: "POST", pattern: programTokensPath, scope: platform, find: programs.find, handle: a.idempotent(tokens.create)},
		{method: "POST", pattern: portalLinksPath, scope: platform, find: programs.find,
			handle: a.idempotent(portalHandlers{a}.createLink)},
		{method: "DELETE", pattern: programTokensPath + "/:token_id", scope: platform, find: tokens.find, handle: tokens.revoke},
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

		bySub = subscriptions.find
	)
	for _, action := range []route{
		{method: "POST", pattern: subscriptionPath + "/ping", scope: write, find: bySub, handle: subscriptions.ping},
		{method: "POST", pattern: subscriptionPath + "/test", scope: write, find: bySub, handle: subscriptions.test},
		{method: "POST", pattern: subscriptionPath + "/probe", scope: write, find: bySub, handle: subscriptions.probe},
		{method: "POST", pattern: subscriptionPath + "/rotate_secret", scope: write, find: bySub,
			handle: a.idempotent(subscriptions.rotateSecret)},
		{method: "POST", pattern: deliveryPath + "/redeliver", scope: write, find: deliveries.find,
			handle: a.idempotent(deliveries.redeliver)},
		{method: "POST", pattern: deliveryPath + "/share", scope: write, find: deliveries.find, handle: a.idempotent(deliveries.share)},
		{method: "POST", pattern: deliveryPath + "/cancel", scope: write, find: deliveries.find, handle: deliveries.cancel},
		{method: "POST", pattern: replayPath + "/cancel", scope: write, find: replays.find, handle: replays.cancel},
		{method: "POST", pattern: bulkRunPath + "/cancel", scope: write, find: bulkRuns.find, handle: bulkRuns.cancel},
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

// pathAdvice returns a sentence about a common mistake in a path, preceded by a space.
func pathAdvice(path string) string {
	switch {
	case strings.HasPrefix(path, "//"):
		return " It begins with two slashes: remove the slash at the end of the base URL."
	case !strings.HasPrefix(path, "/v2/"):
		return " Paths of the API begin with /v2/."
	}
	return ""
}

// unrouted returns the route of a request that matches none: its path is unknown, or the path
// supports other methods. It needs no token. Under /v2 the response names the program and user of a
// valid token, like every other response (spec, section 5).
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
			if err := a.authenticate(req); err != nil && webhook.CodeOf(err) != webhook.CodeUnauthenticated {
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
