package api

import (
	"net/http"
	"time"

	"service/store"
	"service/webhook"
)

// tokenRecord is an access token in the API.
type tokenRecord struct {
	ID        string          `json:"id"`
	Hint      string          `json:"hint"`       // the first characters of the secret
	ProgramID *string         `json:"program_id"` // null for a token of the installation
	UserID    string          `json:"user_id"`
	Name      string          `json:"name"`
	Scopes    []webhook.Scope `json:"scopes"`
	CreatedAt timestamp       `json:"created_at"`
	ExpiresAt timestamp       `json:"expires_at"`       // null: never
	RevokedAt timestamp       `json:"revoked_at"`       // null unless it is revoked
	UsedAt    timestamp       `json:"used_at"`          // null: never
	Secret    string          `json:"secret,omitempty"` // only in the response that created it
}

func newTokenRecord(t *webhook.Token) tokenRecord {
	return tokenRecord{
		ID: t.ID, Hint: t.Hint, ProgramID: webhook.OrNull(t.ProgramID), UserID: t.UserID, Name: t.Name, Scopes: t.Scopes,
		CreatedAt: timestamp(t.CreatedAt), ExpiresAt: timestamp(t.ExpiresAt), RevokedAt: timestamp(t.RevokedAt), UsedAt: timestamp(t.UsedAt),
	}
}

// readToken shows the token that the request carries.
func readToken(req *request) (answer, error) {
	t, err := req.api.store.Tokens().Get(req.ctx, req.token.ID) // the cached token has an old UsedAt
	return answer{data: newTokenRecord(&t)}, err
}

// findToken finds a token of the program in the path.
func findToken(req *request) error {
	if err := findProgram(req); err != nil {
		return err
	}
	t, err := req.api.store.Tokens().Get(req.ctx, req.params.ByName("token_id"))
	if err == nil && t.ProgramID != req.tenant.ID {
		err = webhook.NotFound("token")
	}
	return err
}

func listTokens(req *request) (answer, error) {
	tokens, total, err := req.api.store.Tokens().Page(req.ctx, req.tenant.ID, &req.query)
	return listAnswer(tokens, newTokenRecord, newPageMeta(&req.query, total), err)
}

// listAllTokens lists the tokens of all programs and of the installation, for the owner.
func listAllTokens(req *request) (answer, error) {
	tokens, err := req.api.store.Tokens().List(req.ctx)
	return answer{data: tokens}, err
}

// createToken creates a token of a program and returns its secret, which no later response contains.
func createToken(req *request) (answer, error) {
	body, err := req.readJSON()
	if err != nil {
		return answer{}, err
	}
	fields, invalid := webhook.ParseToken(body, req.tenant.ID, time.Now())
	if invalid != nil {
		return answer{}, invalid
	}
	return insertToken(req, &fields)
}

// insertToken creates a token. The program must exist, unless the owner creates the token.
func insertToken(req *request, fields *webhook.NewToken) (answer, error) {
	return req.create(func(w store.Write) (answer, error) {
		if req.tenant != nil {
			if _, err := w.Programs().Get(req.tenant.ID); err != nil {
				return answer{}, err // the program was erased in the meantime
			}
		}
		t, secret, err := w.Tokens().Create(*fields, req.actor())
		r := newTokenRecord(&t)
		r.Secret = secret
		return answer{status: http.StatusCreated, data: r}, err
	})
}

// revokeToken revokes a token. Revoking it again changes nothing.
func revokeToken(req *request) (answer, error) {
	var t webhook.Token
	err := req.api.store.Write(req.ctx, func(w store.Write) (err error) {
		t, err = w.Tokens().Revoke(req.params.ByName("token_id"), req.actor())
		return err
	})
	return answer{data: newTokenRecord(&t)}, err
}
