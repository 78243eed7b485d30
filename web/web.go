// Package web serves the admin UI: its pages, and the sessions of admins.
//
// Without a session every page only says how to sign in. Other sites cannot send
// forms to the pages. Text from outside is shown as text, never as markup. Pages
// work without JavaScript.
//
// # How a page is made
//
// A noun has its own files, token.go with the handlers and token.templ with the
// pages, its lines in routes, and, if the shared styles do not suffice, a file in
// assets/src that style.css there imports. A handler takes a *request and returns
// a response or an error:
//
//	func (h *tokenPages) show(r *request) (response, error) {
//		t, err := h.store.Token(r.Context(), r.PathValue("id"))
//		if err != nil {
//			return response{}, asProblem(err)
//		}
//		return response{page: tokenPage(h.frame(r, "Token "+t.Hint), &t)}, nil
//	}
//
// The handlers of a noun are methods of one type, such as tokenPages, which
// embeds what all share, a site. Web.serve runs them: it alone writes responses
// and logs errors.
//
// Links are GET. Changes are forms sent by POST, whose response is a redirect with
// a note of what was done. A mistake of the visitor is a *problem, or a page with
// status 422 that shows the form again with the errors at its fields
// ([ui.FieldErrors]). A page with a secret must say so (response.secret).
//
// A page is @ui.Layout(f) with @ui.PageTitle(f) or @ui.RecordTitle first, which
// has its one h1. Package ui has what pages are made of. The clock of the frame
// formats times: @f.Clock.Ago(t). Text from outside that stands in a line
// goes through [ui.Visible], a body through [ui.BodyBlock].
//
// go generate ./... renews the generated code of the pages and the assets. It is
// committed with its source.
package web

// Generated code names its source relative to the root of the module.
//go:generate go -C .. tool templ generate

import (
	"compress/gzip"
	"context"
	"crypto/rand"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"service/assets"
	"service/store"
	"service/web/ui"
	"service/webhook"
)

// Config configures the admin UI.
type Config struct {
	Store  *store.Store
	Logger *slog.Logger // nil logs nothing

	Version string    // of this binary
	Started time.Time // when this process started

	// Secure says that browsers see the pages over HTTPS, from this process or
	// from a proxy before it: cookies are never sent without it then.
	Secure bool

	// What stands in commands to copy. Program is this binary as it is typed
	// into a shell, quoted if need be; "" is service. BaseURL is where the API
	// and the pages are reached, without a final slash. CAFile is the
	// certificate that clients must be told to trust, "" when it is one they
	// trust anyway.
	Program string
	BaseURL string
	CAFile  string

	// Settings are the flags it runs with, without secrets. Certificates
	// returns those it shows; nil for none.
	Settings     []Setting
	Certificates func() []Certificate

	// Checks returns what the checks of the service come to; nil for none. It is
	// asked once a page of the system.
	Checks func(context.Context) []store.Finding

	// Rules are those for subscriptions, and MaxSubscriptions is how many a
	// program may have; 0 is no limit. BatchSize is the maximum number of
	// events in a delivery.
	Rules            webhook.SubscriptionRules
	MaxSubscriptions int
	BatchSize        int

	// AlertURL says that alerts are also sent to --alert-url, and Email that there is a
	// mail server for them.
	AlertURL, Email bool

	// Backlog returns what waits for the subscriptions of a program, or of all when
	// that is ""; nil when that is not known. It is asked once an overview.
	Backlog func(ctx context.Context, programID string) (webhook.Backlog, error)

	// Ready says whether the service accepts and delivers events: nil, or why
	// not, in words for admins. It is asked once an overview, and for other pages
	// at most once a second.
	Ready func(context.Context) error
}

// Web is the admin UI: a handler for every path that is not the API's. Its
// methods may be called from any goroutine.
//
// Sessions are in the store; links, and counts of wrong passwords, are kept in
// memory: a restart ends the ones and forgives the others.
type Web struct {
	*site
	sessions *sessions
	pages    pages
	mux      *http.ServeMux
	origins  *http.CrossOriginProtection
	noteKey  [32]byte        // signs what a page says once
	streams  chan struct{}   // one slot for each stream that runs
	life     context.Context // ends with EndStreams
	endLife  context.CancelFunc
	gzips    sync.Pool
}

// pages has the handlers, by noun.
type pages struct {
	signIn        *signInPages
	account       *accountPages
	overview      *overviewPages
	incidents     *incidentPages
	channels      *channelPages
	search        *searchPages
	subscriptions *subscriptionPages
	deliveries    *deliveryPages
	bulkRuns      *bulkRunPages
	events        *eventPages
	eventTypes    *eventTypePages
	tokens        *tokenPages
	audit         *auditPages
	system        *systemPages
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
		cfg: cfg, store: cfg.Store, logger: cfg.Logger, assets: assets.New(),
		curl: ui.Curl{BaseURL: cfg.BaseURL, CAFile: cfg.CAFile}, sectionPages: make(map[string]bool),
	}
	w := &Web{
		site:     shared,
		sessions: &sessions{store: cfg.Store, secure: cfg.Secure},
		origins:  http.NewCrossOriginProtection(),
		streams:  make(chan struct{}, maxStreams),
	}
	throttle, hashing := newTryLimiter(maxLimitKeys), newPasswordHasher()
	w.pages = pages{
		signIn: &signInPages{
			site: shared, sessions: w.sessions, setupCodes: newCodes(linkLife, maxLinks), signInCodes: newCodes(linkLife, maxLinks),
			limiter: throttle, hasher: hashing, noPassword: webhook.NoPassword(),
		},
		account:       &accountPages{site: shared, sessions: w.sessions, limiter: throttle, hasher: hashing},
		overview:      &overviewPages{shared},
		incidents:     &incidentPages{shared},
		channels:      &channelPages{shared},
		search:        &searchPages{shared},
		subscriptions: &subscriptionPages{site: shared, formCodes: newCodes(onceLife, maxOnce)},
		deliveries:    &deliveryPages{shared},
		bulkRuns:      &bulkRunPages{shared},
		events:        &eventPages{shared},
		eventTypes:    &eventTypePages{shared},
		tokens:        &tokenPages{shared},
		audit:         &auditPages{shared},
		system:        &systemPages{shared},
	}
	w.gzips.New = func() any { return gzip.NewWriter(nil) } // most of a megabyte each: reused
	rand.Read(w.noteKey[:])
	w.life, w.endLife = context.WithCancel(context.Background())
	w.mux = w.routes()
	return w
}

// routes returns every route of the pages. Without a session there is only
// signing in.
func (w *Web) routes() *http.ServeMux {
	p := &w.pages
	m := http.NewServeMux()
	anyone := func(path string, h by) { m.Handle(path, w.serve(h.handle)) }
	admins := func(path string, h by) {
		m.Handle(path, w.serve(p.signIn.requireSession(w.withPrograms(h.handle))))
		w.sectionPages[strings.TrimSuffix(path, "{$}")] = h.get != nil
	}
	// What pages request by themselves does not keep the session alive.
	streams := func(path string, h by) { m.Handle(path, w.serve(p.signIn.requireSessionUnnoted(h.handle))) }

	m.Handle(assets.Prefix, w.assets)
	m.Handle("/", w.serve(p.signIn.requireSession(notFound)))

	anyone("/setup/{code}", by{get: p.signIn.newFirstAdmin, post: p.signIn.createFirstAdmin})
	anyone("/sign-in", by{get: p.signIn.showSignIn, post: p.signIn.signIn})
	anyone("/sign-in/{code}", by{get: p.signIn.showLink, post: p.signIn.useLink})
	admins("/sign-out", by{post: p.signIn.signOut})

	admins("/{$}", by{get: p.overview.show})
	streams("/status", by{get: p.incidents.showStatus})
	admins("/find", by{get: p.search.show})
	streams("/find/suggest", by{get: p.search.suggest})

	admins("/incidents", by{get: p.incidents.list})
	admins("/incidents/{id}", by{get: p.incidents.show})

	admins("/subscriptions", by{get: p.subscriptions.list})
	streams("/subscriptions/arrivals", by{get: p.subscriptions.showNewRows(webhook.AllSubscriptionList, p.subscriptions.arrived)})
	admins("/subscriptions/export", by{get: p.subscriptions.export})
	admins("/subscriptions/new", by{get: p.subscriptions.newForm, post: p.subscriptions.create})
	admins("/subscriptions/check-url", by{post: p.subscriptions.checkURL})
	admins("/subscriptions/{id}", by{get: p.subscriptions.show})
	admins("/subscriptions/{id}/edit", by{get: p.subscriptions.editForm, post: p.subscriptions.update})
	admins("/subscriptions/{id}/ping", by{post: p.subscriptions.ping})
	admins("/subscriptions/{id}/probe", by{post: p.subscriptions.probe})
	admins("/subscriptions/{id}/test", by{post: p.subscriptions.test})
	admins("/subscriptions/{id}/pause", by{post: p.subscriptions.pause})
	admins("/subscriptions/{id}/resume", by{post: p.subscriptions.resume})
	admins("/subscriptions/{id}/rotate-secret", by{get: p.subscriptions.confirmRotate, post: p.subscriptions.rotateSecret})
	admins("/subscriptions/{id}/replay", by{get: p.subscriptions.newReplay, post: p.subscriptions.createReplay})
	admins("/subscriptions/{id}/replays/{replay}/cancel", by{post: p.subscriptions.cancelReplay})
	admins("/subscriptions/{id}/delete", by{get: p.subscriptions.confirmDelete, post: p.subscriptions.delete})

	w.deliveryRoutes(admins, streams)

	admins("/events", by{get: p.events.list})
	streams("/events/arrivals", by{get: p.events.showNewRows(webhook.EventList, p.events.arrived)})
	admins("/events/export", by{get: p.events.export})
	admins("/events/publish", by{get: p.events.newForm, post: p.events.publish})
	admins("/events/{program}/{id}", by{get: p.events.show})
	admins("/events/{program}/{id}/body.json.txt", by{get: p.events.body})
	w.settingRoutes(admins, streams)
	return m
}

// settingRoutes adds the pages of what changes seldom.
func (w *Web) settingRoutes(admins, streams func(path string, h by)) {
	p := &w.pages
	admins("/event-types", by{get: p.eventTypes.list})
	admins("/event-types/{name}", by{get: p.eventTypes.show})

	admins("/tokens", by{get: p.tokens.list})
	admins("/tokens/export", by{get: p.tokens.export})
	admins("/tokens/new", by{get: p.tokens.newForm, post: p.tokens.create})
	admins("/tokens/{id}", by{get: p.tokens.show})
	admins("/tokens/{id}/revoke", by{get: p.tokens.confirmRevoke, post: p.tokens.revoke})

	admins("/alerts", by{get: p.channels.list})
	admins("/alerts/new", by{get: p.channels.newForm, post: p.channels.create})
	admins("/alerts/{id}", by{get: p.channels.show})
	admins("/alerts/{id}/edit", by{get: p.channels.editForm, post: p.channels.update})
	admins("/alerts/{id}/test", by{post: p.channels.test})
	admins("/alerts/{id}/delete", by{get: p.channels.confirmDelete, post: p.channels.delete})

	admins("/system", by{get: p.system.show})
	admins("/system/release", by{post: p.system.releaseHold})
	admins("/audit", by{get: p.audit.list})
	streams("/audit/arrivals", by{get: p.audit.showNewRows(webhook.AuditList, p.audit.arrived)})
	admins("/audit/export", by{get: p.audit.export})

	admins("/preferences", by{get: p.account.showPreferences, post: p.account.savePreferences})
	admins("/account", by{get: p.account.show})
	admins("/account/password", by{post: p.account.changePassword})
	admins("/account/sessions/{id}/revoke", by{post: p.account.revokeSession})
	admins("/account/sign-out-everywhere", by{post: p.account.signOutEverywhere})
}

// deliveryRoutes adds the routes of deliveries and bulk runs.
func (w *Web) deliveryRoutes(admins, streams func(string, by)) {
	p := &w.pages
	admins("/deliveries", by{get: p.deliveries.list})
	streams("/deliveries/stream", by{get: p.deliveries.listStream})
	streams("/deliveries/arrivals", by{get: p.deliveries.showNewRows(webhook.AllDeliveryList, p.deliveries.arrived)})
	admins("/deliveries/count", by{get: p.deliveries.count})
	admins("/deliveries/export", by{get: p.deliveries.export})
	admins("/deliveries/redeliver", by{get: p.deliveries.confirmBulk(bulkRedeliver), post: p.deliveries.runBulk(bulkRedeliver)})
	admins("/deliveries/cancel", by{get: p.deliveries.confirmBulk(bulkCancel), post: p.deliveries.runBulk(bulkCancel)})
	streams("/deliveries/redeliver/count", by{get: p.deliveries.countBulk(bulkRedeliver)})
	streams("/deliveries/cancel/count", by{get: p.deliveries.countBulk(bulkCancel)})
	admins("/deliveries/{id}", by{get: p.deliveries.show})
	streams("/deliveries/{id}/stream", by{get: p.deliveries.stream})
	admins("/deliveries/{id}/body.json.txt", by{get: p.deliveries.body})
	admins("/deliveries/{id}/attempts/{number}/body.txt", by{get: p.deliveries.attemptBody})
	admins("/deliveries/{id}/redeliver", by{get: p.deliveries.confirmRedeliver, post: p.deliveries.redeliver})
	admins("/deliveries/{id}/cancel", by{get: p.deliveries.confirmCancel, post: p.deliveries.cancel})

	admins("/bulk-runs", by{get: p.bulkRuns.list})
	admins("/bulk-runs/{id}", by{get: p.bulkRuns.show})
	streams("/bulk-runs/{id}/stream", by{get: p.bulkRuns.stream})
	admins("/bulk-runs/{id}/cancel", by{post: p.bulkRuns.cancel})
}

// withPrograms tells a page of an admin what programs there are, and how the service
// is.
func (w *Web) withPrograms(do handler) handler {
	return func(r *request) (response, error) {
		if r.Method == http.MethodGet {
			var err error
			if r.programs, err = w.store.Programs().IDs(r.Context(), ui.MaxProgramChoices); err != nil {
				return response{}, err
			}
			if r.status, err = w.status(r.Context()); err != nil {
				return response{}, err
			}
		}
		return do(r)
	}
}
