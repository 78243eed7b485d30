package store

import (
	"time"

	"service/store/record"
	"service/store/sqlite"
	"service/webhook"
)

// outcome returns the columns for the response of an attempt; nil binds NULL.
func outcome(a *webhook.Attempt) (status, code any) {
	return sqlite.OrNull(a.ResponseStatus), sqlite.OrNull(string(a.Error))
}

// storedHeader returns the value of the column response_header for an attempt.
func storedHeader(a *webhook.Attempt) string {
	if a.ResponseHeader == "" && a.ErrorFact != "" {
		return record.FactMark + a.ErrorFact
	}
	return a.ResponseHeader
}

// insertAttempt stores an attempt in a row of its own. It stores the number of its URL only if the
// URL has changed since the delivery was created.
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

// micros binds a phase of an attempt in microseconds; nil, which is NULL, if the attempt lacks it.
func micros(d time.Duration) any {
	if d <= 0 {
		return nil
	}
	return d.Microseconds()
}
