// Package web is the admins' window: pages that show what the service does, and
// the sessions of those who look at them.
//
// It guarantees that without a session no page tells anything but how to sign
// in; that no page can be driven from another site; that text from outside is
// shown as text, never as markup; and that pages work without JavaScript.
//
// # How a page is made
//
// A noun has a file of its own, delivery.go with its handlers and
// delivery.templ with its pages, a line in routes, and, if the shared rules of
// style do not do, a file of its own in assets/src, which style.css there
// imports. A handler takes a *request and returns an answer or an error:
//
//	func (w *Web) tokens(r *request) (answer, error) {
//		v, err := r.listing(webhook.TokenList)
//		if err != nil {
//			return answer{}, err
//		}
//		tokens, total, err := w.cfg.Store.Tokens(r.Context(), r.program, &v.Query)
//		if err != nil {
//			return answer{}, err
//		}
//		return answer{page: tokensPage(w.frame(r, "Tokens"), v, tokens, total)}, nil
//	}
//
// Links are GET; what changes something is a form sent by POST, which answers
// with a location and a note of what was done. A mistake of the visitor is a
// *problem, or a page with status 422 that shows the form again with what is
// wrong at its fields ([ui.FieldErrors]). A page with a secret says so
// (answer.secret).
//
// A page is @ui.Layout(f) with @ui.PageTitle(f) or @ui.RecordTitle first, which
// has its one h1. Package ui has what pages are made of. Times are told by the
// clock of the frame: @f.Clock.Ago(t). Text from outside that stands in a line
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

// Config is what the admin UI is told by whoever starts it.
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
	// program may have; 0 is no limit. BatchSize is how many events a delivery
	// has at the most.
	Rules            webhook.SubscriptionRules
	MaxSubscriptions int
	BatchSize        int

	// Backlog returns how many active subscriptions of a program, or of all when
	// that is "", events wait for, and when the oldest of those was accepted, the
	// zero time for none; nil when that is not known. It is asked once an overview.
	Backlog func(ctx context.Context, programID string) (behind int, oldest time.Time, err error)

	// Ready says whether the service accepts and delivers events: nil, or why
	// not, in words for admins. It is asked once a page.
	Ready func(context.Context) error
}

// Web is the admin UI: a handler for every path that is not another door's.
// Its methods may be called from any goroutine.
//
// Sessions are in the store; links, and counts of wrong passwords, are kept in
// memory: a restart ends the ones and forgives the others.
type Web struct {
	cfg      Config
	assets   *assets.Assets
	curl     ui.Curl  // shows what pages do as requests to the API
	setup    *secrets // the links that make the first admin
	links    *secrets // those that sign in, by admin
	once     *secrets // the forms that work once, by session
	throttle *throttle
	hashing  *hashing
	origins  *http.CrossOriginProtection
	noteKey  [32]byte        // signs what a page says once
	streams  chan struct{}   // a place for each stream that runs
	life     context.Context // ends with EndStreams
	endLife  context.CancelFunc
	runs     runs // bulk actions on deliveries
	gzips    sync.Pool
	mux      *http.ServeMux

	noPassword webhook.PasswordHash // that is checked for admins who do not exist

	built map[string]bool // the paths of the pages that exist
}

// New returns the admin UI.
func New(cfg Config) *Web {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Program == "" {
		cfg.Program = "service"
	}
	w := &Web{
		cfg:      cfg,
		assets:   assets.New(),
		curl:     ui.Curl{BaseURL: cfg.BaseURL, CAFile: cfg.CAFile},
		setup:    newSecrets(linkLife, maxLinks),
		links:    newSecrets(linkLife, maxLinks),
		once:     newSecrets(onceLife, maxOnce),
		throttle: newThrottle(maxTried),
		hashing:  newHashing(),
		origins:  http.NewCrossOriginProtection(),
		streams:  make(chan struct{}, maxStreams),
		built:    make(map[string]bool),
	}
	w.gzips.New = func() any { return gzip.NewWriter(nil) } // each has most of a megabyte, which is not made anew for each page
	rand.Read(w.noteKey[:])
	w.life, w.endLife = context.WithCancel(context.Background())
	w.noPassword = webhook.NoPassword()
	w.mux = w.routes()
	return w
}

// sections are the pages of the navigation, in its order. One without a route
// is not shown.
var sections = []ui.Section{
	{Path: "/", Icon: "overview", Label: "Overview"},
	{Path: "/subscriptions", Icon: "subscriptions", Label: "Subscriptions"},
	{Path: "/deliveries", Icon: "deliveries", Label: "Deliveries"},
	{Path: "/events", Icon: "events", Label: "Events"},
	{Path: "/event-types", Icon: "types", Label: "Event types"},
	{Path: "/tokens", Icon: "tokens", Label: "Tokens"},
	{Path: "/system", Icon: "system", Label: "System"},
	{Path: "/audit", Icon: "audit", Label: "Audit"},
}

// routes is all that the pages answer. Anyone may ask for what is before
// signing in; the rest is for admins, and for what their pages ask for by
// themselves.
func (w *Web) routes() *http.ServeMux {
	m := http.NewServeMux()
	anyone := func(path string, h by) { m.Handle(path, w.serve(h.handle)) }
	admins := func(path string, h by) {
		m.Handle(path, w.serve(w.signedIn(w.withPrograms(h.handle))))
		w.built[strings.TrimSuffix(path, "{$}")] = h.get != nil
	}

	pages := func(path string, h by) { m.Handle(path, w.serve(w.stillSignedIn(h.handle))) }

	m.Handle(assets.Prefix, w.assets)
	anyone("/setup/{code}", by{get: w.askForAdmin, post: w.createFirstAdmin})
	anyone("/sign-in", by{get: w.askToSignIn, post: w.signIn})
	anyone("/sign-in/{code}", by{get: w.askToFollow, post: w.followLink})
	admins("/sign-out", by{post: w.signOut})

	admins("/{$}", by{get: w.overview})
	admins("/deliveries", by{get: w.deliveries})
	pages("/deliveries/stream", by{get: w.deliveryStream})
	admins("/deliveries/export", by{get: w.exportDeliveries})
	admins("/deliveries/redeliver", by{get: w.askBulk(bulkRedeliver), post: w.runBulk(bulkRedeliver)})
	admins("/deliveries/cancel", by{get: w.askBulk(bulkCancel), post: w.runBulk(bulkCancel)})
	admins("/deliveries/report", by{get: w.runReport})
	admins("/find", by{get: w.find})
	admins("/subscriptions", by{get: w.subscriptions})
	admins("/subscriptions/export", by{get: w.exportSubscriptions})
	admins("/subscriptions/new", by{get: w.askForSubscription, post: w.createSubscription})
	admins("/subscriptions/check-url", by{post: w.checkURL})
	admins("/subscriptions/{id}", by{get: w.subscription})
	admins("/subscriptions/{id}/edit", by{get: w.askToEdit, post: w.editSubscription})
	admins("/subscriptions/{id}/ping", by{post: w.pingSubscription})
	admins("/subscriptions/{id}/pause", by{post: w.pauseSubscription})
	admins("/subscriptions/{id}/resume", by{post: w.resumeSubscription})
	admins("/subscriptions/{id}/rotate-secret", by{get: w.askToRotate, post: w.rotateSecret})
	admins("/subscriptions/{id}/replay", by{get: w.askToReplay, post: w.createReplay})
	admins("/subscriptions/{id}/replays/{replay}/cancel", by{post: w.cancelReplay})
	admins("/subscriptions/{id}/delete", by{get: w.askToDelete, post: w.deleteSubscription})
	admins("/preferences", by{get: w.preferences, post: w.prefer})
	admins("/account", by{get: w.account})
	admins("/account/password", by{post: w.changePassword})
	admins("/account/sessions/{id}/revoke", by{post: w.revokeSession})
	admins("/account/sign-out-everywhere", by{post: w.signOutEverywhere})
	admins("/system", by{get: w.system})
	admins("/system/release", by{post: w.releaseHeld})
	admins("/tokens", by{get: w.tokenList})
	admins("/tokens/export", by{get: w.exportTokens})
	admins("/tokens/new", by{get: w.newToken, post: w.createToken})
	admins("/tokens/{id}", by{get: w.token})
	admins("/tokens/{id}/revoke", by{get: w.askToRevoke, post: w.revokeToken})
	admins("/audit", by{get: w.auditList})
	admins("/audit/export", by{get: w.exportAudit})
	admins("/deliveries/{id}", by{get: w.delivery})
	pages("/deliveries/{id}/stream", by{get: w.oneDeliveryStream})
	admins("/deliveries/{id}/body.json.txt", by{get: w.deliveryBody})
	admins("/deliveries/{id}/attempts/{number}/body.txt", by{get: w.attemptBody})
	admins("/deliveries/{id}/redeliver", by{get: w.askToRedeliver, post: w.redeliver})
	admins("/deliveries/{id}/cancel", by{get: w.askToCancel, post: w.cancelDelivery})
	admins("/events", by{get: w.eventList})
	admins("/events/export", by{get: w.exportEvents})
	admins("/events/publish", by{get: w.askToPublish, post: w.publishEvent})
	admins("/events/{program}/{id}", by{get: w.event})
	admins("/events/{program}/{id}/body.json.txt", by{get: w.eventBody})
	admins("/event-types", by{get: w.eventTypeList})
	admins("/event-types/{name}", by{get: w.eventType})
	m.Handle("/", w.serve(w.signedIn(notFound)))
	return m
}

// withPrograms tells a page of an admin what programs there are.
func (w *Web) withPrograms(do handler) handler {
	return func(r *request) (answer, error) {
		if r.Method == http.MethodGet {
			var err error
			if r.programs, err = w.cfg.Store.ProgramIDs(r.Context(), ui.MaxProgramChoices); err != nil {
				return answer{}, err
			}
		}
		return do(r)
	}
}
