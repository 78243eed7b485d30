package web

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

// programPortalPages are the pages on which an owner gives partners access to the portal.
type programPortalPages struct{ *site }

// programPortalPath returns the path of the portal settings of a program.
func programPortalPath(id string) string { return "/programs/" + url.PathEscape(id) + "/portal" }

// programPortal is the page of the portal of one program.
type programPortal struct {
	program  *webhook.Program
	sessions []webhook.PortalSession
	links    int // open links
	role     string
	life     string // of a new link
	origins  string // one per line
	errors   []ui.FieldError
	api, cli string
}

// portalLives are the choices for the lifetime of a link.
var portalLives = []ui.Option{{Value: "1h", Label: "1 hour"}, {Value: "24h", Label: "24 hours"}, {Value: "168h", Label: "7 days"}}

func (h *programPortalPages) read(r *request) (*programPortal, error) {
	program, err := h.store.Programs().Get(r.Context(), r.PathValue("id"))
	if err != nil {
		return nil, asProblem(err)
	}
	p := &programPortal{program: program, life: "24h", origins: strings.Join(program.PortalOrigins, "\n"),
		api: h.curl.Command("POST", "/v2/programs/"+url.PathEscape(program.ID)+"/portal_links", `{"role": "read"}`),
		cli: h.command("portal-link --program " + ui.ShellQuote(program.ID))}
	p.sessions, p.links, err = h.store.Portal().Sessions(r.Context(), program.ID)
	return p, err
}

func (h *programPortalPages) show(r *request, p *programPortal) (response, error) {
	return h.render(r, p, http.StatusOK), nil
}

func (h *programPortalPages) render(r *request, p *programPortal, status int) response {
	return response{page: programPortalPage(h.frame(r, "Portal of "+ui.Visible(p.program.ID)), p), status: status}
}

// createLink creates a link and shows it in this response only.
func (h *programPortalPages) createLink(r *request, p *programPortal) (response, error) {
	form := r.PostForm
	p.role, p.life = form.Get("role"), form.Get("life")
	n := webhook.NewPortalLink{ProgramID: p.program.ID, Role: webhook.PortalRole(p.role)}
	life, err := time.ParseDuration(p.life)
	n.ExpiresAt = r.clock.Now.Add(life)
	if err != nil {
		p.errors = []ui.FieldError{{ID: "life", Label: "Works for", Text: "must be one of the choices"}}
		return h.render(r, p, http.StatusUnprocessableEntity), nil
	}
	var l webhook.PortalLink
	var code string
	err = h.store.Write(r, func(sw store.Write) (err error) {
		l, code, err = sw.Programs().CreatePortalLink(n, r.actor())
		return err
	})
	if p.errors = ui.FieldErrors(err, map[string][2]string{"role": {"role", "Role"}, "expires_at": {"life", "Works for"}}); p.errors != nil {
		return h.render(r, p, http.StatusUnprocessableEntity), nil
	}
	if err != nil {
		return response{}, asProblem(err)
	}
	return response{secret: true, page: portalLinkCreatedPage(h.frame(r, "Portal link"), &l, h.cfg.BaseURL+webhook.PortalLinkPath(code))}, nil
}

// saveOrigins sets where the portal may be embedded.
func (h *programPortalPages) saveOrigins(r *request, p *programPortal) (response, error) {
	form := r.PostForm
	p.origins = form.Get("origins")
	origins := append([]string{}, strings.Fields(p.origins)...)
	if v := webhook.CheckPortalOrigins("origins", origins); v != nil {
		p.errors = []ui.FieldError{{ID: "origins", Label: "Origins", Text: v[0].Detail}}
		return h.render(r, p, http.StatusUnprocessableEntity), nil
	}
	err := h.store.Write(r, func(sw store.Write) error {
		_, before, err := sw.Programs().Put(p.program.ID, &webhook.ProgramFields{PortalOrigins: &origins}, r.actor())
		if err == nil && before == nil {
			err = webhook.NotFound("program") // the program was erased in the meantime
		}
		return err
	})
	return saved(err, programPortalPath(p.program.ID), "Saved.")
}

// end ends all sessions and links of the portal.
func (h *programPortalPages) end(r *request) (response, error) {
	id := r.PathValue("id")
	var sessions, links int64
	err := h.store.Write(r, func(sw store.Write) (err error) {
		if _, err := sw.Programs().Get(id); err != nil {
			return err
		}
		if sessions, links, err = sw.Portal().EndAccess(id); err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionPortalSessionEnd, id, id, webhook.Count(int(sessions), "session")+", "+
			webhook.Count(int(links), "link")))
	})
	return saved(err, programPortalPath(id),
		"Ended "+webhook.Count(int(sessions), "session")+" and "+webhook.Count(int(links), "link")+".")
}
