package store

import (
	"bytes"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"service/store/schema"
	"service/webhook"
)

// filledProgram is a program with every kind of record.
type filledProgram struct {
	id            string
	subscriptions []webhook.Subscription
	secrets       map[string]webhook.SigningSecret // current ones by subscription
	tokens        map[string]string                // secrets by token ID
	events        []webhook.Event
}

// fillProgram creates a program with every kind of record. Its deliveries are successful, failed,
// retryable, in flight and queued.
func fillProgram(t *testing.T, s *Store, id string) *filledProgram {
	t.Helper()
	p := &filledProgram{id: id, secrets: make(map[string]webhook.SigningSecret), tokens: make(map[string]string)}
	for _, user := range []string{"ada", "bob"} {
		token, secret, err := s.Tokens().Create(t.Context(), webhook.NewToken{ProgramID: id, UserID: user, Name: "of " + id,
			Scopes: webhook.Scopes()})
		must(t, err)
		p.tokens[token.ID] = secret
		key := webhook.IdempotencyKey{TokenID: token.ID, Key: "k", Request: sha256.Sum256([]byte("r"))}
		must(t, s.Write(t.Context(), func(w Write) error {
			return w.StoreResponse(&key, &StoredResponse{Status: 201, Body: []byte("answer to " + user)})
		}))
	}
	for i := range 4 {
		url, names, header := fmt.Sprintf("https://%s.example/%d", id, i), []string{"content_updated", "content_deleted"}, "Bearer of "+id
		authorization, maxEvents, maxPerSecond := &header, 10*i, 100*float64(i) // 0 for none
		headers := []webhook.Header{{Name: "X-Api-Key", Value: "key of " + id}, {Name: "X-Team", Value: "<a> & b"}}[:i%3]
		sub, secret, err := s.Subscriptions().Create(t.Context(), id, "ada", &webhook.SubscriptionFields{
			URL: &url, Events: &names, AuthorizationHeader: &authorization, Headers: &headers,
			MaxPerSecond: &maxPerSecond, MaxEvents: &maxEvents}, 0)
		must(t, err)
		p.subscriptions, p.secrets[sub.ID] = append(p.subscriptions, sub), secret
	}
	_, secret, err := s.Subscriptions().RotateSecret(t.Context(), id, p.subscriptions[0].ID)
	must(t, err)
	p.secrets[p.subscriptions[0].ID] = secret
	for i := range 6 {
		e := event([]string{"content_updated", "content_deleted"}[i%2])
		e.Trace = webhook.Trace([]string{"", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}[i/3])
		publishAll(t, s, id, e)
		p.events = append(p.events, e)
	}
	p.attempts(t, s)
	p.rest(t, s)
	p.portal(t, s)
	p.share(t, s)
	return p
}

// portal adds an open link to the portal and a session.
func (p *filledProgram) portal(t *testing.T, s *Store) {
	t.Helper()
	must(t, s.Write(t.Context(), func(w Write) error {
		_, code, err := w.Programs().CreatePortalLink(webhook.NewPortalLink{ProgramID: p.id, Role: webhook.PortalRead}, webhook.AuditEntry{})
		if err == nil {
			_, _, err = w.Programs().CreatePortalLink(webhook.NewPortalLink{ProgramID: p.id, Role: webhook.PortalWrite}, webhook.AuditEntry{})
		}
		if err == nil {
			_, _, err = w.Portal().BeginSession(code, "203.0.113.9", "Browser of "+p.id, "", false)
		}
		return err
	}))
}

// share adds an open link to a delivery.
func (p *filledProgram) share(t *testing.T, s *Store) {
	t.Helper()
	q, _ := webhook.DeliveryList.Parse(url.Values{})
	all, _, err := s.Deliveries().PageProgram(t.Context(), p.id, &q)
	must(t, err)
	must(t, s.Write(t.Context(), func(w Write) error {
		_, _, err := w.Deliveries().Share(p.id, all[0].ID, webhook.AuditEntry{})
		return err
	}))
}

// attempts records attempts of all kinds.
func (p *filledProgram) attempts(t *testing.T, s *Store) {
	t.Helper()
	body := bytes.Repeat([]byte("response to "+p.id+" "), 10)
	record := func(c *Claim, status int, policy webhook.HealthPolicy) {
		a := webhook.Attempt{Number: c.Number, StartedAt: time.Now(), ResponseStatus: status, ResponseBody: body,
			ResponseHeader: "X-Of: " + p.id + "\r\n", Result: webhook.Classify(status, webhook.ErrorNone)}
		recordResult(t, s, c, &a, webhook.DefaultRetryPolicy().After(&a, time.Now(), 0), policy)
	}
	for i, status := range []int{200, 503, 400, 0} {
		sub := &p.subscriptions[i]
		ping := mustClaim(t, s, duePing(s, sub.ID))
		record(ping, 200, webhook.HealthPolicy{})
		for n := range 3 {
			c := form(t, s, queue(t, s, sub.ID), 1+n%2)
			if status == 200 && n == 0 { // the URL changes before it is sent
				url := sub.URL + "/changed"
				must(t, s.Write(t.Context(), func(w Write) (err error) {
					*sub, err = w.Subscriptions().Update(p.id, sub.ID, &webhook.SubscriptionFields{URL: &url}, webhook.AuditEntry{})
					return err
				}))
				c.URLNumber++
			}
			if status != 0 {
				record(c, status, webhook.HealthPolicy{FailingAfter: 2, RejectingAfter: 2})
			}
			if status == 400 && n == 0 { // its events are delivered after all
				_, err := s.Deliveries().Redeliver(t.Context(), p.id, sub.ID, c.ID)
				must(t, err)
				again := mustClaim(t, s, &Credit{Queue: queue(t, s, sub.ID), Kind: CreditDue})
				record(again, 200, webhook.HealthPolicy{})
			}
		}
		if status == 400 {
			record(form(t, s, queue(t, s, sub.ID), 2), 413, webhook.HealthPolicy{})
		}
	}
}

// rest adds redeliveries, replays, bulk runs and the records that only retention writes.
func (p *filledProgram) rest(t *testing.T, s *Store) {
	t.Helper()
	execute(t, s, schema.BeginEpochs, p.id)
	first := p.subscriptions[0]
	page, _, err := s.Deliveries().Page(t.Context(), p.id, first.ID, query(t, webhook.DeliveryList, "filter[status]=success&sort=created_at"))
	must(t, err)
	sent := slices.IndexFunc(page, func(d webhook.Delivery) bool { return d.Events[0].Name != webhook.EventPing })
	_, err = s.Deliveries().Redeliver(t.Context(), p.id, first.ID, page[sent].ID)
	must(t, err)
	_, err = s.Replays().Create(t.Context(), p.id, first.ID,
		&webhook.ReplayFields{From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Minute), Only: webhook.ReplayAll})
	must(t, err)
	_, _, err = s.Queues().stepReplay(t.Context(), queue(t, s, first.ID), 1, webhook.MaxDeliveryBytes)
	must(t, err)
	for _, program := range []string{p.id, ""} {
		raw := "filter[subscription_id]=" + p.subscriptions[2].ID
		run, err := newRun(t, s, program, raw)
		must(t, err)
		if program == p.id {
			must(t, s.Write(t.Context(), func(w Write) error {
				return w.Audit(webhook.AuditEntry{Admin: "ada@example.com", Action: webhook.ActionDeliveryRedeliver, ProgramID: p.id,
					SubjectID: run.ID, Detail: "detail of " + p.id})
			}))
		}
	}
	must(t, s.writer.do(func(tx *tx) error {
		exec := func(query string, args ...any) {
			if err == nil {
				err = tx.Exec(query, args...)
			}
		}
		exec("INSERT INTO losses (subscription_id, events, first_at, last_at) VALUES (?, 3, 1000, 2000)", first.ID)
		exec("INSERT INTO delivered (subscription_id, name, first_seq, last_seq) VALUES (?, 'content_updated', 1, 1)", first.ID)
		exec("INSERT INTO response_marks (subscription_id, completed_at) VALUES (?, 1)", first.ID)
		exec("INSERT INTO bulk_run_waits (run, subscription_id, after_num) SELECT num, ?, 0 FROM bulk_runs WHERE program_id = ?", first.ID, p.id)
		return err
	}))
	must(t, s.writer.do(func(t *tx) error { return s.stats.Write(t.Tx, 1<<20, t.counted()) }))
}

// newRun creates a bulk run of failed deliveries and lets it do its work.
func newRun(t *testing.T, s *Store, programID, raw string) (run webhook.BulkRun, err error) {
	t.Helper()
	err = s.Write(t.Context(), func(w Write) (err error) {
		run, err = w.BulkRuns().Create(&NewBulkRun{ID: webhook.NewID(), ProgramID: programID, Action: webhook.BulkRedeliver,
			Query: query(t, webhook.AllDeliveryList, raw+"&filter[status]=failed"), Audit: anAdmin()})
		return err
	})
	if err != nil {
		return run, err
	}
	must(t, s.workBulkRuns(t.Context()))
	return run, err
}

// names returns texts that occur only in records of the program.
func (p *filledProgram) names() []string {
	all := []string{p.id}
	for i := range p.subscriptions {
		all = append(all, p.subscriptions[i].ID)
	}
	for id := range p.tokens {
		all = append(all, id)
	}
	for i := range p.events {
		all = append(all, p.events[i].ID)
	}
	return all
}

// occurrences returns the columns of the database that contain one of the texts, with their
// number.
func occurrences(t *testing.T, s *Store, texts []string) map[string]int {
	t.Helper()
	found := make(map[string]int)
	for table, columns := range tables(t, s) {
		eachValues(t, s, "SELECT "+strings.Join(columns, ", ")+" FROM "+table, nil, func(values []sql.RawBytes) {
			for i, v := range values {
				if slices.ContainsFunc(texts, func(text string) bool { return bytes.Contains(v, []byte(text)) }) {
					found[table+"."+columns[i]]++
				}
			}
		})
	}
	return found
}

// eachValues calls do with the values of each row of a query, which are valid until it returns.
func eachValues(t *testing.T, s *Store, query string, args []any, do func(values []sql.RawBytes)) {
	t.Helper()
	rows, err := s.db.Readers().QueryContext(t.Context(), query, args...)
	must(t, err)
	columns, err := rows.Columns()
	must(t, err)
	for rows.Next() {
		values, dest := make([]sql.RawBytes, len(columns)), make([]any, len(columns))
		for i := range values {
			dest[i] = &values[i]
		}
		must(t, rows.Scan(dest...))
		do(values)
	}
	must(t, errors.Join(rows.Err(), rows.Close()))
}

// tables returns the columns of every table.
func tables(t *testing.T, s *Store) map[string][]string {
	t.Helper()
	all := make(map[string][]string)
	rows, err := s.db.Readers().QueryContext(t.Context(), "SELECT m.name, c.name FROM sqlite_schema m JOIN pragma_table_info(m.name) c "+
		"WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' ORDER BY 1, c.cid")
	must(t, err)
	defer rows.Close()
	for rows.Next() {
		var table, column string
		must(t, rows.Scan(&table, &column))
		all[table] = append(all[table], column)
	}
	must(t, rows.Err())
	return all
}
