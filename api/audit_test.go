package api

import (
	"net/http"
	"strings"
	"testing"

	"service/store"
	"service/webhook"
)

// auditCases maps each route to its audit entry on success: the action and the subject. It is empty
// for a route that changes nothing but deliveries of pings and tests, or publishes events. A new
// route needs a line.
var auditCases = map[string]struct {
	action  webhook.Action
	subject func(ids, response) string
}{
	"POST " + subscriptionsPath:                   {webhook.ActionSubscriptionCreate, createdSubject},
	"PUT " + subscriptionPath:                     {webhook.ActionSubscriptionPause, subscriptionSubject},
	"DELETE " + subscriptionPath:                  {webhook.ActionSubscriptionDelete, subscriptionSubject},
	"POST " + subscriptionPath + "/ping":          {},
	"POST " + subscriptionPath + "/test":          {},
	"POST " + subscriptionPath + "/probe":         {},
	"POST " + subscriptionPath + "/rotate_secret": {webhook.ActionSubscriptionRotateSecret, subscriptionSubject},
	"POST " + deliveryPath + "/redeliver":         {webhook.ActionDeliveryRedeliver, func(i ids, _ response) string { return i.delivery }},
	"POST " + deliveryPath + "/cancel":            {webhook.ActionDeliveryCancel, func(i ids, _ response) string { return i.delivery }},
	"POST " + deliveryPath + "/share":             {webhook.ActionDeliveryShare, func(i ids, _ response) string { return i.delivery }},
	"DELETE " + deliveryPath + "/share":           {webhook.ActionDeliveryRevokeShare, func(i ids, _ response) string { return i.delivery }},
	"POST " + portalLinksPath:                     {webhook.ActionPortalLinkCreate, createdSubject},
	"POST " + replaysPath:                         {webhook.ActionSubscriptionReplay, subscriptionSubject},
	"DELETE " + replayPath:                        {webhook.ActionSubscriptionCancelReplay, subscriptionSubject},
	"POST " + replayPath + "/cancel":              {webhook.ActionSubscriptionCancelReplay, subscriptionSubject},
	"POST " + filterTestsPath:                     {},
	"POST " + bulkRunsPath:                        {webhook.ActionDeliveryRedeliver, createdRunSubject},
	"POST " + bulkRunPath + "/cancel":             {webhook.ActionDeliveryCancel, runSubject},
	"POST /v2/events":                             {},
	"DELETE /v2/events/:id":                       {webhook.ActionEventErase, func(i ids, _ response) string { return i.event }},
	"PUT /v2/event_types/:name":                   {webhook.ActionEventTypeCreate, func(ids, response) string { return "order.shipped" }},
	"DELETE /v2/event_types/:name":                {webhook.ActionEventTypeDelete, func(ids, response) string { return "order.returned" }},
	"PUT " + programPath:                          {webhook.ActionProgramUpdate, programSubject},
	"DELETE " + programPath:                       {webhook.ActionProgramDelete, programSubject},
	"POST " + programTokensPath:                   {webhook.ActionTokenCreate, createdSubject},
	"DELETE " + programTokensPath + "/:token_id":  {webhook.ActionTokenRevoke, func(i ids, _ response) string { return i.token }},
}

func subscriptionSubject(i ids, _ response) string { return i.subscription }
func programSubject(i ids, _ response) string      { return i.program }
func runSubject(i ids, _ response) string          { return webhook.BulkRunSubject(i.bulkRun) }
func createdSubject(_ ids, r response) string      { return idOf(r) }
func createdRunSubject(_ ids, r response) string   { return webhook.BulkRunSubject(idOf(r)) }

func idOf(r response) string {
	_, rest, _ := strings.Cut(r.body, `"id":"`)
	id, _, _ := strings.Cut(rest, `"`)
	return id
}

// TestAuditMatrix checks that every route that changes something leaves exactly its entry in the
// audit log, for a program token and a platform token, and that no other route, no refused request
// and no repeated request leaves any.
func TestAuditMatrix(t *testing.T) {
	// The routes that change nothing share a service for each kind of token.
	shared, sharedPlatform := start(t), start(t)
	sharedIDs, platformIDs := shared.records(), sharedPlatform.records()
	for _, rt := range routes() {
		if strings.HasPrefix(rt.pattern, moveIDPath) {
			continue // which need another installation
		}
		t.Run(strings.ReplaceAll(rt.method+rt.pattern, "/", "_"), func(t *testing.T) {
			serve := func(s *service, i ids) (*service, ids) {
				if rt.method == http.MethodGet {
					of := *s
					of.t = t
					return &of, i
				}
				s = start(t)
				return s, s.records()
			}
			if rt.scope != webhook.ScopePlatform {
				s, i := serve(shared, sharedIDs)
				m := auditMatrix{s, &rt, nil}
				m.check(i)
			}
			s, i := serve(sharedPlatform, platformIDs)
			m := auditMatrix{s.as(&route{scope: webhook.ScopePlatform}), &rt, nil}
			if rt.scope != webhook.ScopePlatform {
				m.headers = []string{programHeader, "acme"}
			}
			m.check(i)
		})
	}
}

// auditMatrix calls a route with a token and compares the audit log.
type auditMatrix struct {
	*service
	rt      *route
	headers []string
}

// auditLog returns the audit log, oldest first.
func (s *service) auditLog() (all []webhook.AuditEntry) {
	s.t.Helper()
	must(s.t, s.store.Audit().Each(s.t.Context(), func(e *webhook.AuditEntry) error {
		all = append(all, *e)
		return nil
	}))
	return all
}

// name returns the name of the route in auditCases.
func (m *auditMatrix) name() string {
	if m.rt.method == "PUT" && (strings.HasPrefix(m.rt.pattern, subscriptionPath+"/") || strings.HasPrefix(m.rt.pattern, bulkRunPath+"/")) {
		return "POST " + m.rt.pattern // of an action, see actionRoutes
	}
	return m.rt.method + " " + m.rt.pattern
}

func (m *auditMatrix) check(i ids) {
	m.t.Helper()
	rt, name := m.rt, m.name()
	want, known := auditCases[name]
	if !known && rt.method != http.MethodGet {
		m.t.Fatalf("auditCases has no line for %s", name)
	}
	if rt.scope == scopeNone {
		m.headers = nil
	}
	body := m.prepare(&i, name)
	before := m.auditLog()

	m.refuse(i, name, body)
	if after := m.auditLog(); len(after) != len(before) {
		m.t.Fatalf("a refused request left %+v", after[len(before):])
	}

	if strings.HasSuffix(name, "/ping") || strings.HasSuffix(name, "/test") {
		wait := m.answerPing(200, webhook.ErrorNone)
		defer func() {
			if !m.t.Failed() {
				wait()
			}
		}()
	}
	headers := append([]string{"Idempotency-Key", "audit"}, m.headers...)
	r := m.send(rt.method, i.path(rt), body, headers...)
	if r.status >= 400 && !strings.HasSuffix(name, "/probe") { // which needs a failing subscription
		m.t.Fatalf("got %d: %s", r.status, r.body)
	}
	after := m.auditLog()
	if want.action == "" {
		if len(after) != len(before) {
			m.t.Errorf("got the entries %+v, want none", after[len(before):])
		}
		return
	}
	if len(after) != len(before)+1 {
		m.t.Fatalf("got %d new entries, want one: %+v", len(after)-len(before), after[len(before):])
	}
	e := after[len(before)]
	token := m.tokenID()
	program := "acme"
	if strings.HasPrefix(rt.pattern, "/v2/event_types") {
		program = ""
	}
	if e.Action != want.action || e.SubjectID != want.subject(i, r) || e.ProgramID != program || e.TokenID() != token ||
		e.Address != "192.0.2.1" || e.RequestID == "" || e.RequestID != r.header.Get("X-Request-Id") {
		m.t.Errorf("got %+v, want %s of %s in %q by the token %s", e, want.action, want.subject(i, r), program, token)
	}
	changed := strings.Contains(rt.pattern, ":") && rt.method != "POST" || r.status == 201 || r.status == 202
	if changed && want.action != webhook.ActionProgramDelete {
		m.send(rt.method, i.path(rt), body, headers...) // changes nothing more
		if again := m.auditLog(); len(again) != len(after) {
			m.t.Errorf("the same request again left %+v", again[len(after):])
		}
	}
	var v webhook.AuditVerifier
	if err := m.store.Audit().Each(m.t.Context(), v.Add); err != nil {
		m.t.Error(err)
	}
}

// refuse sends requests that the route refuses: for missing records, with a failed precondition,
// and with an unknown token.
func (m *auditMatrix) refuse(i ids, name, body string) {
	m.t.Helper()
	rt := m.rt
	if rt.method == http.MethodGet {
		return
	}
	if strings.Contains(rt.pattern, ":") {
		if rt.pattern != programPath && rt.pattern != "/v2/event_types/:name" || rt.method == "DELETE" {
			unknown := missing()
			unknown.eventType = "order.unknown"
			m.want(404, m.send(rt.method, strings.ReplaceAll(unknown.path(rt), "order.returned", "order.unknown"), body, m.headers...))
		}
		if name == "PUT "+subscriptionPath || name == "DELETE "+subscriptionPath || name == "DELETE "+replayPath || name == "PUT "+programPath {
			m.want(412, m.send(rt.method, i.path(rt), body, append([]string{"If-Match", `"other"`}, m.headers...)...))
		}
	}
	m.want(401, m.send(rt.method, i.path(rt), body, "Authorization", "Bearer "+webhook.NewTokenSecret(webhook.TokenPrefix)))
}

func (m *auditMatrix) want(status int, r response) {
	m.t.Helper()
	wantStatus(m.t, "the request", r, status)
}

func (m *auditMatrix) tokenID() string {
	return data[identified](m.t, m.send("GET", "/v2/token", "")).ID
}

// prepare creates what the route needs to succeed, and returns the request body.
func (m *auditMatrix) prepare(i *ids, name string) string {
	m.t.Helper()
	pending := func() {
		m.publishAs()
		m.deliver(503, webhook.ErrorNone)
		list := data[[]identified](m.t, m.send("GET", "/v2/webhooks/subscriptions/"+i.subscription+"/deliveries", "", m.headers...))
		i.delivery = list[0].ID
	}
	switch name {
	case "POST " + subscriptionsPath:
		return `{"url":"https://partner.example/x","events":[{"name":"content_updated"}]}`
	case "POST " + subscriptionPath + "/test":
		return `{"name":"content_updated"}`
	case "POST " + deliveryPath + "/cancel":
		pending()
	case "DELETE " + deliveryPath + "/share":
		must(m.t, m.store.Write(m.t.Context(), func(w store.Write) error {
			_, _, err := w.Deliveries().Share("acme", i.delivery, webhook.AuditEntry{})
			return err
		}))
	case "POST " + replaysPath:
		return `{"from":"2026-01-01","only":"all"}`
	case "POST " + bulkRunsPath:
		return `{"action":"redeliver"}`
	case "POST /v2/events":
		return contentUpdated
	}
	return bodyFor(m.rt)
}

func (m *auditMatrix) publishAs() {
	m.t.Helper()
	m.want(201, m.send("POST", "/v2/events", contentUpdated, m.headers...))
}
