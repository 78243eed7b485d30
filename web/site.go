package web

import (
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"service/assets"
	"service/store"
	"service/web/portal"
	"service/web/ui"
	"service/webhook"
)

// site contains the fields that the pages of all nouns share.
type site struct {
	cfg          Config
	store        pageStore
	logger       *slog.Logger
	assets       *assets.Assets
	curl         ui.Curl         // renders the examples of API requests
	sectionPages map[string]bool // the paths of sections with a page
	statuses     statusCache
	brand        portal.Brand
}

// navigation lists the sections, in order. A section without a route is not shown.
var navigation = []ui.Group{
	{Name: "Work", Sections: []ui.Section{
		{Path: "/", Icon: "overview", Label: "Overview"},
		{Path: "/incidents", Icon: "incidents", Label: "Incidents"},
		{Path: "/deliveries", Icon: "deliveries", Label: "Deliveries"},
		{Path: "/events", Icon: "events", Label: "Events"},
		{Path: "/subscriptions", Icon: "subscriptions", Label: "Subscriptions"},
	}},
	{Name: "Setup", Sections: []ui.Section{
		{Path: "/programs", Icon: "programs", Label: "Programs"},
		{Path: "/event-types", Icon: "types", Label: "Event types"},
		{Path: "/tokens", Icon: "tokens", Label: "Tokens"},
		{Path: "/alerts", Icon: "alerts", Label: "Alerts"},
	}},
	{Name: "System", Sections: []ui.Section{
		{Path: "/system", Icon: "system", Label: "System"},
		{Path: "/admins", Icon: "admin", Label: "Admins"},
		{Path: "/audit", Icon: "audit", Label: "Audit log"},
	}},
}

// rules returns the rules for input from r. Errors name flags of serve to admins, but to partners
// only if they run the service themselves.
func (h *site) rules(r *request) *webhook.SubscriptionRules {
	rules := h.cfg.Rules
	rules.ShowFlags = rules.ShowFlags || !r.portal.in()
	return &rules
}

// frame returns the frame of a page. Its section follows from the path of r, unless the handler
// sets another.
func (h *site) frame(r *request, title string) ui.Frame {
	if r.loadFrame != nil {
		r.loadFrame()
		r.loadFrame = nil
	}
	f := ui.Frame{
		Title: title, Stylesheet: h.assets.Path("style.css"), Script: h.assets.Path("app.js"), Icon: h.assets.Path("favicon.svg"),
		Version: h.cfg.Version, Binary: h.cfg.Program, Theme: r.theme, Clock: r.clock, Keys: r.keys,
		Admin: r.admin, Role: string(r.session.Role), Note: r.note,
		Program: r.program, Programs: r.programs, Status: r.status,
	}
	if r.Method == "GET" || r.Method == "HEAD" {
		f.Address = r.URL.RequestURI()
	}
	if inPortal(r.Request) {
		h.portalFrame(r, &f)
		return f
	}
	for _, g := range navigation {
		shown := ui.Group{Name: g.Name}
		for _, s := range g.Sections {
			if h.sectionPages[s.Path] {
				shown.Sections = append(shown.Sections, s)
			}
			if r.URL.Path == s.Path || s.Path != "/" && strings.HasPrefix(r.URL.Path, s.Path+"/") {
				f.Section = s.Path
			}
		}
		if shown.Sections != nil {
			f.Nav = append(f.Nav, shown)
		}
	}
	if f.Section == r.URL.Path {
		f.Switching = r.URL.Query()
		for _, name := range []string{ui.ProgramParameter, "page[cursor]", "page[number]"} {
			f.Switching.Del(name)
		}
	}
	return f
}

// eventNames returns the event types by which a list can be filtered, in the order of the catalog.
func (h *site) eventNames() []string {
	if h.cfg.Rules.Catalog == nil {
		return nil
	}
	var names []string
	for _, t := range h.cfg.Rules.Catalog.Types() {
		names = append(names, t.Name)
	}
	return names
}

// loaded calls read, which reads the rows of a list, unless v has an Error. It handles an error of
// read, which the page shows instead of the rows. A mistake of the caller becomes the Error of v. Any
// other error is logged, unless the client disconnected; failed is then the request ID to show. loaded
// returns [store.ErrBusy]. status is that of the page, 0 for 200.
func (h *site) loaded(r *request, v *ui.Listing, read func() error) (failed string, status int, _ error) {
	if v.Error != nil {
		return "", http.StatusBadRequest, nil
	}
	err := read()
	switch {
	case err == nil:
		return "", 0, nil
	case errors.As(err, &v.Error):
		return "", http.StatusBadRequest, nil
	case r.Context().Err() != nil, errors.Is(err, store.ErrBusy):
		return "", 0, err
	}
	h.log(r, err)
	return r.id, http.StatusInternalServerError, nil
}

// feedPager returns the pager of a page of a feed. next is the cursor of the next page; newer returns
// that of the previous one.
func feedPager(v *ui.Listing, next string, newer func() (string, error)) (ui.Pager, error) {
	if v.Query.Cursor == "" {
		return v.FeedPages("", next), nil
	}
	previous, err := newer()
	if err != nil {
		return ui.Pager{}, err
	}
	return v.FeedPages(previous, next), nil
}

// log logs an internal error. It logs the pattern of the path, since the path may
// contain the code of a sign-in link.
func (h *site) log(r *request, err error) {
	h.logger.Error("failed to serve an admin page", "request", r.Method+" "+r.Pattern, "request_id", r.id, "error", err)
}

// audit records an action that has no other write, such as an export.
func (h *site) audit(r *request, action webhook.Action, programID, subjectID, detail string) error {
	return h.store.Write(r, func(sw store.Write) error {
		return sw.Audit(r.entry(action, programID, subjectID, detail))
	})
}

// command returns a command line for this binary.
func (h *site) command(args string) string {
	data := ""
	if dir := h.store.Dir(); dir != "./data" {
		data = " --data " + ui.ShellQuote(dir)
	}
	return h.cfg.Program + " " + args + data
}

// hold returns the hold after a restore, nil for none.
func (h *site) hold() *store.Hold {
	if h, held := h.store.Holds().Current(); held {
		return &h
	}
	return nil
}
