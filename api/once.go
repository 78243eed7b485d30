package api

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"io"
	"sync"

	"service/store"
	"service/webhook"
)

// once makes a route take Idempotency-Key: the same request under the same key
// takes effect once, however often it is sent, and is answered the same each
// time, for webhook.IdempotencyKeptFor.
//
// There is no moment to fail at in between: what a request creates and the
// answer to it are stored in one write (see [API.create]). When the process
// dies before that commit, neither is there, and the request can be sent again;
// when it dies after it, the request that is sent again is answered from the
// store. That a request is in flight is known in memory alone, since this
// process is the only one that writes: so a crash leaves no key locked.
//
// Answers that are errors are not kept: nothing was created.
func (a *API) once(handle func(*request) (answer, error)) func(*request) (answer, error) {
	return func(req *request) (answer, error) {
		values := req.http.Header[webhook.IdempotencyHeader]
		if values == nil {
			return handle(req)
		}
		if invalid := webhook.CheckIdempotencyKey(values); invalid != nil {
			return answer{}, invalid
		}
		if media, _ := req.mediaType(mediaJSON, mediaNDJSON); media == mediaNDJSON {
			return answer{}, webhook.Invalid(webhook.Validation{Code: webhook.InvalidValue, Parameter: webhook.IdempotencyHeader, Detail: "is not taken with a stream of lines: the ids of the events make it safe to send again"})
		}
		body, err := req.readBody()
		if err != nil {
			return answer{}, err
		}
		key := &webhook.IdempotencyKey{TokenID: req.token.ID, Key: values[0], Request: req.fingerprint(body)}
		if !a.inFlight.begin(key) {
			req.retryAfter = "1"
			return answer{}, webhook.NewError(webhook.CodeConflict, "A request with this "+webhook.IdempotencyHeader+" is under way. Send this one again when it has been answered.")
		}
		defer a.inFlight.end(key)
		kept, err := a.store.Answered(req.ctx, key)
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

// create runs the write of a request that creates something. With a key the
// answer is kept in the same write, so it must be whole by then. fn may be
// called again, see [store.Store.WriteAgain].
func (a *API) create(req *request, fn func(store.Write) (answer, error)) (answer, error) {
	var ans answer
	err := a.store.WriteAgain(req.ctx, func(w store.Write) (err error) {
		if ans, err = fn(w); err != nil || req.key == nil {
			return err
		}
		var body bytes.Buffer
		if err := ans.render(&body); err != nil {
			return err
		}
		ans.rendered = body.Bytes()
		return w.Keep(req.key, &store.Answer{Status: cmp.Or(ans.status, 200), Location: ans.location, Body: ans.rendered})
	})
	return ans, err
}

// fingerprint tells what a request asks for from any other.
func (req *request) fingerprint(body []byte) (sum [sha256.Size]byte) {
	h := sha256.New()
	io.WriteString(h, req.http.Method+" "+req.http.URL.EscapedPath()+"?"+req.http.URL.RawQuery+"\n")
	h.Write(body)
	h.Sum(sum[:0])
	return sum
}

// inFlightKeys are the keys of the requests that are being handled.
type inFlightKeys struct {
	mu   sync.Mutex
	keys map[[2]string]bool // by token and key
}

// begin reports whether the key was free. It then belongs to the caller until end.
func (f *inFlightKeys) begin(k *webhook.IdempotencyKey) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := [2]string{k.TokenID, k.Key}
	if f.keys[name] {
		return false
	}
	if f.keys == nil {
		f.keys = make(map[[2]string]bool)
	}
	f.keys[name] = true
	return true
}

func (f *inFlightKeys) end(k *webhook.IdempotencyKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.keys, [2]string{k.TokenID, k.Key})
}
