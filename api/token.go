package api

import "service/webhook"

// tokenRecord is an access token as the API shows it: never its secret.
type tokenRecord struct {
	ID        string          `json:"id"`
	Hint      string          `json:"hint"` // the first characters of the secret
	ProgramID string          `json:"program_id"`
	UserID    string          `json:"user_id"`
	Name      string          `json:"name"`
	Scopes    []webhook.Scope `json:"scopes"`
	CreatedAt timestamp       `json:"created_at"`
	ExpiresAt timestamp       `json:"expires_at"` // null: never
}

func newTokenRecord(t *webhook.Token) tokenRecord {
	return tokenRecord{
		ID: t.ID, Hint: t.Hint, ProgramID: t.ProgramID, UserID: t.UserID, Name: t.Name, Scopes: t.Scopes,
		CreatedAt: timestamp(t.CreatedAt), ExpiresAt: timestamp(t.ExpiresAt),
	}
}

// tokenHandlers serve the routes of access tokens.
type tokenHandlers struct{}

// read shows the token that the request carries.
func (h tokenHandlers) read(req *request) (answer, error) {
	return answer{data: newTokenRecord(req.token)}, nil
}
