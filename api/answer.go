package api

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"

	"service/webhook"
)

// answer is what a handler returns on success: the response before it is rendered.
type answer struct {
	status   int // 0 is 200
	location string
	data     any                   // of the envelope: a value for encoding/json, or an appender
	meta     any                   // nil for none
	file     *file                 // instead of data, and without an envelope
	stream   func(io.Writer) error // instead of data, of any size
	events   func(io.Writer) error // instead of data, a stream of server-sent events

	tagged   bool   // a single record, which has an ETag
	revision int64  // goes into the ETag, for changes that the record does not show
	rendered []byte // instead of data: a body that is already rendered
	replayed bool   // stored by an earlier request with the same Idempotency-Key
}

// listAnswer returns the response with the records of a page, or err.
func listAnswer[T, R any](page []T, record func(*T) R, meta any, err error) (answer, error) {
	return answer{data: recordsOf(page, record), meta: meta}, err
}

// recordsOf returns the records of all; the result is never nil.
func recordsOf[T, R any](all []T, record func(*T) R) []R {
	records := make([]R, len(all))
	for i := range all {
		records[i] = record(&all[i])
	}
	return records
}

// appender is a record that renders its own JSON.
type appender interface{ appendJSON(dst []byte) []byte }

// appendList appends a JSON array of n elements, each appended by element.
func appendList(dst []byte, n int, element func(dst []byte, i int) []byte) []byte {
	dst = append(dst, '[')
	for i := range n {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = element(dst, i)
	}
	return append(dst, ']')
}

// write writes the response, and returns its status and the size of its body. Only [API.stream] and
// [API.sendEvents] write responses too.
func (a *API) write(req *request, ans answer, err error) (status, size int) {
	if err == nil && ans.stream != nil {
		a.stream(req, ans.stream)
		return http.StatusOK, 0
	}
	if err == nil && ans.events != nil {
		a.sendEvents(req, ans.events)
		return http.StatusOK, 0
	}
	body := a.buffer()
	defer a.putBuffer(body)
	var problem *webhook.Error
	if err == nil {
		err = ans.render(body)
	}
	var tag string
	if err == nil && ans.tagged {
		tag, err = req.tag(&ans, body)
	}
	if err != nil {
		if problem = a.problem(req, err); problem.Code == webhook.CodeInvalid {
			req.invalid = problem
		}
		ans = answer{status: kinds[problem.Code].status}
		body.Reset()
		_ = render(body, newErrorRecord(problem)) // strings and numbers cannot fail
		body.WriteByte('\n')
	}
	content := body.Bytes()
	if ans.file != nil {
		content = ans.file.content
	}
	if ans.status == 0 {
		ans.status = http.StatusOK
	}

	// One allocation for the values of all headers that every response has.
	values := &[...]string{req.id, "no-store", "application/json; charset=utf-8", "nosniff", strconv.Itoa(len(content)), "", ""}
	header := req.w.Header()
	header["X-Request-Id"] = values[0:1:1]
	header["Cache-Control"] = values[1:2:2]
	header["Content-Type"] = values[2:3:3]
	header["X-Content-Type-Options"] = values[3:4:4]
	header["Content-Length"] = values[4:5:5]
	if req.token != nil {
		values[5], values[6] = req.program(), req.token.UserID
		if values[5] != "" {
			header[programHeader] = values[5:6:6]
		}
		header["X-User-Id"] = values[6:7:7]
	}
	a.quotaHeader(header, req)
	if ans.location != "" {
		header.Set("Location", ans.location)
	}
	if ans.replayed {
		header.Set("Idempotency-Replayed", "true")
	}
	if tag != "" && problem == nil {
		header.Set("Etag", tag)
	}
	if ans.file != nil {
		ans.file.header(header)
	}
	if ans.status == http.StatusNotModified {
		delete(header, "Content-Type")
		delete(header, "Content-Length")
	}
	if problem != nil {
		problemHeader(header, req, problem.Code)
	}
	req.leaveBody(header)
	req.writeUntil(time.Now().Add(writeTimeout(len(content))))
	req.w.WriteHeader(ans.status)
	if req.http.Method == http.MethodHead || ans.status == http.StatusNotModified {
		return ans.status, 0
	}
	n, _ := req.w.Write(content) // the client may have disconnected
	return ans.status, n
}

// problemHeader adds the headers that HTTP requires with an error.
func problemHeader(header http.Header, req *request, code webhook.Code) {
	const challenge = `Bearer realm="service"`
	switch code {
	case webhook.CodeUnauthenticated:
		value := challenge
		if len(req.http.Header["Authorization"]) > 0 {
			value += `, error="invalid_token"` // RFC 6750, section 3.1
		}
		header.Set("WWW-Authenticate", value)
	case webhook.CodeForbidden:
		if req.route.scope == scopeNone {
			break // no token would help
		}
		value := challenge + `, error="insufficient_scope"`
		if req.route.scope != scopeAny {
			value += `, scope="` + string(req.route.scope) + `"`
		}
		header.Set("WWW-Authenticate", value)
	case webhook.CodeMethodNotAllowed:
		header.Set("Allow", req.allow)
	case webhook.CodeRateLimited, webhook.CodeConflict:
		switch {
		case req.retryAfter != "":
			header.Set("Retry-After", req.retryAfter)
		case code == webhook.CodeRateLimited:
			header.Set("Retry-After", retryRedelivery)
		}
	case webhook.CodeUnavailable:
		header.Set("Retry-After", retryAfter)
	}
}

// render appends the response in its envelope (spec, section 2.5) to b.
func (ans *answer) render(b *bytes.Buffer) error {
	if ans.file != nil {
		return nil // written as it is
	}
	if ans.rendered != nil {
		b.Write(ans.rendered)
		return nil
	}
	b.WriteString(`{"data":`)
	if err := render(b, ans.data); err != nil {
		return err
	}
	if ans.meta != nil {
		b.WriteString(`,"meta":`)
		if err := render(b, ans.meta); err != nil {
			return err
		}
	}
	b.WriteString("}\n")
	return nil
}

// render appends a value as JSON to b.
func render(b *bytes.Buffer, v any) error {
	if v, ok := v.(appender); ok {
		b.Write(v.appendJSON(b.AvailableBuffer()))
		return nil
	}
	encoder := json.NewEncoder(b)
	encoder.SetEscapeHTML(false) // keeps URLs readable
	if err := encoder.Encode(v); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1) // Encode ends with a line feed
	return nil
}

// timestamp is a time in a record; zero is null.
type timestamp time.Time

func (t timestamp) MarshalJSON() ([]byte, error) {
	if time.Time(t).IsZero() {
		return []byte("null"), nil
	}
	return []byte(`"` + webhook.FormatTime(time.Time(t)) + `"`), nil
}
