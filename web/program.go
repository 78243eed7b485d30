package web

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

// programPages are the pages of programs.
type programPages struct{ *site }

// A program's ID can be any word, but never begins with a hyphen.
const newProgramPath = "/programs/-/new"

// programTokens is how many of its valid tokens the program page shows.
const programTokens = 10

// programPath returns the path of the program page.
func programPath(id string) string { return "/programs/" + url.PathEscape(id) }

// programRow is a program with its statistics.
type programRow struct {
	webhook.Program
	webhook.ProgramStatistics
}

// programRecords is a page of the programs.
type programRecords struct {
	list     *ui.Listing
	rows     []programRow
	pager    ui.Pager
	defaults programDefaults
	curl     string
	failed   string // the ID of this request if the rows could not be loaded, "" if they could
}

// programDefaults are the limits of a program without limits of its own; 0 is no limit.
type programDefaults struct{ subscriptions, rate int }

func (h *programPages) defaults() programDefaults {
	return programDefaults{h.cfg.MaxSubscriptions, h.cfg.RateLimit}
}

func (h *programPages) list(r *request) (response, error) {
	v, err := r.listing(webhook.AllProgramList)
	if err != nil {
		return response{}, err
	}
	p := programRecords{list: v, defaults: h.defaults(), curl: h.curl.Command("GET", "/v2/programs", "")}
	failed, status, err := h.loaded(r, v, func() (err error) {
		var total int
		p.rows, total, err = h.rows(r, &v.Query)
		p.pager = v.Pages(total)
		return err
	})
	if err != nil {
		return response{}, err
	}
	p.failed = failed
	return response{page: programsPage(h.frame(r, "Programs"), &p), status: status}, nil
}

// rows returns a page of the programs with their statistics.
func (h *programPages) rows(r *request, q *webhook.ListQuery) ([]programRow, int, error) {
	programs, total, err := h.store.Programs().View(r.Context(), r.program, q)
	if err != nil {
		return nil, 0, err
	}
	rows, err := h.withStatistics(r, programs)
	return rows, total, err
}

func (h *programPages) withStatistics(r *request, programs []webhook.Program) ([]programRow, error) {
	ids := make([]string, len(programs))
	for i := range programs {
		ids[i] = programs[i].ID
	}
	statistics, err := h.store.Programs().Statistics(r.Context(), ids)
	if err != nil {
		return nil, err
	}
	rows := make([]programRow, len(programs))
	for i := range programs {
		rows[i] = programRow{programs[i], *statistics[programs[i].ID]}
	}
	return rows, nil
}

// programView is the page of one program.
type programView struct {
	programRow
	usable    bool // the program is neither being erased nor imported
	notice    string
	defaults  programDefaults
	backlog   webhook.Backlog
	incidents openIncidents
	stats     *attemptStats // of the last 24 hours
	tokens    []webhook.Token
	valid     int // tokens
	export    string
	curl      string
}

func (h *programPages) show(r *request, program *webhook.Program) (response, error) {
	ctx, id := r.Context(), program.ID
	rows, err := h.withStatistics(r, []webhook.Program{*program})
	if err != nil {
		return response{}, err
	}
	v := programView{
		programRow: rows[0], usable: program.Status() == "active", defaults: h.defaults(),
		export: h.command("program export " + ui.ShellQuote(id) + " " + ui.ShellQuote(id+".program")),
		curl:   h.curl.Command("GET", "/v2/programs/"+url.PathEscape(id), ""),
	}
	if !program.ErasingSince.IsZero() {
		e := h.store.Programs().Erasure(id, program.ErasingSince)
		v.notice = e.Notice()
	}
	if v.usable {
		if v.incidents, err = h.readOpenIncidents(ctx, id, overviewIncidents, overviewRows); err != nil {
			return response{}, err
		}
		if v.stats, err = h.readStats(ctx, r.clock, id); err != nil {
			return response{}, err
		}
		if h.cfg.Backlog != nil {
			if v.backlog, err = h.cfg.Backlog(ctx, id); err != nil {
				return response{}, err
			}
		}
		q, _ := webhook.TokenList.Parse(url.Values{"filter[state]": {"valid"}, "page[size]": {strconv.Itoa(programTokens)}})
		if v.tokens, v.valid, err = h.store.Tokens().Page(ctx, id, &q); err != nil {
			return response{}, err
		}
	}
	return response{page: programPage(h.frame(r, "Program "+id), &v)}, nil
}

func (h *programPages) find(r *request) (*webhook.Program, error) {
	p, err := h.store.Programs().Lookup(r.Context(), r.PathValue("id"))
	return p, asProblem(err)
}

// programForm is the form that creates a program, or changes one.
type programForm struct {
	id, name string
	limits   map[string]string // by the name of the limit in the API, as typed; "" is the default
	editing  bool
	defaults programDefaults
	errors   []ui.FieldError
}

// programLimitNames are the limits of a program by their names in the API.
var programLimitNames = [...]string{"max_subscriptions", "rate_limit", "max_in_flight"}

// programFields maps the parameters of errors to the fields of the form.
var programFields = map[string][2]string{
	"id": {"id", "ID"}, "name": {"name", "Name"}, "limits.max_subscriptions": {"max-subscriptions", "Subscriptions"},
	"limits.rate_limit": {"rate-limit", "Requests per minute"}, "limits.max_in_flight": {"max-in-flight", "Deliveries in flight"},
}

// programFieldOrder is the order of the fields in the form.
var programFieldOrder = []string{"id", "name", "limits.max_subscriptions", "limits.rate_limit", "limits.max_in_flight"}

// parse returns the fields of the form as the API parses them, so that both have the same rules.
func (f *programForm) parse() (webhook.ProgramFields, error) {
	limits := make(map[string]any)
	for name, text := range f.limits {
		limits[name] = nil
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			limits[name] = n
		} else if text != "" {
			limits[name] = text
		}
	}
	body, err := json.Marshal(map[string]any{"name": f.name, "limits": limits})
	if err != nil {
		return webhook.ProgramFields{}, err
	}
	fields, invalid := webhook.ParseProgram(body, f.id)
	var faults []webhook.Validation
	if !f.editing {
		faults = webhook.CheckIdentifier("id", f.id)
	}
	if invalid != nil {
		faults = append(faults, invalid.Validations...)
	}
	for i := range faults {
		faults[i].Detail = strings.ReplaceAll(faults[i].Detail, "or null", "or empty")
	}
	slices.SortStableFunc(faults, func(a, b webhook.Validation) int {
		return slices.Index(programFieldOrder, a.Parameter) - slices.Index(programFieldOrder, b.Parameter)
	})
	return fields, validationError(faults)
}

// readForm reads the form of a program.
func (h *programPages) readForm(r *request) *programForm {
	form := r.PostForm
	f := &programForm{id: strings.TrimSpace(form.Get("id")), name: strings.TrimSpace(form.Get("name")), limits: make(map[string]string),
		defaults: h.defaults()}
	for _, name := range programLimitNames {
		f.limits[name] = strings.TrimSpace(form.Get(name))
	}
	return f
}

func (h *programPages) newForm(r *request) (response, error) {
	f := programForm{id: r.program, defaults: h.defaults()}
	return response{page: programFormPage(h.frame(r, "New program"), &f)}, nil
}

func (h *programPages) create(r *request) (response, error) {
	f := h.readForm(r)
	fields, err := f.parse()
	if err == nil {
		err = h.store.Write(r, func(sw store.Write) error {
			_, before, err := sw.Programs().Put(f.id, &fields, r.actor())
			if err == nil && before != nil {
				return webhook.Invalid(webhook.Validation{Code: webhook.InvalidValue, Parameter: "id", Detail: "is the ID of another program"})
			}
			return err
		})
	}
	if f.errors = ui.FieldErrors(err, programFields); f.errors != nil {
		return response{page: programFormPage(h.frame(r, "New program"), f), status: http.StatusUnprocessableEntity}, nil
	}
	return saved(err, programPath(f.id), "Program created. Create a token next: the backend publishes events with it.")
}

func (h *programPages) editForm(r *request, p *webhook.Program) (response, error) {
	f := programForm{id: p.ID, name: p.Name, editing: true, defaults: h.defaults(), limits: map[string]string{
		"max_subscriptions": typedLimit(p.Limits.MaxSubscriptions), "rate_limit": typedLimit(p.Limits.RateLimit),
		"max_in_flight": typedLimit(p.Limits.MaxInFlight),
	}}
	return response{page: programFormPage(h.frame(r, "Edit program "+p.ID), &f)}, nil
}

func typedLimit(limit *int) string {
	if limit == nil {
		return ""
	}
	return strconv.Itoa(*limit)
}

func (h *programPages) update(r *request, p *webhook.Program) (response, error) {
	f := h.readForm(r)
	f.id, f.editing = p.ID, true
	fields, err := f.parse()
	if err == nil {
		err = h.store.Write(r, func(sw store.Write) error {
			_, before, err := sw.Programs().Put(p.ID, &fields, r.actor())
			if err == nil && before == nil { // the program was erased in the meantime
				return webhook.NotFound("program")
			}
			return err
		})
	}
	if f.errors = ui.FieldErrors(err, programFields); f.errors != nil {
		return response{page: programFormPage(h.frame(r, "Edit program "+p.ID), f), status: http.StatusUnprocessableEntity}, nil
	}
	return saved(err, programPath(p.ID), "Program saved. New limits apply at once.")
}

// programErasure is the form that confirms the erasure of a program.
type programErasure struct {
	programRow
	notice, typed string
	export        string
	errors        []ui.FieldError
}

func (h *programPages) erasure(r *request) (*programErasure, error) {
	p, err := h.find(r)
	if err != nil {
		return nil, err
	}
	rows, err := h.withStatistics(r, []webhook.Program{*p})
	if err != nil {
		return nil, err
	}
	e := h.store.Programs().Erasure(p.ID, p.ErasingSince)
	return &programErasure{programRow: rows[0], notice: e.Notice(), export: programPath(p.ID) + "#export"}, nil
}

func (h *programPages) confirmErase(r *request, e *programErasure) (response, error) {
	return response{page: erasePage(h.frame(r, "Erase program "+e.ID), e)}, nil
}

// erase begins to erase a program if the visitor typed its ID.
func (h *programPages) erase(r *request, e *programErasure) (response, error) {
	form := r.PostForm
	if e.typed = strings.TrimSpace(form.Get("confirm")); e.typed != e.ID {
		e.errors = []ui.FieldError{{ID: "confirm", Label: "Program ID", Text: "must be " + e.ID}}
		return response{page: erasePage(h.frame(r, "Erase program "+e.ID), e), status: http.StatusUnprocessableEntity}, nil
	}
	err := h.store.Write(r, func(sw store.Write) error {
		_, err := sw.Programs().Erase(e.ID, r.actor())
		return err
	})
	return saved(err, "/programs", "Erasing program "+e.ID+": its tokens are invalid, and nothing more is sent.")
}

// programBadge returns the state of a program for [ui.StateBadge], and its word.
func programBadge(p *programRow) (state, word string) {
	switch status := p.Status(); {
	case status != "active":
		return "pending", status
	case p.FailingSubscriptions > 0:
		return "failed", "failing"
	case p.OpenIncidents > 0:
		return "retryable", "incident"
	case p.Subscriptions == 0:
		return "pending", "empty"
	}
	return "success", "healthy"
}

// programName returns the name of a program, or else its ID.
func programName(p *webhook.Program) string {
	if p.Name != "" {
		return p.Name
	}
	return p.ID
}

// limitText describes a limit: the program's own, or the default.
func limitText(limit *int, def int) string {
	switch {
	case limit == nil && def == 0:
		return "no limit (default)"
	case limit == nil:
		return ui.Number(int64(def)) + " (default)"
	case *limit == 0:
		return "no limit"
	}
	return ui.Number(int64(*limit))
}

// limitsText lists a program's own limits, "" for none.
func limitsText(p *webhook.Program) string {
	var all []string
	for _, l := range []struct {
		limit      *int
		some, none string
	}{
		{p.Limits.MaxSubscriptions, " subscriptions", "unlimited subscriptions"}, {p.Limits.RateLimit, " requests/min", "unlimited requests"},
		{p.Limits.MaxInFlight, " in flight", ""},
	} {
		switch {
		case l.limit == nil:
		case *l.limit == 0:
			all = append(all, l.none)
		default:
			all = append(all, ui.Number(int64(*l.limit))+l.some)
		}
	}
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), ", ")
}
