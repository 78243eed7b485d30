package store

import (
	"context"
	"database/sql"
	"time"

	"service/webhook"
)

// attempts returns the attempts of a delivery that have ended, in their order.
func (s *Store) attempts(ctx context.Context, delivery int64) ([]webhook.Attempt, error) {
	var all []webhook.Attempt
	err := s.each(ctx, "SELECT number, started_at, duration_ms, result, response_status, error, response_header, response_body, response_truncated FROM attempts WHERE delivery = ? ORDER BY number",
		[]any{delivery}, func(scan func(...any) error) error {
			var a webhook.Attempt
			var started, duration int64
			var status sql.NullInt64
			var code sql.NullString
			err := scan(&a.Number, &started, &duration, &a.Result, &status, &code, &a.ResponseHeader, &a.ResponseBody, &a.ResponseTruncated)
			a.StartedAt, a.Duration = time.UnixMilli(started).UTC(), time.Duration(duration)*time.Millisecond
			a.ResponseStatus, a.Error = int(status.Int64), webhook.ErrorCode(code.String)
			all = append(all, a)
			return err
		})
	return all, err
}

// outcome renders the answer of an attempt, or the lack of one; nil is NULL.
func outcome(a *webhook.Attempt) (status, code any) {
	if a.ResponseStatus != 0 {
		status = a.ResponseStatus
	}
	if a.Error != webhook.ErrorNone {
		code = string(a.Error)
	}
	return status, code
}

func (t *tx) insertAttempt(delivery int64, a *webhook.Attempt) error {
	status, code := outcome(a)
	body := a.ResponseBody
	if body == nil {
		body = []byte{} // there is always a body, if an empty one
	}
	return t.exec("INSERT INTO attempts (delivery, number, started_at, duration_ms, result, response_status, error, response_header, response_body, response_truncated) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		delivery, a.Number, a.StartedAt.UnixMilli(), a.Duration.Milliseconds(), string(a.Result), status, code, a.ResponseHeader, body, a.ResponseTruncated)
}
