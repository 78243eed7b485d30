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

// tokenPages are the pages of tokens.
type tokenPages struct{ *site }

// tokenRecords is a page of the list of tokens.
type tokenRecords struct {
	list   *ui.Listing
	tokens []webhook.Token
	pager  ui.Pager
	same   string // command that prints the list in a terminal
	failed string // the ID of this request if the rows could not be loaded, "" if they could
}

func (h *tokenPages) list(r *request) (response, error) {
	v, err := r.listing(webhook.TokenList)
	if err != nil {
		return response{}, err
	}
	t := tokenRecords{list: v, same: h.command("token list")}
	failed, status, err := h.loaded(r, v, func() (err error) {
		var total int
		t.tokens, total, err = h.store.Tokens().Page(r.Context(), r.program, &v.Query)
		t.pager = v.Pages(total)
		return err
	})
	if err != nil {
		return response{}, err
	}
	t.failed = failed
	return response{page: tokensPage(h.frame(r, "Tokens"), &t, h.tokenCommand(r.program)), status: status}, nil
}

func (h *tokenPages) show(r *request, t webhook.Token) (response, error) {
	revoke := ""
	if t.RevokedAt.IsZero() {
		revoke = h.command("token revoke " + t.ID)
	}
	return response{page: tokenPage(h.frame(r, "Token "+t.Hint+"…"), &t, revoke)}, nil
}

func (h *tokenPages) find(r *request) (webhook.Token, error) {
	t, err := h.store.Tokens().Get(r.Context(), r.PathValue("id"))
	return t, asProblem(err)
}

// tokenForm is the form of a new token.
type tokenForm struct {
	program, user, name string
	scopes              map[webhook.Scope]bool
	days                string // a key of tokenDays
	errors              []ui.FieldError
}

// tokenDays are the lifetimes of a token in days, by the value of the field; 0 means no expiry.
// tokenLives are the options of that field.
var (
	tokenDays  = map[string]int{"7": 7, "30": 30, "90": 90, "365": 365, "never": 0}
	tokenLives = []ui.Option{{Value: "7", Label: "7 days"}, {Value: "30", Label: "30 days"}, {Value: "90", Label: "90 days"},
		{Value: "365", Label: "1 year"}, {Value: "never", Label: "Never"}}
)

// tokenFields maps the parameters of errors to the fields of the form.
var tokenFields = map[string][2]string{
	"program": {"program", "Program"}, "user": {"user", "User"}, "name": {"name", "Name"},
	"scope": {"scope-" + string(webhook.ScopeWebhooksRead), "Scopes"}, "expires": {"days", "Expires after"},
}

// fullPreset is the name of the preset with fullScopes, all scopes of a program token.
const (
	fullPreset = "full"
	fullScopes = "webhooks.read,webhooks.write,events.read,events.write"
)

// scopePreset is a common choice of scopes.
type scopePreset struct{ name, label, scopes string }

var scopePresets = []scopePreset{
	{fullPreset, "Full access to a program", fullScopes},
	{"partner", "Partner", "webhooks.read,webhooks.write"},
	{"publisher", "Publisher", "events.write"},
	{"read", "Read only", "webhooks.read,events.read"},
	{"monitoring", "Monitoring", "metrics.read"},
	{string(webhook.ScopePlatform), "Platform", string(webhook.ScopePlatform)},
}

// platform reports whether the form creates a platform token, which has no program and only one
// scope.
func (t *tokenForm) platform() bool { return t.scopes[webhook.ScopePlatform] }

// choices are the scopes to choose from.
func (t *tokenForm) choices() []webhook.Scope {
	if t.platform() {
		return nil
	}
	return webhook.Scopes()
}

// scripted reports whether a script may apply a preset to the current form. The form of a platform
// token has other fields.
func (t *tokenForm) scripted(p scopePreset) bool {
	return !t.platform() && p.scopes != string(webhook.ScopePlatform)
}

// presetAddress is the address of the form with the scopes of a preset.
func (t *tokenForm) presetAddress(p scopePreset) string {
	values := url.Values{"scopes": {p.name}}
	if t.program != "" {
		values.Set(ui.ProgramParameter, t.program)
	}
	return ui.Address("/tokens/new", values)
}

// hasPreset reports whether exactly the scopes of a preset are selected.
func (t *tokenForm) hasPreset(p scopePreset) bool {
	names := strings.Split(p.scopes, ",")
	for _, name := range names {
		if !t.scopes[webhook.Scope(name)] {
			return false
		}
	}
	return len(names) == len(t.scopes)
}

func (h *tokenPages) newForm(r *request) (response, error) {
	f := tokenForm{program: r.program, days: "90", scopes: make(map[webhook.Scope]bool)}
	for _, p := range scopePresets {
		if p.name == r.URL.Query().Get("scopes") {
			for name := range strings.SplitSeq(p.scopes, ",") {
				f.scopes[webhook.Scope(name)] = true
			}
		}
	}
	return response{page: newTokenPage(h.frame(r, "New token"), &f)}, nil
}

// create creates a token. Only this response shows it.
func (h *tokenPages) create(r *request) (response, error) {
	form := r.PostForm
	f := tokenForm{
		program: strings.TrimSpace(form.Get("program")), user: strings.TrimSpace(form.Get("user")),
		name: strings.TrimSpace(form.Get("name")), days: form.Get("days"), scopes: make(map[webhook.Scope]bool),
	}
	n := webhook.NewToken{ProgramID: f.program, UserID: f.user, Name: f.name}
	for _, s := range form["scope"] {
		n.Scopes = append(n.Scopes, webhook.Scope(s))
		f.scopes[webhook.Scope(s)] = true
	}
	days, known := tokenDays[f.days]
	if f.platform() {
		f.program, n.ProgramID = "", ""
	}
	if days > 0 {
		n.ExpiresAt = r.clock.Now.AddDate(0, 0, days).UTC().Truncate(time.Millisecond)
	}
	var token webhook.Token
	var secret string
	var faults []webhook.Validation
	if !known {
		faults = append(faults, webhook.Validation{Code: webhook.InvalidValue, Parameter: "expires", Detail: "must be one of the options"})
	}
	if n.ProgramID == "" && !f.platform() && n.Check(r.clock.Now) == nil { // metrics of all programs: only on the command line
		faults = append(faults, webhook.CheckIdentifier("program", "")...)
	}
	err := validationError(faults)
	if faults == nil {
		err = h.store.Write(r, func(sw store.Write) (err error) {
			token, secret, err = sw.Tokens().Create(n, r.actor())
			return err
		})
	}
	if f.errors = ui.FieldErrors(err, tokenFields); f.errors != nil {
		return response{page: newTokenPage(h.frame(r, "New token"), &f), status: http.StatusUnprocessableEntity}, nil
	}
	if err != nil {
		return response{}, err
	}
	return response{page: madeTokenPage(h.frame(r, "Token created"), &token, secret, h.listCommand(&token)), secret: true}, nil
}

// listCommand returns a command with a first request that uses a new token.
func (h *tokenPages) listCommand(t *webhook.Token) string {
	if t.Platform() {
		return h.curl.Command("GET", "/v2/programs", "")
	}
	return h.curl.Command("GET", "/v2/webhooks/subscriptions", "")
}

func scopeNames(t *webhook.Token) []string {
	names := make([]string, len(t.Scopes))
	for i, s := range t.Scopes {
		names[i] = string(s)
	}
	return names
}

func (h *tokenPages) confirmRevoke(r *request, t webhook.Token) (response, error) {
	return response{page: revokePage(h.frame(r, "Revoke token "+t.Hint+"…"), &t)}, nil
}

func (h *tokenPages) revoke(r *request, before webhook.Token) (response, error) {
	err := h.store.Write(r, func(sw store.Write) error {
		_, err := sw.Tokens().Revoke(before.ID, r.actor())
		return err
	})
	return saved(err, tokenPath(before.ID), "Token revoked. Requests with it get 401.")
}

// tokenProgram names the program of a token.
func tokenProgram(t *webhook.Token) string {
	if t.ProgramID == "" {
		return "all programs"
	}
	return "program " + t.ProgramID
}

// tokenState returns the state of a token for [ui.StateBadge], and its word.
func tokenState(t *webhook.Token, now time.Time) (state, word string) {
	switch {
	case !t.RevokedAt.IsZero():
		return "failed", "revoked"
	case !t.Valid(now):
		return "pending", "expired"
	case !t.ExpiresAt.IsZero() && t.ExpiresAt.Sub(now) < 7*24*time.Hour:
		return "retryable", "expires soon"
	}
	return "success", "valid"
}

// scopeMeanings describes what each scope allows.
var scopeMeanings = map[webhook.Scope]string{
	webhook.ScopeWebhooksRead:  "read subscriptions and their deliveries",
	webhook.ScopeWebhooksWrite: "change subscriptions, ping, resend and replay",
	webhook.ScopeEventsRead:    "read events",
	webhook.ScopeEventsWrite:   "publish events",
	webhook.ScopeMetricsRead:   "read the metrics of the program, or of all programs with a token without one",
	webhook.ScopePlatform:      "create and change programs, tokens and event types, and act in every program",
}

// export writes the list of tokens as a file, without the tokens themselves.
func (h *tokenPages) export(r *request) (response, error) {
	var last *webhook.Token
	return h.exportList(r, webhook.TokenList, &export{
		noun: "tokens", action: webhook.ActionTokenExport,
		columns: []string{"id", "hint", "program_id", "user_id", "name", "scopes", "created_at", "expires_at", "revoked_at", "used_at"},
		page: func(q *webhook.ListQuery) (rows [][]any, more bool, err error) {
			page, err := h.store.Tokens().After(r.Context(), r.program, q, last)
			for i := range page {
				t := &page[i]
				last = t
				rows = append(rows, []any{t.ID, t.Hint, t.ProgramID, t.UserID, t.Name, scopeNames(t), t.CreatedAt, t.ExpiresAt, t.RevokedAt, t.UsedAt})
			}
			return rows, len(page) == q.Size, err
		},
	})
}
