package api

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"io"

	"service/store"
	"service/webhook"
)

// idempotent makes a route accept Idempotency-Key. For webhook.IdempotencyKeptFor,
// requests with the same key take effect once and get the same response.
//
// The record and the response are stored in one write (see request.create), so a crash leaves both or
// neither. Keys in flight are kept in memory only: this process is the only writer, so a crash
// leaves no key locked. Errors are not stored.
func idempotent(handle func(*request) (answer, error)) func(*request) (answer, error) {
	return func(req *request) (answer, error) {
		values := req.http.Header[webhook.IdempotencyHeader]
		if values == nil {
			return handle(req)
		}
		if invalid := webhook.CheckIdempotencyKey(values); invalid != nil {
			return answer{}, invalid
		}
		if req.owner() {
			return handle(req)
		}
		if media, _ := req.mediaType(mediaJSON, mediaNDJSON); media == mediaNDJSON {
			return answer{}, webhook.Invalid(webhook.Validation{
				Code: webhook.InvalidValue, Parameter: webhook.IdempotencyHeader,
				Detail: "is not allowed with a stream of events; send an id with each event instead, which makes the stream safe to repeat",
			})
		}
		body, err := req.readBody()
		if err != nil {
			return answer{}, err
		}
		key := &webhook.IdempotencyKey{TokenID: req.token.ID, Key: values[0], Request: req.fingerprint(body)}
		if req.token.Platform() {
			if key.ProgramID = req.program(); req.tenant != nil {
				key.ProgramID = req.tenant.ID
			}
		}
		name := [2]string{key.TokenID, key.Key}
		if !req.api.inFlight.Take(name, 1) {
			req.retryAfter = "1"
			return answer{}, webhook.NewError(webhook.CodeConflict,
				"A request with this "+webhook.IdempotencyHeader+" is in progress. Try again when it is completed.")
		}
		defer req.api.inFlight.Leave(name)
		kept, err := req.api.store.StoredResponse(req.ctx, key)
		if err != nil {
			return answer{}, err
		}
		if kept != nil {
			return answer{status: kept.Status, location: kept.Location, rendered: kept.Body, replayed: true}, nil
		}
		req.key = key
		return handle(req)
	}
}

// create runs the write of a request that creates a record. With an Idempotency-Key the
// response is stored in the same write. fn may be called again, see
// [store.Store.WriteAgain].
func (req *request) create(fn func(store.Write) (answer, error)) (answer, error) {
	var ans answer
	err := req.api.store.WriteAgain(req.ctx, func(w store.Write) (err error) {
		if ans, err = fn(w); err != nil || req.key == nil {
			return err
		}
		var body bytes.Buffer
		if err := ans.render(&body); err != nil {
			return err
		}
		ans.rendered = body.Bytes()
		return w.StoreResponse(req.key, &store.StoredResponse{Status: cmp.Or(ans.status, 200), Location: ans.location, Body: ans.rendered})
	})
	return ans, err
}

// fingerprint returns a hash of method, path, query and body, and of the program that a
// platform token selected.
func (req *request) fingerprint(body []byte) (sum [sha256.Size]byte) {
	h := sha256.New()
	io.WriteString(h, req.http.Method+" "+req.http.URL.EscapedPath()+"?"+req.http.URL.RawQuery+"\n")
	if req.token.Platform() {
		io.WriteString(h, programHeader+": "+req.program()+"\n")
	}
	h.Write(body)
	h.Sum(sum[:0])
	return sum
}
