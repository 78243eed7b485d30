package control

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"service/internal/archive"
	"service/internal/move"
	"service/store"
	"service/webhook"
)

// Server handles the requests of commands in a running server. Its fields are set before its
// handler is used.
type Server struct {
	Store         AuditedStore
	SetupLink     func(context.Context) (string, error) // returns a new one-time URL that creates the first admin
	BaseURL       string                                // of the pages, without a trailing slash
	Examine       func(ctx context.Context, reading time.Duration) []store.Finding
	AdminsChanged func(email string)             // called after an admin was created or got a new password
	Catalog       *webhook.Catalog               // validates salvaged events
	Retention     time.Duration                  // how long events are kept
	Retry         webhook.RetryPolicy            // decides what follows attempts that were in flight in an export
	API           http.Handler                   // serves the API to the owner, see [api.API.Owner]
	Moves         *move.Source                   // moves programs to other installations
	Standbys      func(context.Context) []string // hosts of the standbys that run
	Logger        *slog.Logger
}

// Handler returns the handler of the socket. It serves the API below /v2/, where commands that
// can also use HTTPS send the same requests.
func (s *Server) Handler() http.Handler {
	commands := s.commands()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v2/") {
			s.API.ServeHTTP(w, r)
			return
		}
		commands.ServeHTTP(w, r.WithContext(store.ForLists(r.Context(), "")))
	})
}

// commands returns the handler of the requests that only commands send.
func (s *Server) commands() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /examination", s.respond(func(r *http.Request) (any, error) {
		return s.Examine(r.Context(), examineTime), nil
	}))
	m.HandleFunc("POST /tokens", s.respond(func(r *http.Request) (any, error) {
		request, err := decode[webhook.NewToken](r)
		if err != nil {
			return nil, err
		}
		token, secret, err := s.Store.CreateToken(r.Context(), request)
		return createdToken{token, secret}, err
	}))
	m.HandleFunc("GET /tokens", s.respond(func(r *http.Request) (any, error) {
		return s.Store.Tokens(r.Context())
	}))
	m.HandleFunc("POST /tokens/{id}/revoke", s.respond(func(r *http.Request) (any, error) {
		return s.Store.RevokeToken(r.Context(), r.PathValue("id"))
	}))
	m.HandleFunc("POST /portal-links", s.respond(func(r *http.Request) (any, error) {
		request, err := decode[webhook.NewPortalLink](r)
		if err != nil {
			return nil, err
		}
		link, code, err := s.Store.CreatePortalLink(r.Context(), request)
		return createdPortalLink{link, s.BaseURL + webhook.PortalLinkPath(code)}, err
	}))
	m.HandleFunc("GET /programs", s.respond(func(r *http.Request) (any, error) {
		return s.Store.Programs(r.Context())
	}))
	m.HandleFunc("POST /release", s.respond(func(r *http.Request) (any, error) {
		return struct{}{}, s.Store.Release(r.Context())
	}))
	m.HandleFunc("POST /key/rotate", s.respond(func(r *http.Request) (any, error) {
		rotation, err := s.Store.RotateKey(r.Context())
		rotation.Standbys = s.Standbys(r.Context())
		switch {
		case errors.Is(err, store.ErrKey):
			err = webhook.NewError(webhook.CodeConflict, err.Error())
		case err == nil:
			s.Logger.Info("replaced the secret key", "file", rotation.File, "secrets", rotation.Secrets())
		}
		return rotation, err
	}))
	s.handlePrograms(m)
	s.handleAudit(m)
	m.HandleFunc("POST /backup", s.backup)
	m.HandleFunc("POST /promote", s.respond(func(*http.Request) (any, error) {
		return nil, webhook.NewError(webhook.CodeConflict, "This service is not a standby: it is already the primary.")
	}))
	m.HandleFunc("POST /setup-link", s.respond(func(r *http.Request) (any, error) {
		link, err := s.SetupLink(r.Context())
		return setupLink{link}, err
	}))
	s.handleAdmins(m)
	s.handleSalvage(m)
	limited := http.MaxBytesHandler(m, 1<<20)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == importPath {
			m.ServeHTTP(w, r) // the body is as large as the program
			return
		}
		limited.ServeHTTP(w, r)
	})
}

// handleAdmins registers the commands about admins.
func (s *Server) handleAdmins(m *http.ServeMux) {
	m.HandleFunc("GET /admins", s.respond(func(r *http.Request) (any, error) {
		return s.Store.Admins(r.Context())
	}))
	m.HandleFunc("POST /admins", s.respond(func(r *http.Request) (any, error) {
		request, err := decode[adminRequest](r)
		if err != nil {
			return nil, err
		}
		defer s.AdminsChanged(request.Email)
		return s.Store.CreateAdmin(r.Context(), request.Email, request.Role, request.Hash)
	}))
	m.HandleFunc("POST /admins/reset-password", s.respond(func(r *http.Request) (any, error) {
		request, err := decode[adminRequest](r)
		if err != nil {
			return nil, err
		}
		defer s.AdminsChanged(request.Email)
		return s.Store.ResetPassword(r.Context(), request.Email, request.Hash, request.RemovePasskeys)
	}))
	m.HandleFunc("POST /admins/remove", s.respond(func(r *http.Request) (any, error) {
		request, err := decode[adminRequest](r)
		if err != nil {
			return nil, err
		}
		return endedSessions{}, s.Store.RemoveAdmin(r.Context(), request.Email)
	}))
	m.HandleFunc("POST /admins/logout", s.respond(func(r *http.Request) (any, error) {
		request, err := decode[adminRequest](r)
		if err != nil {
			return nil, err
		}
		ended, err := s.Store.EndSessions(r.Context(), request.Email)
		return endedSessions{ended}, err
	}))
}

type createdToken struct {
	Token  webhook.Token `json:"token"`
	Secret string        `json:"secret"`
}

// adminRequest has the email address of an admin, the role of a new one, and the hash of a new
// password if there is one.
type adminRequest struct {
	Email string               `json:"email"`
	Role  webhook.Role         `json:"role,omitempty"`
	Hash  webhook.PasswordHash `json:"password_hash,omitempty"`

	RemovePasskeys bool `json:"remove_passkeys,omitempty"` // with reset-password
}

// decode parses the body of a request.
func decode[T any](r *http.Request) (request T, err error) {
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		return request, webhook.NewError(webhook.CodeInvalid, "The request is not valid JSON.")
	}
	return request, nil
}

// endedSessions has the number of ended sessions.
type endedSessions struct {
	Ended int `json:"ended"`
}

type setupLink struct {
	URL string `json:"url"`
}

// respond returns a handler that writes the result of do as JSON. Only this function writes
// responses and logs errors, except for streams.
func (s *Server) respond(do func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		value, err := do(r)
		if err == nil && r.Method != http.MethodGet && value != (streamed{}) && s.Store.Store != nil {
			err = s.Store.Replica().Acknowledge(r.Context())
		}
		status := http.StatusOK
		var refused *webhook.Error
		switch {
		case errors.As(err, &refused):
			status, value = http.StatusBadRequest, refused
		case err != nil:
			s.Logger.Error("request on the admin socket failed", "request", r.Method+" "+r.URL.Path, "error", err)
			status, value = http.StatusInternalServerError, webhook.NewError(webhook.CodeInternal, "The server failed. Its log has the error.")
		case value == streamed{}:
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(value) // an error means that the client is gone
	}
}

// streamed is the result of a request whose handler writes the response itself.
type streamed struct{}

// backup responds with the input of [archive.Write]. On an error it aborts the connection, so
// that the client does not mistake the response for a complete one.
func (s *Server) backup(w http.ResponseWriter, r *http.Request) {
	var source *archive.Source
	began := time.Now()
	s.respond(func(r *http.Request) (any, error) {
		request, err := decode[archive.Request](r)
		if err != nil {
			return nil, err
		}
		source, err = s.Store.source(r.Context(), &request)
		return streamed{}, err
	})(w, r)
	if source == nil {
		return // respond has written the error
	}
	w.Header().Set("Content-Type", "application/x-tar")
	err := errors.Join(source.Send(w), source.Close())
	if err != nil {
		s.Logger.Error("request on the admin socket failed", "request", r.Method+" "+r.URL.Path, "error", err)
		panic(http.ErrAbortHandler)
	}
	s.Logger.Info("sent a backup", "bytes", source.Bytes(), "duration", time.Since(began))
}

// examineTime limits the check of the database in a running server.
const examineTime = 3 * time.Second

// Standby handles the requests of commands in a standby. Its fields are set before its handler
// is used.
type Standby struct {
	// Promote makes the standby take over, with force even if the primary is alive. It returns
	// the time of the newest change that the standby has.
	Promote func(ctx context.Context, force bool, progress func(string)) (time.Time, error)
	Examine func() []store.Finding
	Refusal func() string // describes the standby, to commands that need the primary
	Logger  *slog.Logger
}

// Handler returns the handler of the socket.
func (s *Standby) Handler() http.Handler {
	m := http.NewServeMux()
	respond := (&Server{Logger: s.Logger}).respond
	m.HandleFunc("POST /promote", s.promote)
	m.HandleFunc("GET /examination", respond(func(*http.Request) (any, error) { return s.Examine(), nil }))
	m.HandleFunc("/", respond(func(*http.Request) (any, error) {
		return nil, webhook.NewError(webhook.CodeConflict,
			s.Refusal()+" Run the command on the primary, or promote this standby first.")
	}))
	return m
}

type promoteRequest struct {
	Force bool `json:"force"`
}

// promoteLine is a line of the response to a promotion: progress or, in the last line, the
// result.
type promoteLine struct {
	Progress string         `json:"progress,omitempty"`
	State    *time.Time     `json:"state,omitempty"`
	Error    *webhook.Error `json:"error,omitempty"`
}

// promote streams progress while the standby waits for the expiry of the lease.
func (s *Standby) promote(w http.ResponseWriter, r *http.Request) {
	request, err := decode[promoteRequest](r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines, flush := json.NewEncoder(w), http.NewResponseController(w).Flush
	send := func(line promoteLine) {
		if lines.Encode(line) == nil { // an error means that the client is gone
			_ = flush()
		}
	}
	state, err := s.Promote(r.Context(), request.Force, func(text string) { send(promoteLine{Progress: text}) })
	last := promoteLine{State: &state}
	if err != nil && !errors.As(err, &last.Error) {
		s.Logger.Error("request on the admin socket failed", "request", r.Method+" "+r.URL.Path, "error", err)
		last.Error = webhook.NewError(webhook.CodeInternal, "The standby failed. Its log has the error.")
	}
	send(last)
}
