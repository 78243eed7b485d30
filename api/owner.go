package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/julienschmidt/httprouter"

	"service/internal/move"
	"service/store"
	"service/store/doctor"
	"service/webhook"
)

// scopeOwner is the scope of routes that only [API.Owner] serves.
const scopeOwner webhook.Scope = "owner"

// The paths that a standby serves too.
const (
	promotePath     = "/v2/owner/promote"
	examinationPath = "/v2/owner/examination"
)

// OwnerConfig configures the owner's routes in addition to [Config]. Without a server, only the
// first two fields are set, and routes that need the others must not be requested.
type OwnerConfig struct {
	Version    string // of the binary, for the manifest of backups
	CatalogErr error  // what is wrong with the files of the event types

	SetupLink     func(context.Context) (string, error) // returns a new one-time URL that creates the first admin
	Examine       func(context.Context) []doctor.Finding
	AdminsChanged func(email string)             // called after an admin was created or got a new password
	Standbys      func(context.Context) []string // hosts of the running standbys
	Retention     time.Duration                  // how long events are kept
	Retry         *webhook.RetryPolicy           // decides what follows attempts that were in flight in an export
	Moves         *move.Source                   // moves programs to other installations
}

// ownerKey marks the context of a request of the owner.
type ownerKey struct{}

// Owner returns a handler of the API and of the routes of commands, for the owner of the data
// directory. Requests need no token and act like those of a platform token, but no limit applies to
// them, and their Idempotency-Key is not stored because no token owns it. Audit entries name the
// terminal. Internal errors are returned in full.
//
// The caller must make sure that only the owner can send requests. Owner must be called before the
// API serves its first request.
func (a *API) Owner(cfg OwnerConfig) http.Handler {
	router := httprouter.New()
	for _, rt := range cfg.routes() {
		a.metrics.add(routeKey{rt.method, rt.pattern})
		router.Handle(rt.method, rt.pattern, func(w http.ResponseWriter, r *http.Request, params httprouter.Params) {
			a.serve(&rt, w, r, params)
		})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.WithContext(context.WithValue(r.Context(), ownerKey{}, true))
		if serve, params, _ := router.Lookup(r.Method, r.URL.EscapedPath()); serve != nil {
			serve(w, r, params)
			return
		}
		a.ServeHTTP(w, r)
	})
}

// owner reports whether the request is one of [API.Owner].
func (req *request) owner() bool { return req.http.Context().Value(ownerKey{}) != nil }

// ownerToken returns the token that the owner's requests act with. It is not in the store.
func ownerToken() *webhook.Token {
	return &webhook.Token{UserID: webhook.Terminal, Scopes: []webhook.Scope{webhook.ScopePlatform}}
}

// routes returns the routes of the owner. They act in no program, and have no time limit.
func (cfg OwnerConfig) routes() []route {
	return []route{
		{method: "GET", pattern: "/v2/owner/tokens", scope: scopeOwner, handle: listAllTokens},
		{method: "POST", pattern: "/v2/owner/tokens", scope: scopeOwner, handle: posted(insertToken)},
		{method: "DELETE", pattern: "/v2/owner/tokens/:token_id", scope: scopeOwner, handle: revokeToken},
		{method: "GET", pattern: "/v2/owner/admins", scope: scopeOwner, handle: cfg.admins},
		{method: "POST", pattern: "/v2/owner/admins", scope: scopeOwner, handle: posted(cfg.createAdmin)},
		{method: "POST", pattern: "/v2/owner/admins/reset_password", scope: scopeOwner, handle: posted(cfg.resetPassword)},
		{method: "POST", pattern: "/v2/owner/admins/remove", scope: scopeOwner, handle: posted(cfg.removeAdmin)},
		{method: "POST", pattern: "/v2/owner/admins/logout", scope: scopeOwner, handle: posted(cfg.endSessions)},
		{method: "POST", pattern: "/v2/owner/setup_link", scope: scopeOwner, handle: cfg.setupLink},
		{method: "GET", pattern: "/v2/owner/audit", scope: scopeOwner, handle: cfg.audit},
		{method: "POST", pattern: "/v2/owner/audit/export", scope: scopeOwner, handle: cfg.exportAudit},
		{method: "POST", pattern: "/v2/owner/backup", scope: scopeOwner, handle: posted(cfg.backup)},
		{method: "POST", pattern: "/v2/owner/programs/space", scope: scopeOwner, handle: posted(cfg.exportSpace)},
		{method: "POST", pattern: "/v2/owner/programs/export", scope: scopeOwner, handle: posted(cfg.exportProgram)},
		{method: "POST", pattern: "/v2/owner/programs/import", scope: scopeOwner, handle: cfg.importProgram},
		{method: "POST", pattern: "/v2/owner/programs/move", scope: scopeOwner, handle: posted(cfg.moveProgram)},
		{method: "POST", pattern: "/v2/owner/key/rotate", scope: scopeOwner, handle: cfg.rotateKey},
		{method: "POST", pattern: "/v2/owner/release", scope: scopeOwner, handle: cfg.release},
		{method: "GET", pattern: "/v2/owner/records", scope: scopeOwner, handle: cfg.records},
		{method: "POST", pattern: "/v2/owner/events/missing", scope: scopeOwner, handle: posted(cfg.missingEvents)},
		{method: "POST", pattern: "/v2/owner/events/salvage", scope: scopeOwner, handle: posted(cfg.salvage)},
		{method: "GET", pattern: examinationPath, scope: scopeOwner, handle: func(req *request) (answer, error) {
			return answer{data: cfg.Examine(req.ctx)}, nil
		}},
		{method: "POST", pattern: promotePath, scope: scopeOwner, handle: func(*request) (answer, error) {
			return answer{}, webhook.NewError(webhook.CodeConflict, "This service is not a standby: it is already the primary.")
		}},
	}
}

// posted returns a handler that decodes the body of a request of the owner.
func posted[T any](handle func(*request, *T) (answer, error)) func(*request) (answer, error) {
	return func(req *request) (answer, error) {
		body, err := req.readJSON()
		if err != nil {
			return answer{}, err
		}
		var in T
		if json.Unmarshal(body, &in) != nil {
			return answer{}, webhook.NewError(webhook.CodeInvalid, "The request is not valid JSON.")
		}
		return handle(req, &in)
	}
}

// streamed returns a response that send writes. It does not wait for the replica.
func (req *request) streamed(send func(io.Writer) error) answer {
	req.acknowledged = true
	return answer{stream: send}
}

// streamError is the trailer with the error of a streamed response, escaped like a path. Without it
// the response is complete.
const streamError = "X-Error"

// stream writes a response of any size.
func (a *API) stream(req *request, send func(io.Writer) error) {
	header := req.w.Header()
	header.Set("X-Request-Id", req.id)
	header.Set("Trailer", streamError)
	req.writeUntil(time.Time{})
	if err := send(req.w); err != nil {
		header.Set(streamError, url.PathEscape(a.problem(req, err).Error()))
	}
}

// Progress is a line of the response to a move or a promotion.
type Progress struct {
	Text  string    `json:"text,omitempty"`
	State time.Time `json:"state,omitzero"` // of the newest change that a promoted standby has
}

// show sends a line of progress at once.
func (req *request) show(w io.Writer, line Progress) {
	if json.NewEncoder(w).Encode(line) == nil { // an error means that the client has disconnected
		_ = http.NewResponseController(req.w).Flush()
	}
}

func (cfg OwnerConfig) setupLink(req *request) (answer, error) {
	link, err := cfg.SetupLink(req.ctx)
	return answer{data: link}, err
}

func (cfg OwnerConfig) rotateKey(req *request) (answer, error) {
	r, err := req.api.store.RotateKey(req.ctx)
	if errors.Is(err, store.ErrKey) {
		return answer{}, webhook.NewError(webhook.CodeConflict, err.Error())
	} else if err != nil {
		return answer{}, err
	}
	if cfg.Standbys != nil {
		r.Standbys = cfg.Standbys(req.ctx)
	}
	return answer{data: r}, cfg.record(req, webhook.ActionKeyRotate, "", "re-encrypted "+webhook.Count(r.Secrets(), "secret"))
}

// release ends the hold after a restore.
func (cfg OwnerConfig) release(req *request) (answer, error) {
	return answer{}, req.api.store.Write(req.ctx, func(w store.Write) error {
		return w.Release(req.actor())
	})
}

// audit records an action of the owner in the write that performs it.
func (req *request) audit(w store.Write, action webhook.Action, programID, subjectID, detail string) error {
	e := req.actor()
	e.Action, e.ProgramID, e.SubjectID, e.Detail = action, programID, subjectID, detail
	return w.Audit(e)
}

// record records an action on a program in a write of its own. programID "" is none.
func (cfg OwnerConfig) record(req *request, action webhook.Action, programID, detail string) error {
	return req.api.store.Write(req.ctx, func(w store.Write) error { return req.audit(w, action, programID, programID, detail) })
}

// StandbyOwner configures the owner's routes of a standby. All fields must be set.
type StandbyOwner struct {
	// Promote makes the standby take over; force permits it even if the primary is alive. It
	// returns the time of the newest change that the standby has.
	Promote func(ctx context.Context, force bool, progress func(string)) (time.Time, error)
	Examine func() []doctor.Finding
	Refusal func() string // describes the standby, for commands that need the primary
	Logger  *slog.Logger
}

// Promotion is the request to promote a standby.
type Promotion struct {
	Force bool `json:"force"`
}

// Handler returns a standby's counterpart to the handler of [API.Owner].
func (s *StandbyOwner) Handler() http.Handler {
	a := &API{logger: s.Logger, metrics: newMetrics(), timeout: DefaultRequestTimeout}
	a.handle([]route{
		{method: "POST", pattern: promotePath, scope: scopeOwner, handle: posted(func(req *request, in *Promotion) (answer, error) {
			return req.streamed(func(w io.Writer) error {
				state, err := s.Promote(req.ctx, in.Force, func(text string) { req.show(w, Progress{Text: text}) })
				if err == nil {
					req.show(w, Progress{State: state})
				}
				return err
			}), nil
		})},
		{method: "GET", pattern: examinationPath, scope: scopeOwner, handle: func(*request) (answer, error) {
			return answer{data: s.Examine()}, nil
		}},
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.WithContext(context.WithValue(r.Context(), ownerKey{}, true))
		if serve, params, _ := a.router.Lookup(r.Method, r.URL.EscapedPath()); serve != nil {
			serve(w, r, params)
			return
		}
		a.serve(refusal(webhook.NewError(webhook.CodeConflict,
			s.Refusal()+" Run the command on the primary, or promote this standby first.")), w, r, nil)
	})
}
