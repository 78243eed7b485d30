// Package web serves the admin UI: its pages, and the sessions of admins.
//
// Without a session every page shows only how to sign in. Each route needs a role, and pages show
// only links and forms that the visitor's role allows. Other sites cannot send forms to the pages.
// Text from outside is shown as text, never as markup. Pages work without JavaScript.
//
// # How a page is made
//
// A noun has its own files, token.go with the handlers and token.templ with the pages, its lines
// in routes, and, if the shared styles do not suffice, a file in assets/src that style.css there
// imports. A handler takes a *request and returns a response or an error:
//
//	func (h *tokenPages) show(r *request) (response, error) {
//		t, err := h.store.Token(r.Context(), r.PathValue("id"))
//		if err != nil {
//			return response{}, asProblem(err)
//		}
//		return response{page: tokenPage(h.frame(r, "Token "+t.Hint), &t)}, nil
//	}
//
// The handlers of a noun are methods of one type, such as tokenPages, which embeds site, the
// shared part. Web.serve runs them: no other code writes responses or logs errors.
//
// Links are GET. Changes are forms sent by POST, whose response is a redirect with a note of what
// was done. A mistake of the visitor is a *problem, or a page with status 422 that shows the form
// again with the errors at its fields ([ui.FieldErrors]). A page with a secret must say so
// (response.secret).
//
// A page is @ui.Layout(f) with @ui.PageTitle(f) or @ui.RecordTitle first, which contains the page's
// only h1. Package ui contains the components. The frame's clock formats times: @f.Clock.Ago(t).
// Text from outside goes through [ui.Visible], a body through [ui.BodyBlock].
//
// go generate ./... generates the code of the pages and the assets. Both are committed.
package web

import (
	"cmp"
	"compress/gzip"
	"context"
	"crypto/rand"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"service/assets"
	"service/internal/ratelimit"
	"service/store"
	"service/store/doctor"
	"service/web/hashing"
	"service/web/oidc"
	"service/web/once"
	"service/web/portal"
	"service/web/ui"
	"service/webhook"
)

// Generated code names its source relative to the root of the module.
//go:generate go -C .. tool templ generate

// Config configures the admin UI.
type Config struct {
	Store  *store.Store
	Logger *slog.Logger // nil disables logging

	Version string    // of this binary
	Started time.Time // start of this process

	// Secure means that browsers use HTTPS, to this process or to a proxy in front of it: cookies
	// are then restricted to HTTPS.
	Secure bool

	// Values for commands to copy. Program is this binary as typed into a shell, quoted if
	// necessary; "" is service. BaseURL is the base URL of the API and the pages, without a final
	// slash. CAFile is the certificate that clients must trust, "" when they trust it already.
	Program string
	BaseURL string
	CAFile  string

	// Domains are the public names of the service, in lower case. Passkeys work at these and at
	// localhost; without any, at the domain that a browser opened.
	Domains []string

	// Settings are the flags of this process, without secrets. Certificates returns the TLS
	// certificates of the service; nil for none.
	Settings     []Setting
	Certificates func() []Certificate

	// Checks returns the results of the service's checks; nil for none. The system page calls it
	// once per request.
	Checks func(context.Context) []doctor.Finding

	// Portal is the appearance of the partners' portal, and Receiving the settings in its checklist
	// for receivers.
	Portal    portal.Config
	Receiving webhook.Receiving

	// Rules apply to subscriptions. MaxSubscriptions is the maximum number per program, and
	// RateLimit the maximum number of requests in 60 seconds, for programs without their own
	// limits; 0 is no limit. BatchSize is the maximum number of events in a delivery.
	Rules            webhook.SubscriptionRules
	DisableAfter     time.Duration // time until a failing subscription is disabled; 0 is never
	MaxSubscriptions int
	RateLimit        int
	BatchSize        int

	// AlertURL reports that alerts are also sent to --alert-url, and Email that a mail server for
	// alerts is configured.
	AlertURL, Email bool

	// Backlog returns the backlog of the subscriptions of a program, or of all for ""; nil if
	// unknown. Each overview calls it once.
	Backlog func(ctx context.Context, programID string) (webhook.Backlog, error)

	// PausedUntil returns until when deliveries wait because the receiver of a subscription asked
	// for a pause, zero if none do; nil if unknown.
	PausedUntil func(subscriptionID string) time.Time

	// OIDC is the OpenID Connect provider through which admins sign in; nil for none.
	OIDC *oidc.Provider

	// Ready returns nil if the service accepts and delivers events, or why not, in words for
	// admins. Each overview calls it once, other pages at most once per second.
	Ready func(context.Context) error
}

// Web is the admin UI: a handler for every path outside the API. Its methods are safe for
// concurrent use.
//
// The store keeps sessions. Links and counts of wrong passwords are in memory: a restart ends the
// links and resets the counts.
type Web struct {
	*site
	store    *store.Store // without the access check of handlers, which use site.store
	sessions *sessions
	pages    pages
	mux      *http.ServeMux
	roles    map[string]webhook.Role // minimum role of each route, by its pattern
	origins  *http.CrossOriginProtection
	noteKey  [32]byte      // signs notes
	streams  chan struct{} // one slot for each open stream of an admin

	portalStreams chan struct{}           // the same for partners
	perProgram    ratelimit.Slots[string] // the streams of each program
	life          context.Context         // ends with EndStreams
	endLife       context.CancelFunc
	gzips         sync.Pool
}

// pages contains the handlers by noun.
type pages struct {
	signIn        *signInPages
	account       *accountPages
	overview      *overviewPages
	incidents     *incidentPages
	channels      *channelPages
	search        *searchPages
	subscriptions *subscriptionPages
	deliveries    *deliveryPages
	shared        *sharedPages
	bulkRuns      *bulkRunPages
	events        *eventPages
	eventTypes    *eventTypePages
	programs      *programPages
	tokens        *tokenPages
	admins        *adminPages
	audit         *auditPages
	system        *systemPages
	portal        *portalPages
	programPortal *programPortalPages
}

// New returns the admin UI.
func New(cfg Config) *Web {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Program == "" {
		cfg.Program = "service"
	}
	shared := &site{
		cfg: cfg, store: pageStore{cfg.Store}, logger: cfg.Logger, assets: assets.New(),
		curl: ui.Curl{BaseURL: cfg.BaseURL, CAFile: cfg.CAFile}, sectionPages: make(map[string]bool),
	}
	shared.brand = portal.NewBrand(&cfg.Portal, shared.assets)
	w := &Web{
		site:     shared,
		store:    cfg.Store,
		sessions: &sessions{store: cfg.Store, secure: cfg.Secure},
		origins:  http.NewCrossOriginProtection(),
		roles:    make(map[string]webhook.Role),
		streams:  make(chan struct{}, maxStreams),

		portalStreams: make(chan struct{}, maxStreams),
	}
	throttle, hasher, challenges := ratelimit.New(maxLimitKeys), hashing.New(), once.NewChallenges()
	w.pages = pages{
		signIn: &signInPages{
			site: shared, sessions: w.sessions, setupCodes: once.NewCodes(linkLife, maxLinks), signInCodes: once.NewCodes(linkLife, maxLinks),
			limiter: throttle, hasher: hasher, challenges: challenges, noPassword: webhook.NoPassword(),
			flows: newFlowKeeper(),
		},
		account:   &accountPages{site: shared, sessions: w.sessions, limiter: throttle, hasher: hasher, challenges: challenges},
		overview:  &overviewPages{shared},
		incidents: &incidentPages{shared},
		channels:  &channelPages{shared},
		search:    &searchPages{shared},
		subscriptions: &subscriptionPages{site: shared, formCodes: once.NewCodes(onceLife, maxOnce),
			portalCodes: once.NewCodes(onceLife, maxPortalOnce), quickCount: countTime},
		deliveries:    &deliveryPages{shared},
		shared:        &sharedPages{site: shared, limiter: throttle},
		bulkRuns:      &bulkRunPages{shared},
		events:        &eventPages{shared},
		eventTypes:    &eventTypePages{shared},
		programs:      &programPages{shared},
		tokens:        &tokenPages{shared},
		admins:        &adminPages{shared},
		audit:         &auditPages{shared},
		system:        &systemPages{shared},
		programPortal: &programPortalPages{shared},
		portal: &portalPages{site: shared, sessions: w.sessions, pace: ratelimit.New(maxLimitKeys),
			roleOf: w.roleOf},
	}
	w.gzips.New = func() any { return gzip.NewWriter(nil) } // almost a megabyte each: reused
	w.pages.subscriptions.portalCodes.Share = maxProgramOnce
	rand.Read(w.noteKey[:])
	w.life, w.endLife = context.WithCancel(context.Background())
	w.mux = w.newMux()
	return w
}

// route is a path of the pages, and its minimum role.
type route struct {
	path string       // a pattern of [http.ServeMux]
	role webhook.Role // minimum role, or anyone
	kind routeKind
	by
}

// The column role of the routes.
const (
	anyone   = webhook.Role("") // no session required: signing in
	viewer   = webhook.RoleViewer
	operator = webhook.RoleOperator
	owner    = webhook.RoleOwner

	// In the portal, whose routes admins may not use.
	reader = webhook.Role("portal " + webhook.PortalRead)
	writer = webhook.Role("portal " + webhook.PortalWrite)
)

// routeKind distinguishes pages from background requests of pages, which do not extend the
// session.
type routeKind int

const (
	pageRoute routeKind = iota
	partRoute
)

// newMux returns the handler of all routes and of the assets.
func (w *Web) newMux() *http.ServeMux {
	m := http.NewServeMux()
	m.Handle(assets.Prefix, w.assets)
	m.Handle("/", w.serve(w.pages.signIn.requireSession(pageRoute, notFound)))
	m.Handle(portalBase+"/", w.serve(w.pages.portal.require(reader, notFound)))
	for _, t := range slices.Concat(w.routes(), w.portalRoutes()) {
		m.Handle(t.path, w.serve(w.guard(t)))
		w.roles[t.path] = t.role
		if t.kind == pageRoute && t.role != reader && t.role != writer {
			w.sectionPages[strings.TrimSuffix(t.path, "{$}")] = t.get != nil
		}
	}
	return m
}

// guard returns the handler of a route with its access check. No other code decides on access,
// except that [pageStore.Write] repeats the check when it writes.
func (w *Web) guard(t route) handler {
	var do handler
	switch {
	case t.role == anyone:
		return t.handle
	case t.role == reader || t.role == writer:
		do = w.pages.portal.require(t.role, t.handle)
	case t.kind == partRoute:
		do = w.pages.signIn.requireSession(partRoute, w.requireRole(t.role, t.handle))
	default:
		do = w.pages.signIn.requireSession(pageRoute, w.requireRole(t.role, w.withPrograms(t.handle)))
	}
	return func(r *request) (response, error) {
		r.need = t.role
		return do(r)
	}
}

// of returns the handlers of the pages and actions of a record that find reads. A nil handler is
// none.
func of[T any](find func(*request) (T, error), get, post func(*request, T) (response, error)) by {
	with := func(do func(*request, T) (response, error)) handler {
		if do == nil {
			return nil
		}
		return func(r *request) (response, error) {
			record, err := find(r)
			if err != nil {
				return response{}, err
			}
			return do(r, record)
		}
	}
	return by{get: with(get), post: with(post)}
}

// requireRole passes on requests of admins whose role allows them. Each request reads the session,
// and with it the current role. Pages then show only the links and forms that the role allows.
func (w *Web) requireRole(need webhook.Role, do handler) handler {
	return func(r *request) (response, error) {
		has := r.session.Role
		if !has.Allows(need) {
			return response{}, r.roleTooLow(has)
		}
		ctx := store.ForLists(r.Context(), "")
		r.Request = r.WithContext(ui.WithAccess(ctx, func(address string) bool { return has.Allows(w.roleOf(address)) }))
		return do(r)
	}
}

// roleOf returns the role that a page or an action needs, given its address.
func (w *Web) roleOf(address string) webhook.Role {
	path, _, _ := strings.Cut(address, "#")
	path, _, _ = strings.Cut(path, "?")
	_, pattern := w.mux.Handler(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: path}})
	return cmp.Or(w.roles[pattern], viewer)
}

// routes returns every route of the pages.
func (w *Web) routes() []route {
	p, subs := &w.pages, w.pages.subscriptions
	return slices.Concat([]route{
		{"/setup/{code}", anyone, pageRoute, by{get: p.signIn.newFirstAdmin, post: p.signIn.createFirstAdmin}},
		{"/sign-in", anyone, pageRoute, by{get: p.signIn.showSignIn, post: p.signIn.signIn}},
		{"/sign-in/passkey", anyone, pageRoute, by{get: p.signIn.passkeyOptions, post: p.signIn.signInByPasskey}},
		{"/sign-in/oidc", anyone, pageRoute, by{get: p.signIn.beginIdentity}},
		{"/sign-in/oidc/callback", anyone, pageRoute, by{get: p.signIn.endIdentity}},
		{"/sign-in/{code}", anyone, pageRoute, by{get: p.signIn.showLink, post: p.signIn.useLink}},
		{"/invitation/{code}", anyone, pageRoute, by{get: p.signIn.showInvitation, post: p.signIn.acceptInvitation}},
		{webhook.SharePath + "{code}", anyone, pageRoute, by{get: p.shared.show}},
		{"/sign-out", viewer, pageRoute, by{post: p.signIn.signOut}},

		{"/{$}", viewer, pageRoute, by{get: p.overview.show}},
		{"/status", viewer, partRoute, by{get: p.incidents.showStatus}},

		{"/incidents", viewer, pageRoute, by{get: p.incidents.list}},
		{"/incidents/{id}", viewer, pageRoute, of(p.incidents.read, p.incidents.show, nil)},
		{"/incidents/{id}/message", owner, pageRoute, of(p.incidents.read, nil, p.incidents.addPortalLink)},

		{"/subscriptions/arrivals", viewer, partRoute,
			by{get: subs.showNewRows(webhook.AllSubscriptionList, subs.arrived)}},
		{"/subscriptions/export", viewer, pageRoute, by{get: subs.export}},
	}, w.sharedRoutes(viewer, operator), w.deliveryRoutes(), w.settingRoutes())
}

// deliveryRoutes are the routes of deliveries, bulk runs and events that only admins have.
func (w *Web) deliveryRoutes() []route {
	p := &w.pages
	return []route{
		{"/deliveries", viewer, pageRoute, by{get: p.deliveries.list}},
		{"/deliveries/stream", viewer, partRoute, by{get: p.deliveries.listStream}},
		{"/deliveries/arrivals", viewer, partRoute, by{get: p.deliveries.showNewRows(webhook.AllDeliveryList, p.deliveries.arrived)}},
		{"/deliveries/count", viewer, pageRoute, by{get: p.deliveries.count}},
		{"/deliveries/export", viewer, pageRoute, by{get: p.deliveries.export}},
		{"/deliveries/redeliver", operator, pageRoute,
			by{get: p.deliveries.confirmBulk(bulkRedeliver), post: p.deliveries.runBulk(bulkRedeliver)}},
		{"/deliveries/cancel", operator, pageRoute, by{get: p.deliveries.confirmBulk(bulkCancel), post: p.deliveries.runBulk(bulkCancel)}},
		{"/deliveries/redeliver/count", operator, partRoute, by{get: p.deliveries.countBulk(bulkRedeliver)}},
		{"/deliveries/cancel/count", operator, partRoute, by{get: p.deliveries.countBulk(bulkCancel)}},
		{"/deliveries/{id}/attempts/{number}/body.txt", viewer, pageRoute, of(p.deliveries.read, p.deliveries.attemptBody, nil)},
		{"/deliveries/{id}/share", operator, pageRoute, of(p.deliveries.read, nil, p.deliveries.share)},
		{"/deliveries/{id}/shares/{share}/revoke", operator, pageRoute, of(p.deliveries.read, nil, p.deliveries.revokeShare)},

		{"/bulk-runs", viewer, pageRoute, by{get: p.bulkRuns.list}},
		{"/bulk-runs/{id}", viewer, pageRoute, of(p.bulkRuns.read, p.bulkRuns.show, nil)},
		{"/bulk-runs/{id}/stream", viewer, partRoute, of(p.bulkRuns.read, p.bulkRuns.stream, nil)},
		{"/bulk-runs/{id}/cancel", operator, pageRoute, by{post: p.bulkRuns.cancel}},

		{"/events/export", viewer, pageRoute, by{get: p.events.export}},
		{"/events/publish", operator, pageRoute, by{get: p.events.newForm, post: p.events.publish}.upTo(maxPublishForm)},
		{"/events/{program}/{id}/erase", operator, pageRoute, by{get: p.events.confirmErase, post: p.events.erase}},
	}
}

// settingRoutes are the routes of programs, tokens, alerts, the system, admins and the account.
func (w *Web) settingRoutes() []route {
	p := &w.pages
	return []route{
		{"/programs", viewer, pageRoute, by{get: p.programs.list}},
		{"/programs/-/new", owner, pageRoute, by{get: p.programs.newForm, post: p.programs.create}},
		{"/programs/{id}", viewer, pageRoute, of(p.programs.find, p.programs.show, nil)},
		{"/programs/{id}/edit", owner, pageRoute, of(p.programs.find, p.programs.editForm, p.programs.update)},
		{"/programs/{id}/erase", owner, pageRoute, of(p.programs.erasure, p.programs.confirmErase, p.programs.erase)},

		{"/tokens", viewer, pageRoute, by{get: p.tokens.list}},
		{"/tokens/export", viewer, pageRoute, by{get: p.tokens.export}},
		{"/tokens/new", owner, pageRoute, by{get: p.tokens.newForm, post: p.tokens.create}},
		{"/tokens/{id}", viewer, pageRoute, of(p.tokens.find, p.tokens.show, nil)},
		{"/tokens/{id}/revoke", owner, pageRoute, of(p.tokens.find, p.tokens.confirmRevoke, p.tokens.revoke)},

		{"/programs/{id}/portal", owner, pageRoute, of(p.programPortal.read, p.programPortal.show, p.programPortal.createLink)},
		{"/programs/{id}/portal/origins", owner, pageRoute, of(p.programPortal.read, nil, p.programPortal.saveOrigins)},
		{"/programs/{id}/portal/end", owner, pageRoute, by{post: p.programPortal.end}},

		{"/alerts", viewer, pageRoute, by{get: p.channels.list}},
		{"/alerts/new", owner, pageRoute, by{get: p.channels.newForm, post: p.channels.create}},
		{"/alerts/{id}", viewer, pageRoute, of(p.channels.find, p.channels.show, nil)},
		{"/alerts/{id}/edit", owner, pageRoute, of(p.channels.find, p.channels.editForm, p.channels.update)},
		{"/alerts/{id}/test", owner, pageRoute, of(p.channels.find, nil, p.channels.test)},
		{"/alerts/{id}/delete", owner, pageRoute, of(p.channels.find, p.channels.confirmDelete, p.channels.delete)},

		{"/system", viewer, pageRoute, by{get: p.system.show}},
		{"/system/release", owner, pageRoute, by{post: p.system.releaseHold}},
		{"/admins", viewer, pageRoute, by{get: p.admins.list}},
		{"/admins/invite", owner, pageRoute, by{get: p.admins.inviteForm, post: p.admins.invite}},
		{"/admins/invitations/{id}/revoke", owner, pageRoute, by{post: p.admins.revokeInvitation}},
		{"/admins/{id}", viewer, pageRoute, of(p.admins.find, p.admins.show, nil)},
		{"/admins/{id}/role", owner, pageRoute, by{post: p.admins.setRole}},
		{"/admins/{id}/end-sessions", owner, pageRoute, of(p.admins.get, nil, p.admins.endSessions)},
		{"/admins/{id}/passkeys/{passkey}/remove", owner, pageRoute, of(p.admins.get, nil, p.admins.removePasskey)},
		{"/admins/{id}/remove", owner, pageRoute,
			by{get: of(p.admins.find, p.admins.confirmRemove, nil).get, post: of(p.admins.get, nil, p.admins.remove).post}},

		{"/audit", viewer, pageRoute, by{get: p.audit.list}},
		{"/audit/arrivals", viewer, partRoute, by{get: p.audit.showNewRows(webhook.AuditList, p.audit.arrived)}},
		{"/audit/export", viewer, pageRoute, by{get: p.audit.export}},

		{"/preferences", viewer, pageRoute, by{get: p.account.showPreferences, post: p.account.savePreferences}},
		{"/account", viewer, pageRoute, by{get: p.account.show}},
		{"/account/password", viewer, pageRoute, by{post: p.account.changePassword}},
		{"/account/passkeys", viewer, pageRoute, by{post: p.account.createPasskey}},
		{"/account/passkeys/new", viewer, pageRoute, by{post: p.account.newPasskey}},
		{"/account/passkeys/{passkey}/remove", viewer, pageRoute, by{post: p.account.removePasskey}},
		{"/account/sessions/{id}/revoke", viewer, pageRoute, by{post: p.account.revokeSession}},
		{"/account/sign-out-everywhere", viewer, pageRoute, by{post: p.account.signOutEverywhere}},
	}
}

// portalRoutes are the routes of the portal: its own, and those that match an admin route, limited to
// one program.
func (w *Web) portalRoutes() []route {
	p := &w.pages
	all := append([]route{
		{"/link/{code}", anyone, pageRoute, by{get: p.portal.showLink, post: p.portal.useLink}},
		{"/{$}", reader, pageRoute, by{get: p.portal.overview}},
		{"/sign-out", reader, pageRoute, by{post: p.portal.signOut}},
		{"/preferences", reader, pageRoute, by{post: p.portal.savePreferences}},
		{"/verify", reader, pageRoute, by{get: p.portal.verify}},
		{"/deliveries", reader, pageRoute, by{get: p.deliveries.listOfProgram}},
	}, w.sharedRoutes(reader, writer)...)
	for i := range all {
		all[i].path = portalBase + all[i].path
	}
	return append(all, route{portalBase, reader, pageRoute, by{get: p.portal.overview}})
}

// sharedRoutes are the routes that admins and partners have, with the roles that read and write records.
func (w *Web) sharedRoutes(read, write webhook.Role) []route {
	p, subs := &w.pages, w.pages.subscriptions
	return []route{
		{"/find", read, pageRoute, by{get: p.search.show}},
		{"/find/suggest", read, partRoute, by{get: p.search.suggest}},

		{"/subscriptions", read, pageRoute, by{get: subs.list}},
		{"/subscriptions/new", write, pageRoute, by{get: subs.newForm, post: subs.create}},
		{"/subscriptions/check-url", write, pageRoute, by{post: subs.checkURL}},
		{"/subscriptions/filters", write, pageRoute, by{post: subs.newFilters}},
		{"/subscriptions/{id}", read, pageRoute, of(subs.find, subs.show, nil)},
		{"/subscriptions/{id}/reconciliation", read, pageRoute, of(subs.find, subs.reconcile, nil)},
		{"/subscriptions/{id}/reconciliation/export", read, pageRoute, of(subs.find, subs.exportOwed, nil)},
		{"/subscriptions/{id}/edit", write, pageRoute, of(subs.existing, subs.editForm, subs.update)},
		{"/subscriptions/{id}/filters", write, pageRoute, of(subs.existing, nil, subs.editedFilters)},
		{"/subscriptions/{id}/ping", write, pageRoute, of(subs.existing, nil, subs.ping)},
		{"/subscriptions/{id}/probe", write, pageRoute, of(subs.existing, nil, subs.probe)},
		{"/subscriptions/{id}/test", write, pageRoute, of(subs.existing, nil, subs.test)},
		{"/subscriptions/{id}/pause", write, pageRoute, of(subs.existing, nil, subs.pause)},
		{"/subscriptions/{id}/resume", write, pageRoute, of(subs.existing, nil, subs.resume)},
		{"/subscriptions/{id}/rotate-secret", write, pageRoute, of(subs.existing, subs.confirmRotate, subs.rotateSecret)},
		{"/subscriptions/{id}/replay", write, pageRoute, of(subs.existing, subs.newReplay, subs.createReplay)},
		{"/subscriptions/{id}/replays/{replay}/cancel", write, pageRoute, of(subs.existing, nil, subs.cancelReplay)},
		{"/subscriptions/{id}/delete", write, pageRoute, of(subs.existing, subs.confirmDelete, subs.delete)},

		{"/deliveries/{id}", read, pageRoute, of(p.deliveries.read, p.deliveries.show, nil)},
		{"/deliveries/{id}/stream", read, partRoute, of(p.deliveries.read, p.deliveries.stream, nil)},
		{"/deliveries/{id}/body.json.txt", read, pageRoute, of(p.deliveries.read, p.deliveries.body, nil)},
		{"/deliveries/{id}/redeliver", write, pageRoute, of(p.deliveries.read, p.deliveries.confirmRedeliver, p.deliveries.redeliver)},
		{"/deliveries/{id}/cancel", write, pageRoute, of(p.deliveries.read, p.deliveries.confirmCancel, p.deliveries.cancel)},

		{"/events", read, pageRoute, by{get: p.events.list}},
		{"/events/arrivals", read, partRoute, by{get: p.events.showNewRows(webhook.EventList, p.events.arrived)}},
		{"/events/{program}/{id}", read, pageRoute, by{get: p.events.show}},
		{"/events/{program}/{id}/body.json.txt", read, pageRoute, by{get: p.events.body}},

		{"/event-types", read, pageRoute, by{get: p.eventTypes.list}},
		{"/event-types/{name}", read, pageRoute, by{get: p.eventTypes.show}},
	}
}

// withPrograms adds the list of programs and the status of the service to a request.
func (w *Web) withPrograms(do handler) handler {
	return func(r *request) (response, error) {
		if r.Method != http.MethodGet {
			r.loadFrame = func() { _ = w.readFrame(r) } // most forms are redirected
		} else if err := w.readFrame(r); err != nil {
			return response{}, err
		}
		return do(r)
	}
}

// readFrame reads what the page of a signed-in admin shows around its content. After an error the
// page lacks the program switch or the status.
func (w *Web) readFrame(r *request) (err error) {
	if r.programs, err = w.store.Programs().IDs(r.Context(), ui.MaxProgramChoices); err != nil {
		return err
	}
	r.status, err = w.status(r.Context())
	return err
}
