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
func routes() []route {
	const (
		webhooksRead, webhooksWrite = webhook.ScopeWebhooksRead, webhook.ScopeWebhooksWrite
		eventsRead, eventsWrite     = webhook.ScopeEventsRead, webhook.ScopeEventsWrite
	)
	free := queryRules{ignored: true}
	all := []route{
		{method: "POST", pattern: subscriptionsPath, scope: webhooksWrite, handle: idempotent(createSubscription)},
		{method: "GET", pattern: subscriptionsPath, scope: webhooksRead, query: listed(webhook.SubscriptionList), handle: listSubscriptions},
		{method: "GET", pattern: subscriptionPath, scope: webhooksRead, find: findSubscription, handle: readSubscription},
		{method: "PUT", pattern: subscriptionPath, scope: webhooksWrite, find: findSubscription, handle: updateSubscription},
		{method: "DELETE", pattern: subscriptionPath, scope: webhooksWrite, find: findSubscription, handle: deleteSubscription},
		{method: "GET", pattern: deliveriesPath, scope: webhooksRead, find: findSubscription, query: listed(webhook.DeliveryList),
			handle: listDeliveries},
		{method: "GET", pattern: deliveryPath, scope: webhooksRead, find: findDelivery, handle: readDelivery},
		{method: "DELETE", pattern: deliveryPath + "/share", scope: webhooksWrite, find: findDelivery, handle: revokeShares},
		{method: "POST", pattern: replaysPath, scope: webhooksWrite, find: findSubscription, handle: idempotent(createReplay)},
		{method: "GET", pattern: subscriptionPath + "/events", scope: webhooksRead, find: findSubscription,
			query: listed(webhook.SubscriptionLog), handle: pullEvents},
		{method: "GET", pattern: replaysPath, scope: webhooksRead, find: findSubscription, query: listed(webhook.ReplayList),
			handle: listReplays},
		{method: "GET", pattern: replayPath, scope: webhooksRead, find: findReplay, handle: readReplay},
		{method: "GET", pattern: "/v2/incidents", scope: webhooksRead, query: listed(webhook.IncidentList), handle: listIncidents},
		{method: "GET", pattern: "/v2/incidents/:id", scope: webhooksRead, find: findIncident, handle: readIncident},
		{method: "POST", pattern: filterTestsPath, scope: webhooksWrite, handle: testFilters},
		{method: "POST", pattern: bulkRunsPath, scope: webhooksWrite, handle: idempotent(createBulkRun)},
		{method: "GET", pattern: bulkRunsPath, scope: webhooksWrite, query: listed(webhook.BulkRunList), handle: listBulkRuns},
		{method: "GET", pattern: bulkRunPath, scope: webhooksWrite, find: findBulkRun, handle: readBulkRun},
		{method: "POST", pattern: eventsPath, scope: eventsWrite, handle: idempotent(publishEvents)},
		{method: "GET", pattern: eventsPath, scope: eventsRead, query: listed(webhook.EventLog), handle: listEvents},
		{method: "GET", pattern: "/v2/events/:id", scope: eventsRead, find: findEvent, handle: readEvent},
		{method: "DELETE", pattern: "/v2/events/:id", scope: eventsWrite, find: findEvent, handle: eraseEvent},
		{method: "GET", pattern: "/v2/events/:id/deliveries", scope: webhooksRead, find: findEvent, query: listed(webhook.EventDeliveryList),
			handle: listEventDeliveries},
		{method: "GET", pattern: "/v2/deliveries", scope: webhooksRead, query: listed(webhook.ProgramDeliveryList),
			handle: listProgramDeliveries},
		{method: "GET", pattern: "/v2/token", scope: scopeAny, handle: readToken},
		{method: "GET", pattern: "/v2/event_types", scope: scopeAny, handle: listEventTypes},
		{method: "GET", pattern: "/v2/event_types/:name", scope: scopeAny, find: findEventType, handle: readEventType},
		{method: "PUT", pattern: "/v2/event_types/:name", scope: webhook.ScopePlatform, handle: putEventType},
		{method: "DELETE", pattern: "/v2/event_types/:name", scope: webhook.ScopePlatform, find: findEventType,
			handle: deleteEventType},
		{method: "GET", pattern: "/v2/openapi.json", scope: scopeNone, query: free, handle: readContract, quiet: true},
		{method: "GET", pattern: "/healthz", scope: scopeNone, query: free, handle: healthz, quiet: true},
		{method: "GET", pattern: "/readyz", scope: scopeNone, query: free, handle: readyz, quiet: true},
		// See request.needsNoToken.
		{method: "GET", pattern: metricsPath, scope: webhook.ScopeMetricsRead, query: free, handle: readMetrics, quiet: true},
	}
	for _, path := range documentPaths() {
		all = append(all, route{method: "GET", pattern: path, scope: scopeNone, query: free, handle: readDocument, quiet: true})
	}
	return slices.Concat(all, platformRoutes(), actionRoutes())
}

// platformRoutes are the routes of platform tokens.
func platformRoutes() []route {
	const platform = webhook.ScopePlatform
	return []route{
		{method: "GET", pattern: "/v2/audit", scope: platform, query: listed(webhook.AuditList), handle: listAudit},
		{method: "GET", pattern: programMovePath, scope: platform, handle: readMove},
		{method: "PUT", pattern: moveIDPath, scope: platform, handle: receiveFirst},
		{method: "PUT", pattern: moveIDPath + "/changes", scope: platform, handle: receiveChanges},
		{method: "PUT", pattern: moveIDPath + "/rest", scope: platform, handle: receiveRest},
		{method: "POST", pattern: moveIDPath + "/activate", scope: platform, handle: activateMove},
		{method: "DELETE", pattern: moveIDPath, scope: platform, handle: abortMove},
		{method: "GET", pattern: "/v2/programs", scope: platform, query: listed(webhook.ProgramList), handle: listPrograms},
		{method: "GET", pattern: programPath, scope: platform, find: findProgram, handle: readProgram},
		{method: "PUT", pattern: programPath, scope: platform, handle: putProgram},
		{method: "DELETE", pattern: programPath, scope: platform, find: findProgram, handle: deleteProgram},
		{method: "GET", pattern: programTokensPath, scope: platform, find: findProgram, query: listed(webhook.TokenList),
			handle: listTokens},
		{method: "POST", pattern: programTokensPath, scope: platform, find: findProgram, handle: idempotent(createToken)},
		{method: "POST", pattern: portalLinksPath, scope: platform, find: findProgram,
			handle: idempotent(createPortalLink)},
		{method: "DELETE", pattern: programTokensPath + "/:token_id", scope: platform, find: findToken, handle: revokeToken},
	}
}

// actionRoutes are the actions on a record, which accept POST and PUT (spec, section 4.4).
func actionRoutes() (all []route) {
	const write = webhook.ScopeWebhooksWrite
	for _, action := range []route{
		{method: "POST", pattern: subscriptionPath + "/ping", scope: write, find: findSubscription, handle: bodiless(pingSubscription)},
		{method: "POST", pattern: subscriptionPath + "/test", scope: write, find: findSubscription, handle: testSubscription},
		{method: "POST", pattern: subscriptionPath + "/probe", scope: write, find: findSubscription, handle: bodiless(probeSubscription)},
		{method: "POST", pattern: subscriptionPath + "/rotate_secret", scope: write, find: findSubscription,
			handle: idempotent(rotateSecret)},
		{method: "POST", pattern: deliveryPath + "/redeliver", scope: write, find: findDelivery,
			handle: idempotent(bodiless(redeliver))},
		{method: "POST", pattern: deliveryPath + "/share", scope: write, find: findDelivery, handle: idempotent(bodiless(shareDelivery))},
		{method: "POST", pattern: deliveryPath + "/cancel", scope: write, find: findDelivery, handle: bodiless(cancelDelivery)},
		{method: "POST", pattern: replayPath + "/cancel", scope: write, find: findReplay, handle: bodiless(cancelReplay)},
		{method: "POST", pattern: bulkRunPath + "/cancel", scope: write, find: findBulkRun, handle: bodiless(cancelBulkRun)},
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
