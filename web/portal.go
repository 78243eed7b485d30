package web

import (
	"cmp"
	"net/http"
	"strings"
	"time"

	"service/internal/ratelimit"
	"service/store"
	"service/store/record"
	"service/web/ui"
	"service/webhook"
)

// The portal consists of a partner's pages, limited to one program. They are below portalBase and
// share the components of the admin pages; some are the same pages. A portal route accepts only the
// cookie of a portal session, an admin route only an admin's.

// portalBase begins the paths of the portal.
const portalBase = "/portal"

// portalLimit limits the requests for pages of each program's portal.
var portalLimit = ratelimit.Limit{Name: "portal", Burst: 200, Interval: 100 * time.Millisecond}

// inPortal reports whether a request is for the portal.
func inPortal(r *http.Request) bool {
	return r.URL.Path == portalBase || strings.HasPrefix(r.URL.Path, portalBase+"/")
}

// portalVisit is the visitor's part of a portal request.
type portalVisit struct {
	session webhook.PortalSession // the zero session without one
	secret  string                // in the session's cookie
	program *webhook.Program      // of the session; nil without one
	origins []string              // that may embed the response in an iframe
	framed  bool                  // the browser shows the page in an iframe of another site
}

// in reports whether there is a session.
func (v *portalVisit) in() bool { return v.program != nil }

// portalPages are the pages that exist only in the portal.
type portalPages struct {
	*site
	sessions *sessions
	pace     *ratelimit.Limiter
	roleOf   func(address string) webhook.Role // that a page or an action needs
}

// The cookies of a session. Within an iframe of another site, browsers send only cookies with
// SameSite=None, and keep partitioned cookies separate for each embedding site.
const (
	portalCookie       = "portal"
	framedPortalCookie = "portal-frame"
)

// portalNavigation lists the pages of partners.
var portalNavigation = []ui.Group{{Sections: []ui.Section{
	{Path: "/", Icon: "overview", Label: "Overview"},
	{Path: "/subscriptions", Icon: "subscriptions", Label: "Subscriptions"},
	{Path: "/deliveries", Icon: "deliveries", Label: "Deliveries"},
	{Path: "/events", Icon: "events", Label: "Events"},
	{Path: "/event-types", Icon: "types", Label: "Event types"},
	{Path: "/verify", Icon: "tokens", Label: "Signatures"},
}}}

// require passes on requests of partners whose role allows them. The role needed is reader or
// writer.
func (h *portalPages) require(need webhook.Role, do handler) handler {
	return func(r *request) (response, error) {
		if err := h.find(r); err != nil {
			return response{}, err
		}
		if !r.portal.in() {
			return response{}, portalEnded()
		}
		r.program = r.portal.program.ID
		if wait := h.pace.Allow(ratelimit.Try{Limit: portalLimit, Key: r.program}); wait > 0 {
			h.store.Reject(r.Context(), r.program)
			return response{}, &problem{status: http.StatusTooManyRequests, title: "Too many requests", text: "Try again in a few seconds.",
				retryAfter: wait}
		}
		has := r.portal.session.Role
		if !portalAllows(has, need) {
			return response{}, portalReadOnly()
		}
		ctx := store.ForLists(r.Context(), r.program)
		r.Request = r.WithContext(ui.WithAccess(ctx, func(address string) bool { return portalAllows(has, h.roleOf(address)) }))
		return do(r)
	}
}

// portalAllows reports whether a portal role allows what a route needs.
func portalAllows(has webhook.PortalRole, need webhook.Role) bool {
	switch need {
	case reader:
		return has.Allows(webhook.PortalRead)
	case writer:
		return has.Allows(webhook.PortalWrite)
	}
	return false
}

// find sets the session of r, if it has one, and where the response may be embedded.
func (h *portalPages) find(r *request) error {
	for _, name := range []string{framedPortalCookie, portalCookie} {
		c, err := r.Cookie(h.sessions.cookieName(name))
		if err != nil || strings.HasPrefix(c.Value, webhook.FramedSession) != (name == framedPortalCookie) {
			continue
		}
		p, good, err := h.store.Portal().Session(r.Context(), c.Value)
		if err != nil {
			return err
		}
		if p.ID == "" {
			continue
		}
		program, err := h.store.Programs().Get(r.Context(), p.ProgramID)
		if isCallerError(err) {
			continue
		}
		if err != nil {
			return err
		}
		// The iframe also shows the page that says that the session has ended.
		r.portal.origins, r.portal.framed = program.PortalOrigins, name == framedPortalCookie
		if good {
			r.portal.session, r.portal.secret, r.portal.program = p, c.Value, program
			return nil
		}
	}
	return nil
}

// link returns the open link of the path. The error is a problem that does not distinguish a used
// link from one that has expired or never existed.
func (h *portalPages) link(r *request) (webhook.PortalLink, error) {
	l, good, err := h.store.Portal().Link(r.Context(), r.PathValue("code"))
	if err != nil {
		return l, err
	}
	if !good {
		return l, h.invalidLink(r)
	}
	program, err := h.store.Programs().Get(r.Context(), l.ProgramID)
	if isCallerError(err) {
		return l, h.invalidLink(r)
	}
	if err == nil {
		r.portal.origins = program.PortalOrigins
		r.portal.framed = h.cfg.Secure && len(program.PortalOrigins) > 0 && r.Header.Get("Sec-Fetch-Dest") == "iframe"
	}
	return l, err
}

// invalidLink is the same for all links that do not work. It also tells a browser with a session
// that the session is still valid.
func (h *portalPages) invalidLink(r *request) error {
	if err := h.find(r); err != nil {
		return err
	}
	p := &problem{status: http.StatusNotFound, title: "This link is not valid",
		text: "A link works once and for a limited time. Ask for a new link."}
	if r.portal.in() {
		p.text = "A link works once and for a limited time. Your session in this browser is still open."
	}
	return p
}

// showLink shows a button and changes nothing, see followPage.
func (h *portalPages) showLink(r *request) (response, error) {
	if _, err := h.link(r); err != nil {
		return response{}, err
	}
	return response{page: followPage(h.frame(r, "Open the portal"),
		"Manage your webhooks: subscriptions, deliveries and events. The link works once. The session lasts up to 8 hours.",
		portalBase+"/link/"+r.PathValue("code"), "Continue"), secret: true}, nil
}

// useLink begins a session.
func (h *portalPages) useLink(r *request) (response, error) {
	if _, err := h.link(r); err != nil {
		return response{}, err
	}
	name, other := portalCookie, framedPortalCookie
	if r.portal.framed {
		name, other = other, name
	}
	replaced := ""
	if c, err := r.Cookie(h.sessions.cookieName(name)); err == nil {
		replaced = c.Value
	}
	var secret string
	err := h.store.Write(r, func(sw store.Write) (err error) {
		if r.portal.session, secret, err = sw.Portal().BeginSession(
			r.PathValue("code"), addressText(r), r.UserAgent(), replaced, r.portal.framed); err != nil {
			return err
		}
		p := &r.portal.session
		return sw.Audit(r.entry(webhook.ActionPortalSessionBegin, p.ProgramID, p.ID, string(p.Role)+", link "+p.LinkID))
	})
	if isCallerError(err) { // another request was first
		return response{}, h.invalidLink(r)
	}
	if err != nil {
		return response{}, err
	}
	cookies := []*http.Cookie{h.sessions.cookie(name, secret, webhook.PortalSessionLife)}
	if _, err := r.Cookie(h.sessions.cookieName(other)); err == nil && !r.portal.framed {
		removed := h.sessions.cookie(other, "", -1)
		removed.SameSite, removed.Partitioned = http.SameSiteNoneMode, true
		cookies = append(cookies, removed)
	}
	return response{location: "/", session: true, cookies: cookies}, nil
}

// signOut ends the session.
func (h *portalPages) signOut(r *request) (response, error) {
	name := portalCookie
	if r.portal.framed {
		name = framedPortalCookie
	}
	c, err := r.Cookie(h.sessions.cookieName(name))
	if err != nil {
		return response{}, err
	}
	err = h.store.Write(r, func(sw store.Write) error {
		if _, _, err := sw.Portal().EndSession(c.Value); err != nil {
			return err
		}
		p := &r.portal.session
		return sw.Audit(r.entry(webhook.ActionPortalSessionEnd, p.ProgramID, p.ID, "ended by the partner"))
	})
	if err != nil {
		return response{}, err
	}
	r.portal.program = nil
	return response{page: portalEndPage(h.frame(r, "Your session has ended")), cookies: []*http.Cookie{h.sessions.cookie(name, "", -1)}}, nil
}

// savePreferences saves the theme and the time zone.
func (h *portalPages) savePreferences(r *request) (response, error) {
	form := r.PostForm
	p := readPreferences(r.Request)
	if !p.read(form) {
		return response{}, &problem{status: http.StatusUnprocessableEntity, title: "Unknown time zone", text: "Nothing was changed."}
	}
	back := localPath(form.Get("back"), "")
	if back != portalBase && !strings.HasPrefix(back, portalBase+"/") {
		back = "/"
	}
	return response{location: back, cookies: []*http.Cookie{p.cookie(h.cfg.Secure)}}, nil
}

// adapt changes a cookie so that browsers send it from an iframe of another site.
func (v *portalVisit) adapt(c *http.Cookie) *http.Cookie {
	if v.framed {
		c.SameSite, c.Partitioned = http.SameSiteNoneMode, true
	}
	return c
}

// policy is the content security policy of a response, which only the origins of the program may
// embed. Origins contain only characters of host names, see [webhook.CheckPortalOrigins].
func (v *portalVisit) policy() string {
	if len(v.origins) == 0 {
		return policy
	}
	return strings.TrimSuffix(policy, "'none'") + strings.Join(v.origins, " ")
}

// portalFrame returns the frame of a page of the portal.
func (h *site) portalFrame(r *request, f *ui.Frame) {
	f.Portal = &ui.Portal{Name: cmp.Or(h.cfg.Portal.Name, "Webhooks"), Logo: h.brand.Logo, Stylesheet: h.brand.Stylesheet}
	f.Keys, f.Program, f.Programs, f.Status, f.Version = false, "", nil, nil, ""
	if !r.portal.in() {
		return
	}
	f.Portal.Program = cmp.Or(r.portal.program.Name, r.portal.program.ID)
	f.Portal.Role, f.Portal.EndsAt = string(r.portal.session.Role), r.portal.session.ExpiresAt
	f.Nav = portalNavigation
	if r.URL.Path == portalBase {
		f.Section = "/"
	}
	for _, s := range portalNavigation[0].Sections {
		if at := portalBase + s.Path; r.URL.Path == at || strings.HasPrefix(r.URL.Path, at+"/") {
			f.Section = s.Path
		}
	}
}

// portalProblem returns a problem in a partner's words, without how the service is run.
func portalProblem(p *problem) *problem {
	told := *p
	told.command, told.after = "", ""
	switch p.status {
	case http.StatusInternalServerError:
		told.text = "The request failed. Try again, and ask us if it fails again: the request ID below helps to find out why."
	case http.StatusServiceUnavailable:
		told.title, told.text = "Try again later", "This is not possible at the moment. Check whether the change is there before you repeat it."
	}
	return &told
}

// mine reports whether the visitor may see records of a program: admins see all programs, partners
// only their own.
func (r *request) mine(programID string) bool {
	return !inPortal(r.Request) || r.portal.in() && programID == r.portal.program.ID
}

// user is stored as the creator of records that the visitor creates.
func (r *request) user() string {
	if r.portal.in() {
		return record.PortalUser(r.portal.session.LinkID)
	}
	return record.AdminUser(r.admin)
}

// portalOverview is the first page of the portal: the state of the partner's endpoints, what to do,
// and the last 24 hours.
type portalOverview struct {
	rows      []subscriptionRow            // the most urgent first
	more      bool                         // not all subscriptions are listed
	incidents map[string]*webhook.Incident // open ones by subscription
	trouble   int                          // subscriptions that are failing, degraded or disabled
	day       *attemptStats
	failure   string // ID of the request if the subscriptions could not be loaded, "" if they could
}

// maxPortalRows is the number of subscriptions and incidents that the overview of the portal reads.
const maxPortalRows = 10

func (h *portalPages) overview(r *request) (response, error) {
	var o portalOverview
	v := &ui.Listing{Path: "/subscriptions", Query: webhook.ListQuery{Sort: webhook.AllSubscriptionList.Default, Size: maxPortalRows}}
	failure, status, err := h.loaded(r, v, func() error { return h.readOverview(r, &o, &v.Query) })
	if err != nil {
		return response{}, err
	}
	if v.Error != nil {
		return response{}, v.Error
	}
	o.failure = failure
	f := h.frame(r, "Overview")
	return response{page: portalOverviewPage(f, &o), status: status}, nil
}

// readOverview reads the page in a fixed number of reads.
func (h *portalPages) readOverview(r *request, o *portalOverview, q *webhook.ListQuery) (err error) {
	ctx := r.Context()
	var next string
	if o.rows, next, err = h.subscriptionRows(r, q); err != nil {
		return err
	}
	o.more = next != ""
	for i := range o.rows {
		switch o.rows[i].state.Health() {
		case webhook.HealthFailing, webhook.HealthDegraded, webhook.HealthDisabled:
			o.trouble++
		}
	}
	open, _, err := h.store.Incidents().Page(ctx, "", ofProgram(&webhook.ListQuery{
		Sort: webhook.AllIncidentList.Default, Size: webhook.MaxPageSize, Filters: map[string][]string{"status": {"open"}},
	}, r.program))
	if err != nil {
		return err
	}
	o.incidents = make(map[string]*webhook.Incident, len(open))
	for i := range open {
		open[i].ErrorFact = "" // for admins only
		o.incidents[open[i].SubscriptionID] = &open[i]
	}
	o.day, err = h.readStats(ctx, r.clock, r.program)
	return err
}

// headline is the conclusion of the page.
func (o *portalOverview) headline() string {
	switch {
	case o.failure != "" || len(o.rows) == 0:
		return "Overview"
	case o.trouble == 0:
		return "All endpoints accept deliveries"
	case o.trouble == 1:
		return "1 endpoint needs attention"
	}
	text := ui.Number(int64(o.trouble))
	if o.trouble == len(o.rows) && o.more {
		text = "At least " + text
	}
	return text + " endpoints need attention"
}

// todo says what a partner should do about a subscription, "" for nothing.
func (o *portalOverview) todo(s *subscriptionRow) string {
	i := o.incidents[s.ID]
	switch {
	case s.Status == webhook.HealthDisabled:
		return "Repair the endpoint, resume the subscription, and replay the missed events."
	case !s.Active:
		return "Resume it to receive new events."
	case i == nil:
		return ""
	}
	text := capitalized(incidentResult(i)) + "."
	if check := partnerCheck(i); check != "" {
		text += " " + check
	}
	return text
}
