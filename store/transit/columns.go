package transit

import (
	"encoding/json"
	"slices"
	"strings"

	"service/webhook"
)

// rules of a table.
type table struct {
	columns map[string]check
	row     func(*Gate, row) (column, problem string) // checks rules over several columns, and records the row; nil for none
}

// Bounds other than those of requests.
const (
	maxResponse  = 1 << 20   // bytes of a stored body
	maxHeader    = 64 << 10  // bytes of a stored header
	maxSeqs      = 64 << 10  // bytes
	maxAlert     = 256 << 10 // bytes
	maxKeptReply = 4 << 20   // bytes of a response to a repeated request
)

var (
	attemptError  = enum("timeout", "dns", "connect", "tls", "blocked", "protocol", "interrupted")
	failingReason = enum("unreachable", "rejecting")
	header        = func(_ *Gate, v any) string { // of a receiver, as received
		if s, is := v.(string); !is || len(s) > maxHeader {
			return "must be a text of at most 65536 bytes"
		}
		return ""
	}
	seqs = document(maxSeqs, func(g *Gate, all []int64) bool {
		return len(all) > 0 && len(all) <= webhook.MaxEventsLimit &&
			!slices.ContainsFunc(all, func(n int64) bool { return n < 1 || n > g.seq })
	})
	probeLog = document(maxAlert, func(_ *Gate, all []struct {
		At       int64             `json:"at"`
		Status   int               `json:"status"`
		Error    webhook.ErrorCode `json:"error"`
		Delivery int64             `json:"delivery"`
	}) bool {
		return len(all) <= 100
	})
)

// tables contains the checks of every column of every table with records of a program.
var tables = map[string]table{
	"programs": {columns: map[string]check{
		"id": owner, "name": line(4 * webhook.MaxProgramName),
		"max_subscriptions": null(integer(0, webhook.MaxProgramLimit)), "rate_limit": null(integer(0, webhook.MaxProgramLimit)),
		"max_in_flight": null(integer(1, webhook.MaxProgramInFlight)),
		"portal_origins": text(8<<10, func(s string) bool {
			return s == "" || webhook.CheckPortalOrigins("", strings.Split(s, " ")) == nil
		}),
		"log_key": blob(32, 32), "created_at": moment, "updated_at": moment,
	}},
	"subscriptions": {columns: map[string]check{
		"id": id, "num": number, "program_id": owner, "url": url, "url_number": number, "active": flag,
		"description": text(webhook.MaxDescriptionBytes, nil), "events": names(0, webhook.MaxSubscriptionEvents),
		"filters": null(filters), "ordered": flag,
		"max_in_flight": integer(0, webhook.MaxInFlightLimit), "max_per_second": null(real(webhook.MinPerSecond, webhook.MaxPerSecondLimit)),
		"max_events": null(integer(1, webhook.MaxEventsLimit)),
		"authorization_header": null(func(_ *Gate, v any) string {
			if b, is := v.([]byte); !is || webhook.CheckAuthorizationHeader(string(b)) != nil {
				return "must be a header without control characters"
			}
			return ""
		}),
		"header_names": document[[]string](64<<10, nil), "headers": null(headers),
		"signing_secret": or(blob(24, 64), blob(0, 0)), "status": enum("healthy", "failing", "disabled"),
		"disabled_reason": null(line(1024)), "created_by": identifier, "revision": number,
		"created_at": moment, "updated_at": moment, "deleted_at": null(moment), "counted_at": null(counted),
	}, row: func(g *Gate, r row) (string, string) {
		if len(r.bytes("signing_secret")) == 0 && (r.null("deleted_at") || r.int("active") != 0 ||
			!r.null("authorization_header") || !r.null("headers")) {
			return "signing_secret", "must not be empty unless the subscription is deleted"
		}
		if r.text("header_names") != namesOfHeaders(r.bytes("headers")) {
			return "header_names", "must be the names of headers"
		}
		id, num := r.text("id"), r.int("num")
		if before, known := g.subscriptions[id]; known && before != num {
			return "num", "is not that of the part before"
		}
		if of, known := g.nums[num]; known && of != id {
			return "num", "is that of another subscription"
		}
		g.subscriptions[id], g.nums[num] = num, id
		return "", ""
	}},
	"old_signing_secrets": {columns: map[string]check{
		"subscription_id": subscription, "expires_at": expiry, "secret": blob(24, 64),
	}},
	"old_urls": {columns: map[string]check{
		"subscription_id": subscription, "number": number, "url": or(url, text(0, nil)),
		"in_flight":     text(1<<24, func(s string) bool { return json.Unmarshal([]byte(s), &[]string{}) == nil }),
		"last_delivery": reachedDelivery,
	}},
	"tokens": {columns: map[string]check{
		"id": id, "hash": blob(32, 32), "hint": line(64), "program_id": owner, "user_id": identifier, "name": line(webhook.MaxTokenName),
		"scopes": text(512, func(s string) bool {
			return !slices.ContainsFunc(strings.Split(s, " "), func(one string) bool {
				return !slices.Contains(webhook.Scopes(), webhook.Scope(one))
			})
		}),
		"created_at": moment, "expires_at": null(anyTime), "revoked_at": null(moment), "used_at": null(moment),
	}, row: func(g *Gate, r row) (string, string) {
		g.tokens[r.text("id")] = true
		return "", ""
	}},
	"idempotency_keys": {columns: map[string]check{
		"token_id": token, "key": line(255), "request": blob(32, 32), "status": integer(200, 299),
		"location": or(empty, text(1024, func(s string) bool {
			return strings.HasPrefix(s, "/v2/") && !strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c >= 0x7f })
		})),
		"body": blob(0, maxKeptReply), "expires_at": expiry, "program_id": func(_ *Gate, v any) string {
			if v != nil {
				return "must be NULL: it is the key of the program's own token"
			}
			return ""
		},
	}},
	"events": {columns: map[string]check{
		"program_id": owner, "seq": number, "id": id, "name": name, "received_at": moment, "json": blob(2, webhook.MaxEventBytes+1024),
		"traceparent": null(text(64, func(s string) bool { return string(webhook.ParseTrace([]string{s})) == s })), "rowid": number,
		"erased_at": null(moment),
	}, row: func(g *Gate, r row) (string, string) {
		e := webhook.Event{ID: r.text("id"), Name: r.text("name"), JSON: r.bytes("json")}
		if problem := g.events.Check(&e); problem != "" {
			return "json", problem
		}
		if g.seq >= r.int("seq") {
			return "seq", "does not ascend"
		}
		column, problem := r.ascends("rowid", "received_at")
		g.seq = r.int("seq")
		return column, problem
	}},
	"erasures": {columns: map[string]check{"program_id": owner, "seq": reachedSeq, "at": moment, "cleared": integer(0, 0)}},
	"log_epochs": {columns: map[string]check{
		"program_id": owner, "num": integer(1, 1<<32), "id": integer(-biggest, biggest), "head": reachedSeq,
	}},
	"deliveries": {columns: map[string]check{
		"num": number, "id": shortID, "subscription_id": subscription, "program_id": owner,
		"status": enum("pending", "retryable", "success", "failed"),
		"failure_reason": null(enum("attempts_exhausted", "rejected", "blocked", "subscription_deleted", "unsubscribed", "expired",
			"cancelled")),
		"attempts_made": integer(0, webhook.MaxAttempts), "claimed_at": null(moment), "next_attempt_at": null(moment),
		"response_status": null(status), "error": null(attemptError), "seqs": null(seqs),
		"ping":          null(document[map[string]any](webhook.MaxEventBytes+1024, nil)),
		"redelivery_of": null(shortID), "split_of": null(shortID), "replay_id": null(id), "created_at": moment, "completed_at": null(moment),
		"subscription": subscriptionNum, "started_after": null(integer(-biggest, biggest)),
		"duration_ms": null(count), "response": null(integer(0, 2)), "dns_us": null(micros), "connect_us": null(micros),
		"tls_us": null(micros), "first_byte_us": null(count), "counted_at": counted,
	}, row: func(g *Gate, r row) (string, string) {
		if g.nums[r.int("subscription")] != r.text("subscription_id") {
			return "subscription", "must be the num of its subscription"
		}
		g.deliveries.add(r.int("num"))
		return r.ascends("num", "created_at")
	}},
	"delivery_events": {columns: map[string]check{"program_id": owner, "seq": reachedSeq, "delivery": delivery}},
	"attempts": {columns: map[string]check{
		"delivery": delivery, "number": integer(1, webhook.MaxAttempts), "started_at": moment, "duration_ms": count,
		"result": enum("success", "failed", "retryable"), "response_status": null(status), "error": null(attemptError),
		"response_header": header, "response_body": blob(0, maxResponse), "response_truncated": flag, "dns_us": null(micros),
		"connect_us": null(micros), "tls_us": null(micros), "first_byte_us": null(micros), "response_removed": flag, "url_number": null(number),
	}},
	"responses": {columns: map[string]check{"delivery": delivery, "header": header, "body": blob(0, maxResponse)}},
	"stored_responses": {columns: map[string]check{
		"program_id": owner, "delivery": delivery, "number": integer(1, webhook.MaxAttempts), "bytes": integer(0, maxHeader+maxResponse),
	}},
	"recovered": {columns: map[string]check{"delivery": delivery, "at": moment}},
	"splits": {columns: map[string]check{
		"delivery": delivery, "subscription_id": subscription, "whole": flag, "after_seq": integer(0, 1<<63-1),
	}},
	"size_bounds": {columns: map[string]check{"subscription_id": subscription, "bytes": number, "learned_at": moment}},
	"replays": {columns: map[string]check{
		"id": id, "subscription_id": subscription, "program_id": owner, "only_which": enum("missed", "failed", "all"),
		"from_at": anyTime, "to_at": anyTime, "names": names(0, webhook.MaxSubscriptionEvents), "filters": null(filters),
		"first_seq": reachedSeq, "after_seq": reachedSeq,
		"until_seq": reachedSeq, "status": enum("running", "done", "cancelled"), "events": count, "deliveries": count,
		"created_at": moment, "completed_at": null(moment), "counted_at": null(counted),
	}},
	"delivered": {columns: map[string]check{"subscription_id": subscription, "name": name, "first_seq": reachedSeq, "last_seq": reachedSeq}},
	"stats": {columns: map[string]check{
		"program_id": owner, "subscription_id": or(subscription, empty), "span": integer(60_000, 3_600_000), "at": moment,
		"success": count, "failed": count, "retryable": count, "answers": counts, "counted_at": counted,
		"durations": document(64<<10, func(_ *Gate, all webhook.Durations) bool { return len(all) <= 1000 }),
	}},
	"response_marks": {columns: map[string]check{"subscription_id": subscription, "completed_at": moment}},
	"bulk_runs": {columns: map[string]check{
		"num": number, "id": id, "program_id": owner, "action": enum("redeliver", "cancel"),
		"query": document[struct {
			Filters map[string][]string          `json:"filters"`
			Ranges  map[string]webhook.TimeRange `json:"ranges"`
		}](64<<10, nil),
		"newest": reachedDelivery, "after_num": reachedDelivery, "status": enum("running", "done", "cancelled"), "stopped": line(1024),
		"total": null(count), "done": count, "skipped": counts, "admin": line(256), "address": line(64),
		"created_at": moment, "completed_at": null(moment), "counted_at": null(counted),
	}, row: func(g *Gate, r row) (string, string) {
		g.runs.add(r.int("num"))
		return "", ""
	}},
	"bulk_run_waits":         {columns: map[string]check{"run": run, "subscription_id": subscription, "after_num": reachedDelivery}},
	"bulk_run_deliveries":    {columns: map[string]check{"run": run, "delivery": delivery}},
	"bulk_run_subscriptions": {columns: map[string]check{"subscription_id": subscription, "run": run, "done": number}},
	"incidents": {columns: map[string]check{
		"num": number, "id": id, "program_id": owner, "subscription_id": subscription, "opened_at": moment, "first_at": moment,
		"succeeded_at": null(moment), "closed_at": null(moment), "counted_at": null(counted), "closed_by": null(line(32)),
		"failing_reason": null(failingReason), "failed": count, "failed_from": null(moment), "last_at": null(moment),
		"last_status": null(status), "last_error": null(attemptError), "last_delivery": null(delivery), "probes": count,
		"probe_log": null(probeLog),
	}, row: func(g *Gate, r row) (string, string) {
		g.incidents.add(r.int("num"))
		return r.ascends("num", "opened_at")
	}},
	"undelivered": {columns: map[string]check{
		"subscription": subscriptionNum, "seq": reachedSeq, "delivery": delivery, "incident": null(incident),
	}},
	"alerts": {columns: map[string]check{
		"num": number, "id": id, "name": text(64, func(s string) bool { return slices.Contains(webhook.AlertNames(), webhook.AlertName(s)) }),
		"program_id": owner, "subscription_id": subscription, "incident": null(incident),
		"json":   func(_ *Gate, v any) string { return checkAlert(v) },
		"status": enum("unsent", "pending", "retryable", "success", "failed"), "attempts_made": integer(0, webhook.MaxAttempts),
		"next_attempt_at": null(moment), "created_at": moment, "counted_at": counted,
	}},
	"losses": {columns: map[string]check{"subscription_id": subscription, "events": number, "first_at": moment, "last_at": moment}},
	"failures": {columns: map[string]check{
		"subscription_id": subscription, "count": count, "rejected": count, "first_at": moment, "rejected_name": null(name),
		"failing_reason": null(failingReason), "failing_since": null(moment), "next_probe_at": null(moment),
		"probes": count, "pinged": flag, "last_at": null(moment), "last_status": null(status), "last_error": null(attemptError),
		"last_delivery": null(delivery), "incident": null(incident), "failed": count, "failed_from": null(moment), "quiet_at": null(moment),
		"probe_log": null(probeLog),
	}},
	"cursors": {columns: map[string]check{"subscription_id": subscription, "seq": reachedSeq}},
	"interests": {columns: map[string]check{
		"subscription_id": subscription, "name": name, "after_seq": reachedSeq, "until_seq": null(reachedSeq), "filter": null(filter),
	}},
	"dictionaries": {columns: map[string]check{"num": integer(1, 100), "content": blob(0, 1<<20)}},
}

// checkAlert checks the JSON of an alert, which the service sends to the operator's channels.
func checkAlert(v any) string {
	b, is := v.([]byte)
	if !is || len(b) > maxAlert {
		return "must be JSON of at most 262144 bytes"
	}
	if _, err := webhook.ParseAlertText(b, ""); err != nil {
		return "must be the JSON of an alert"
	}
	return ""
}
