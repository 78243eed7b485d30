package control

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"service/internal/archive"
	"service/store"
	"service/webhook"
)

// Server answers the commands of a running server. Its fields are set before its
// handler is used.
type Server struct {
	Store         AuditedStore
	SetupLink     func(context.Context) (string, error) // returns a new one-time URL of the form that creates the first admin
	Examine       func(ctx context.Context, reading time.Duration) []store.Finding
	AdminsChanged func(email string) // is called when an admin was created or has a new password
	Catalog       *webhook.Catalog   // checks events that are salvaged
	Retention     time.Duration      // how long events are kept
	Logger        *slog.Logger
}

// Handler returns the handler of the socket.
func (s *Server) Handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /examination", s.answer(func(r *http.Request) (any, error) {
		return s.Examine(r.Context(), examineTime), nil
	}))
	m.HandleFunc("POST /tokens", s.answer(func(r *http.Request) (any, error) {
		var asked webhook.NewToken
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			return nil, webhook.NewError(webhook.CodeInvalid, "The request cannot be read.")
		}
		token, secret, err := s.Store.CreateToken(r.Context(), asked)
		return createdToken{token, secret}, err
	}))
	m.HandleFunc("GET /tokens", s.answer(func(r *http.Request) (any, error) {
		return s.Store.Tokens(r.Context())
	}))
	m.HandleFunc("POST /tokens/{id}/revoke", s.answer(func(r *http.Request) (any, error) {
		return s.Store.RevokeToken(r.Context(), r.PathValue("id"))
	}))
	m.HandleFunc("POST /release", s.answer(func(r *http.Request) (any, error) {
		return struct{}{}, s.Store.Release(r.Context())
	}))
	m.HandleFunc("POST /key/rotate", s.answer(func(r *http.Request) (any, error) {
		rotation, err := s.Store.RotateKey(r.Context())
		switch {
		case errors.Is(err, store.ErrKey):
			err = webhook.NewError(webhook.CodeConflict, err.Error())
		case err == nil:
			s.Logger.Info("the secret key is replaced", "file", rotation.File, "secrets", rotation.Secrets())
		}
		return rotation, err
	}))
	m.HandleFunc("POST /backup", s.backup)
	m.HandleFunc("POST /promote", s.answer(func(*http.Request) (any, error) {
		return nil, webhook.NewError(webhook.CodeConflict, "The service that runs here is no standby: it serves already.")
	}))
	m.HandleFunc("POST /setup-link", s.answer(func(r *http.Request) (any, error) {
		link, err := s.SetupLink(r.Context())
		return setupLink{link}, err
	}))
	m.HandleFunc("GET /admins", s.answer(func(r *http.Request) (any, error) {
		return s.Store.Admins(r.Context())
	}))
	m.HandleFunc("POST /admins", s.answer(func(r *http.Request) (any, error) {
		asked, err := readAdmin(r)
		if err != nil {
			return nil, err
		}
		defer s.AdminsChanged(asked.Email)
		return s.Store.CreateAdmin(r.Context(), asked.Email, asked.Hash)
	}))
	m.HandleFunc("POST /admins/reset-password", s.answer(func(r *http.Request) (any, error) {
		asked, err := readAdmin(r)
		if err != nil {
			return nil, err
		}
		defer s.AdminsChanged(asked.Email)
		ended, err := s.Store.ResetPassword(r.Context(), asked.Email, asked.Hash)
		return endedSessions{ended}, err
	}))
	m.HandleFunc("POST /admins/remove", s.answer(func(r *http.Request) (any, error) {
		asked, err := readAdmin(r)
		if err != nil {
			return nil, err
		}
		return endedSessions{}, s.Store.RemoveAdmin(r.Context(), asked.Email)
	}))
	m.HandleFunc("POST /admins/logout", s.answer(func(r *http.Request) (any, error) {
		asked, err := readAdmin(r)
		if err != nil {
			return nil, err
		}
		ended, err := s.Store.EndSessions(r.Context(), asked.Email)
		return endedSessions{ended}, err
	}))
	s.handleSalvage(m)
	return http.MaxBytesHandler(m, 1<<20)
}

type createdToken struct {
	Token  webhook.Token `json:"token"`
	Secret string        `json:"secret"`
}

// adminRequest names an admin, and has the hash of a new password, "" for none.
type adminRequest struct {
	Email string               `json:"email"`
	Hash  webhook.PasswordHash `json:"password_hash,omitempty"`
}

func readAdmin(r *http.Request) (asked adminRequest, err error) {
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		return asked, webhook.NewError(webhook.CodeInvalid, "The request cannot be read.")
	}
	return asked, nil
}

// endedSessions is how many sessions have ended.
type endedSessions struct {
	Ended int `json:"ended"`
}

type setupLink struct {
	URL string `json:"url"`
}

// answer returns a handler that writes what do returns. It is the one place that
// writes responses, and that logs.
func (s *Server) answer(do func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		value, err := do(r)
		if err == nil && r.Method != http.MethodGet && value != (streamed{}) && s.Store.Store != nil {
			err = s.Store.Acknowledge(r.Context())
		}
		status := http.StatusOK
		var mistake *webhook.Error
		switch {
		case errors.As(err, &mistake):
			status, value = http.StatusBadRequest, mistake
		case err != nil:
			s.Logger.Error("admin socket", "request", r.Method+" "+r.URL.Path, "error", err)
			status, value = http.StatusInternalServerError, webhook.NewError(webhook.CodeInternal, "The server failed; its log says why.")
		case value == streamed{}:
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(value) // who asked is gone if this fails
	}
}

// streamed is the answer of a request that is answered by its handler.
type streamed struct{}

// backup answers with what [archive.Write] makes an archive of. An answer
// that cannot be finished is cut off, so that it is not taken for a whole one.
func (s *Server) backup(w http.ResponseWriter, r *http.Request) {
	var source *archive.Source
	began := time.Now()
	s.answer(func(r *http.Request) (any, error) {
		var asked archive.Request
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			return nil, webhook.NewError(webhook.CodeInvalid, "The request cannot be read.")
		}
		var err error
		source, err = s.Store.source(r.Context(), &asked)
		return streamed{}, err
	})(w, r)
	if source == nil {
		return // it is answered
	}
	w.Header().Set("Content-Type", "application/x-tar")
	err := errors.Join(source.Send(w), source.Close())
	if err != nil {
		s.Logger.Error("admin socket", "request", r.Method+" "+r.URL.Path, "error", err)
		panic(http.ErrAbortHandler)
	}
	s.Logger.Info("a backup was made", "bytes", source.Bytes(), "duration", time.Since(began))
}

// examineTime is how long a running server reads its database through.
const examineTime = 3 * time.Second

// Standby answers the commands while a standby waits to take over. Its fields are
// set before its handler is used.
type Standby struct {
	// Promote makes the standby take over, with force also from a primary that is
	// alive. It returns the time of the newest change that the standby has.
	Promote func(ctx context.Context, force bool, progress func(string)) (time.Time, error)
	Examine func() []store.Finding
	Logger  *slog.Logger
}

// Handler returns the handler of the socket.
func (s *Standby) Handler() http.Handler {
	m := http.NewServeMux()
	answer := (&Server{Logger: s.Logger}).answer
	m.HandleFunc("POST /promote", s.promote)
	m.HandleFunc("GET /examination", answer(func(*http.Request) (any, error) { return s.Examine(), nil }))
	m.HandleFunc("/", answer(func(*http.Request) (any, error) {
		return nil, webhook.NewError(webhook.CodeConflict, "This is a standby, which has no data of its own yet: ask the primary, or promote it first.")
	}))
	return m
}

type promoteRequest struct {
	Force bool `json:"force"`
}

// promoteLine is a line of the answer to a promotion: its progress, or, in the last
// one, its result.
type promoteLine struct {
	Progress string         `json:"progress,omitempty"`
	State    *time.Time     `json:"state,omitempty"`
	Error    *webhook.Error `json:"error,omitempty"`
}

// promote answers with lines while the standby waits for the end of the lease.
func (s *Standby) promote(w http.ResponseWriter, r *http.Request) {
	var asked promoteRequest
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, "The request cannot be read.", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines, flush := json.NewEncoder(w), http.NewResponseController(w).Flush
	say := func(line promoteLine) {
		if lines.Encode(line) == nil { // else who asked is gone
			_ = flush()
		}
	}
	state, err := s.Promote(r.Context(), asked.Force, func(text string) { say(promoteLine{Progress: text}) })
	last := promoteLine{State: &state}
	if err != nil && !errors.As(err, &last.Error) {
		s.Logger.Error("admin socket", "request", r.Method+" "+r.URL.Path, "error", err)
		last.Error = webhook.NewError(webhook.CodeInternal, "The standby failed; its log says why.")
	}
	say(last)
}
