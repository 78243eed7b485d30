package store

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"service/store/list"
	"service/store/record"
	"service/store/sqlite"
	"service/store/watch"
	"service/webhook"
)

const insertToken = "INSERT INTO tokens (id, hash, hint, program_id, user_id, name, scopes, created_at, expires_at) " +
	"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"

// Create creates a token, and its program if that is new. An installation token has no program.
// The secret cannot be retrieved again, since only its SHA-256 is stored. The error is a
// *webhook.Error if n is invalid.
func (w TokenWrites) Create(n webhook.NewToken, by webhook.AuditEntry) (webhook.Token, string, error) {
	now := w.t.s.clock.Now().Truncate(time.Millisecond)
	if err := n.Check(now); err != nil {
		return webhook.Token{}, "", err
	}
	secret := webhook.NewTokenSecret(w.t.s.tokenPrefix)
	hash, _ := webhook.HashTokenSecret(secret)
	token := webhook.Token{
		ID: webhook.NewID(), Hint: webhook.TokenHint(secret),
		ProgramID: n.ProgramID, UserID: n.UserID, Name: n.Name, Scopes: n.Scopes,
		CreatedAt: now.UTC(), ExpiresAt: n.ExpiresAt,
	}
	if n.ProgramID != "" {
		if err := w.t.ensureProgram(n.ProgramID, now); err != nil {
			return webhook.Token{}, "", err
		}
	}
	err := w.t.Exec(insertToken, token.ID, hash[:], token.Hint, sqlite.OrNull(token.ProgramID), token.UserID, token.Name,
		webhook.JoinScopes(n.Scopes, " "), now.UnixMilli(), sqlite.Millis(token.ExpiresAt))
	if err != nil {
		return token, "", err
	}
	detail := "for user " + token.UserID + ", with " + webhook.JoinScopes(token.Scopes, ", ") + ", never expires"
	if !token.ExpiresAt.IsZero() {
		detail = strings.TrimSuffix(detail, "never expires") + "expires " + webhook.FormatTime(token.ExpiresAt)
	}
	return token, secret, w.t.people.Record(by, webhook.ActionTokenCreate, token.ProgramID, token.ID, detail)
}

// List returns all tokens, newest first.
func (s Tokens) List(ctx context.Context) ([]webhook.Token, error) {
	var all []webhook.Token
	const query = "SELECT " + record.TokenColumns + " FROM tokens WHERE coalesce(program_id, '')" + list.CanBeUsed +
		" ORDER BY created_at DESC, id DESC"
	err := s.db.Each(ctx, query, nil, sqlite.ScanInto(&all, record.ScanToken))
	s.uses.Complete(all)
	return all, err
}

// Page returns a page of the tokens of a program, "" for all programs, and how many match the
// filters.
func (s Tokens) Page(ctx context.Context, programID string, q *webhook.ListQuery) (tokens []webhook.Token, total int, err error) {
	tokens, total, err = list.NumberedPage(ctx, s.db, q, s.bindsOf(programID, q), tokensOf("count(*)", programID),
		tokensOf(record.TokenColumns, programID), record.ScanToken)
	s.uses.Complete(tokens)
	return tokens, total, err
}

// After returns the next tokens after last in the order of a query, the first ones if last is
// nil. programID is "" for all programs.
func (s Tokens) After(ctx context.Context, programID string, q *webhook.ListQuery,
	last *webhook.Token) (tokens []webhook.Token, err error) {
	b := s.bindsOf(programID, q)
	if b["limit"] = q.Size; last != nil {
		b["at"], b["id"] = last.CreatedAt.UnixMilli(), last.ID
	}
	after := " AND (:at IS NULL OR (created_at, id) > (:at, :id)) ORDER BY created_at, id LIMIT :limit"
	if q.Sort[0].Descending {
		after = " AND (:at IS NULL OR (created_at, id) < (:at, :id)) ORDER BY created_at DESC, id DESC LIMIT :limit"
	}
	query := tokensOf(record.TokenColumns, programID).With(after)
	err = s.db.Each(ctx, query.Text, query.Args(b), sqlite.ScanInto(&tokens, record.ScanToken))
	s.uses.Complete(tokens)
	return tokens, err
}

// bindsOf binds the parameters of tokensOf.
func (s Tokens) bindsOf(programID string, q *webhook.ListQuery) list.Binds {
	b := list.BindsOf(q)
	b["program"], b["now"] = programID, s.clock.Now().UnixMilli()
	return b
}

// tokensOf selects columns of the listed tokens of a program, "" for all programs.
func tokensOf(columns, programID string) list.Statement {
	s := list.Statement{}.With("SELECT " + columns + listedTokens)
	if programID != "" {
		s = s.With(" AND program_id = :program")
	}
	return s
}

var listedTokens = " FROM tokens WHERE " + list.AllOf(
	`:state IS NULL OR CASE WHEN revoked_at IS NOT NULL THEN 'revoked' WHEN expires_at <= :now THEN 'expired' ELSE 'valid' END
		IN (SELECT value FROM json_each(:state))`,
	list.IsIn("user_id"), list.IsWithin("created_at", "created_at"), "coalesce(program_id, '')"+list.CanBeUsed)

// Get returns one token of any program.
func (s Tokens) Get(ctx context.Context, id string) (webhook.Token, error) {
	t, err := record.ScanToken(s.db.Row(ctx, "SELECT "+record.TokenColumns+" FROM tokens WHERE id = ?", id))
	if err == nil {
		err = s.use(t.ProgramID, "token")
	}
	one := []webhook.Token{t}
	s.uses.Complete(one)
	return one[0], sqlite.NoRows(err, webhook.NotFound("token"))
}

// Revoke revokes a token immediately and returns it. Revoking it again changes nothing. The error
// is a *webhook.Error if there is no such token, or if its program moves or has moved, since the
// other installation would not learn of it.
func (w TokenWrites) Revoke(id string, by webhook.AuditEntry) (webhook.Token, error) {
	token, err := record.ScanToken(w.t.Row("SELECT "+record.TokenColumns+" FROM tokens WHERE id = ?", id))
	if err != nil || !token.RevokedAt.IsZero() {
		return token, sqlite.NoRows(err, webhook.NotFound("token"))
	}
	if err := w.t.use(token.ProgramID, ""); err != nil {
		return token, err
	}
	token.RevokedAt = w.t.s.clock.Now().UTC().Truncate(time.Millisecond)
	if err := w.t.Exec("UPDATE tokens SET revoked_at = ? WHERE id = ?", token.RevokedAt.UnixMilli(), id); err != nil {
		return token, err
	}
	s := w.t.s
	w.t.AfterCommit(func() {
		s.tokens.clear()
		s.watchers.Wake(watch.RecordKey(id))
	})
	return token, w.t.people.Record(by, webhook.ActionTokenRevoke, token.ProgramID, id, "of user "+token.UserID)
}

// Authenticate returns the token with a secret. The error is a *webhook.Error with
// CodeUnauthenticated if the token is unknown, revoked or expired, without saying which. The
// caller must not use the program of the token if [Programs.Move] returns a move.
func (s Tokens) Authenticate(ctx context.Context, secret string) (*webhook.Token, error) {
	refused := func() (*webhook.Token, error) {
		return nil, webhook.NewError(webhook.CodeUnauthenticated, "The access token is not valid: it is unknown, has expired or was revoked.")
	}
	hash, ok := webhook.HashTokenSecret(secret)
	if !ok {
		return refused()
	}
	token, generation := s.tokens.get(hash)
	if token == nil {
		found, err := record.ScanToken(s.db.Row(ForLookups(ctx, ""), "SELECT "+record.TokenColumns+" FROM tokens WHERE hash = ?", hash[:]))
		if errors.Is(err, sql.ErrNoRows) {
			return refused()
		}
		if err != nil {
			return nil, err
		}
		token = &found
		s.tokens.put(hash, token, generation)
	}
	now := s.clock.Now()
	if !token.Valid(now) {
		return refused()
	}
	if s.use(token.ProgramID, "") != nil && Programs(s).Move(token.ProgramID) == nil {
		return refused()
	}
	s.uses.Note(token.ID, now)
	return token, nil
}
