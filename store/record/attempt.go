package record

import (
	"database/sql"
	"strings"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// AttemptsOf returns the completed attempts of a delivery, oldest first, read with each.
func AttemptsOf(each sqlite.EachRow, delivery int64) ([]webhook.Attempt, error) {
	var all []webhook.Attempt
	err := each(selectAttempts, []any{delivery}, func(scan func(...any) error) error {
		var a webhook.Attempt
		var duration int64
		var phases [4]sql.NullInt64
		err := scan(&a.Number, (*sqlite.Time)(&a.StartedAt), &duration, &a.Result, sqlite.OrZero(&a.ResponseStatus), sqlite.OrZero(&a.Error),
			&a.ResponseHeader, &a.ResponseBody, &a.ResponseTruncated, &a.ResponseRemoved,
			&phases[0], &phases[1], &phases[2], &phases[3], &a.URL)
		for i, p := range [...]*time.Duration{&a.Phases.DNS, &a.Phases.Connect, &a.Phases.TLS, &a.Phases.FirstByte} {
			*p = time.Duration(phases[i].Int64) * time.Microsecond
		}
		a.Duration = time.Duration(duration) * time.Millisecond
		if fact, ok := strings.CutPrefix(a.ResponseHeader, FactMark); ok {
			a.ResponseHeader, a.ErrorFact = "", fact
		}
		a.ResponseRemoved = a.ResponseRemoved && a.ResponseStatus != 0 // otherwise the detail of its error
		all = append(all, a)
		return err
	})
	return all, err
}

// A delivery that succeeded at its first attempt contains that attempt in its own row, and
// the response, while it is kept, is in the table responses.
var selectAttempts = `SELECT a.number, a.started_at, a.duration_ms, a.result, a.response_status, a.error, a.response_header,
	a.response_body, a.response_truncated, a.response_removed,
		a.dns_us, a.connect_us, a.tls_us, a.first_byte_us, ` + urlOf("coalesce(a.url_number, "+FirstURL+")") + `
		FROM attempts a CROSS JOIN deliveries d ON d.num = a.delivery WHERE a.delivery = ?1
	UNION ALL SELECT 1, d.created_at + d.started_after, d.duration_ms, 'success', d.response_status, NULL, coalesce(r.header, ''),
	coalesce(r.body, x''), d.response = 2,
		d.response > 0 AND r.delivery IS NULL, d.dns_us, d.connect_us, d.tls_us, d.first_byte_us, ` + urlOf(FirstURL) + `
		FROM deliveries d LEFT JOIN responses r ON r.delivery = d.num WHERE d.num = ?1 AND d.duration_ms IS NOT NULL
	ORDER BY 1`

// FirstURL is the number of the URL that was current when a delivery d was created.
const FirstURL = "coalesce((SELECT min(o.number) FROM old_urls o WHERE o.subscription_id = d.subscription_id " +
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

// FactMark begins the detail of an attempt's error (ErrorFact) in the column response_header,
// which is otherwise empty for such an attempt. No header begins with FactMark, since a header
// name is never empty.
const FactMark = ":"
