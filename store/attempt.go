package store

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// attempts returns the completed attempts of a delivery, oldest first.
func (s Deliveries) attempts(ctx context.Context, delivery int64) ([]webhook.Attempt, error) {
	_, each := s.db.Reads(ctx)
	return attemptsOf(each, delivery)
}

// attemptsOf returns the same, read with each.
func attemptsOf(each sqlite.EachRow, delivery int64) ([]webhook.Attempt, error) {
	var all []webhook.Attempt
	err := each(selectAttempts, []any{delivery}, func(scan func(...any) error) error {
		var a webhook.Attempt
		var started, duration int64
		var status sql.NullInt64
		var code sql.NullString
		var phases [4]sql.NullInt64
		err := scan(&a.Number, &started, &duration, &a.Result, &status, &code, &a.ResponseHeader, &a.ResponseBody, &a.ResponseTruncated,
			&a.ResponseRemoved,
			&phases[0], &phases[1], &phases[2], &phases[3], &a.URL)
		for i, p := range [...]*time.Duration{&a.Phases.DNS, &a.Phases.Connect, &a.Phases.TLS, &a.Phases.FirstByte} {
			*p = time.Duration(phases[i].Int64) * time.Microsecond
		}
		a.StartedAt, a.Duration = time.UnixMilli(started).UTC(), time.Duration(duration)*time.Millisecond
		a.ResponseStatus, a.Error = int(status.Int64), webhook.ErrorCode(code.String)
		if fact, ok := strings.CutPrefix(a.ResponseHeader, factMark); ok {
			a.ResponseHeader, a.ErrorFact = "", fact
		}
		a.ResponseRemoved = a.ResponseRemoved && a.ResponseStatus != 0 // otherwise the detail of its error
		all = append(all, a)
		return err
	})
	return all, err
}

// A delivery that succeeded at its first attempt has that attempt in its own row, and the
// response, while it is kept, in the table responses.
var selectAttempts = `SELECT a.number, a.started_at, a.duration_ms, a.result, a.response_status, a.error, a.response_header,
	a.response_body, a.response_truncated, a.response_removed,
		a.dns_us, a.connect_us, a.tls_us, a.first_byte_us, ` + urlOf("coalesce(a.url_number, "+firstURL+")") + `
		FROM attempts a CROSS JOIN deliveries d ON d.num = a.delivery WHERE a.delivery = ?1
	UNION ALL SELECT 1, d.created_at + d.started_after, d.duration_ms, 'success', d.response_status, NULL, coalesce(r.header, ''),
	coalesce(r.body, x''), d.response = 2,
		d.response > 0 AND r.delivery IS NULL, d.dns_us, d.connect_us, d.tls_us, d.first_byte_us, ` + urlOf(firstURL) + `
		FROM deliveries d LEFT JOIN responses r ON r.delivery = d.num WHERE d.num = ?1 AND d.duration_ms IS NOT NULL
	ORDER BY 1`

// firstURL is the number of the URL that was current when a delivery d was created.
const firstURL = "coalesce((SELECT min(o.number) FROM old_urls o WHERE o.subscription_id = d.subscription_id " +
	"AND o.last_delivery >= d.num), (SELECT z.url_number FROM subscriptions z WHERE z.id = d.subscription_id))"

// urlOf returns an expression for the URL with a number of the subscription of a delivery d, ” if
// it is no longer stored.
func urlOf(number string) string {
	return "coalesce((SELECT z.url FROM subscriptions z WHERE z.id = d.subscription_id AND z.url_number = " + number + "), " +
		"(SELECT o.url FROM old_urls o WHERE o.subscription_id = d.subscription_id AND o.number = " + number + "), '')"
}

// lastAttemptColumns are the columns of the last attempt of a delivery d, without its response.
// That attempt is either a row a of attempts or part of d itself.
const lastAttemptColumns = `coalesce(a.number, 1), coalesce(a.started_at, d.created_at + d.started_after),
	coalesce(a.duration_ms, d.duration_ms),
	coalesce(a.result, 'success'), coalesce(a.response_status, d.response_status), a.error`

// outcome returns the columns for the response of an attempt; nil binds NULL.
func outcome(a *webhook.Attempt) (status, code any) {
	if a.ResponseStatus != 0 {
		status = a.ResponseStatus
	}
	if a.Error != webhook.ErrorNone {
		code = string(a.Error)
	}
	return status, code
}

// factMark begins the detail of an attempt's error (ErrorFact) in the column response_header,
// which would otherwise be empty. No header begins with it, since a header name is never empty.
const factMark = ":"

// storedHeader returns the value of the column response_header for an attempt.
func storedHeader(a *webhook.Attempt) string {
	if a.ResponseHeader == "" && a.ErrorFact != "" {
		return factMark + a.ErrorFact
	}
	return a.ResponseHeader
}

// insertAttempt stores an attempt in a row of its own. It stores the number of its URL only if that
// is not the one that was current when the delivery was created.
func (t *tx) insertAttempt(c *Claim, a *webhook.Attempt) error {
	status, code := outcome(a)
	var url any
	if c.URLNumber != c.firstURL {
		url = c.URLNumber
	}
	body := a.ResponseBody
	if body == nil {
		body = []byte{} // NOT NULL
	}
	return t.Exec("INSERT INTO attempts (delivery, number, started_at, duration_ms, result, response_status, error, response_header, "+
		"response_body, response_truncated, dns_us, connect_us, tls_us, first_byte_us, url_number) "+
		"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		c.num, a.Number, a.StartedAt.UnixMilli(), a.Duration.Milliseconds(), string(a.Result), status, code, storedHeader(a), body,
		a.ResponseTruncated,
		micros(a.Phases.DNS), micros(a.Phases.Connect), micros(a.Phases.TLS), micros(a.Phases.FirstByte), url)
}

// micros binds a phase of an attempt in microseconds; nil, which is NULL, if the attempt did
// not have it.
func micros(d time.Duration) any {
	if d <= 0 {
		return nil
	}
	return d.Microseconds()
}
