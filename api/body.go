package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"service/webhook"
)

// The media types of bodies.
const (
	mediaJSON   = "application/json"
	mediaNDJSON = "application/x-ndjson"
)

// mediaType returns the media type of the body, one of allowed, or an error.
func (req *request) mediaType(allowed ...string) (string, error) {
	given := req.http.Header["Content-Type"]
	if len(given) == 1 && !req.isEncoded() {
		media := given[0]
		if media != mediaJSON { // the common case needs no parsing
			parsed, params, err := mime.ParseMediaType(media)
			media = parsed
			if charset, ok := params["charset"]; err != nil || ok && !strings.EqualFold(charset, "utf-8") {
				media = ""
			}
		}
		for _, m := range allowed {
			if media == m {
				return m, nil
			}
		}
	}
	return "", webhook.NewError(webhook.CodeUnsupportedMedia,
		"The body must be "+strings.Join(allowed, " or ")+", in UTF-8 and without a content encoding. Set Content-Type accordingly.")
}

// isEncoded reports whether the body has a content encoding, which no route supports.
func (req *request) isEncoded() bool {
	for _, encoding := range req.http.Header["Content-Encoding"] {
		if !strings.EqualFold(encoding, "identity") {
			return true
		}
	}
	return false
}

// readJSON returns the body of a request that must be JSON. It is valid until the
// request is released.
func (req *request) readJSON() ([]byte, error) {
	if _, err := req.mediaType(mediaJSON); err != nil {
		return nil, err
	}
	return req.readBody()
}

// readBody returns the complete body, which may be empty.
func (req *request) readBody() ([]byte, error) {
	r := req.http
	if r.ContentLength == 0 {
		return nil, nil
	}
	if req.body != nil { // already read for the Idempotency-Key
		return req.body.Bytes(), nil
	}
	if r.ContentLength > webhook.MaxBodyBytes {
		return nil, tooLarge()
	}
	req.started = true
	req.body = req.api.buffer()
	limited := io.LimitedReader{R: r.Body, N: webhook.MaxBodyBytes + 1}
	if _, err := req.body.ReadFrom(&limited); err != nil {
		return nil, readError(err)
	}
	if req.body.Len() > webhook.MaxBodyBytes {
		return nil, tooLarge()
	}
	req.bodyRead()
	return req.body.Bytes(), nil
}

func tooLarge() error {
	return webhook.NewError(webhook.CodeTooLarge, fmt.Sprintf("The body is larger than %d bytes.", webhook.MaxBodyBytes))
}

// bodyRead records that the body was read completely, and removes the read deadline, which must not
// end the work on the request.
func (req *request) bodyRead() {
	req.unread = false
	req.readUntil(time.Time{})
}

// How much of an unread body is read after the response. A client that is still sending
// reads the response only after its last byte, and loses it if the connection closes
// before that.
const (
	maxReused      = 64 << 10 // bytes; the connection is not reused for longer bodies
	maxReusedTime  = time.Second
	maxDiscarded   = 32 << 20 // bytes; also bounds a line of a stream
	maxDiscardTime = 2 * time.Second
)

// leaveBody prepares a response that is sent before the end of the body. It does not wait for the
// rest, and closes the connection after a long body.
func (req *request) leaveBody(header http.Header) {
	if !req.unread {
		return
	}
	n := req.http.ContentLength
	if req.http.ProtoMajor == 1 && n >= 0 && n <= maxReused {
		req.readUntil(time.Now().Add(maxReusedTime)) // net/http reads the rest before it writes the response
		return
	}
	if req.http.ProtoMajor == 1 {
		header.Set("Connection", "close")
	}
	// A client that waits for 100 Continue sends no body after the response.
	if req.discard = req.started || req.http.Header["Expect"] == nil; req.discard && req.http.ProtoMajor == 1 {
		_ = http.NewResponseController(req.w).EnableFullDuplex()
	}
}

// discardBody sends the response, and then reads the rest of the body within the
// bounds, so that the client receives the response.
func (req *request) discardBody() {
	if !req.discard {
		return
	}
	rc := http.NewResponseController(req.w)
	if rc.Flush() != nil || rc.SetReadDeadline(time.Now().Add(maxDiscardTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, req.http.Body, maxDiscarded)
}

// readOptionalJSON returns the JSON body of a request, or {} if the body is empty.
func (req *request) readOptionalJSON() ([]byte, error) {
	body, err := req.readBody()
	if err != nil {
		return nil, err
	}
	if body = bytes.TrimSpace(body); len(body) == 0 {
		return []byte("{}"), nil
	}
	_, err = req.mediaType(mediaJSON)
	return body, err
}

// bodiless makes a route reject a body, except an empty JSON object.
func bodiless(handle func(*request) (answer, error)) func(*request) (answer, error) {
	return func(req *request) (answer, error) {
		body, err := req.readOptionalJSON()
		if err != nil {
			return answer{}, err
		}
		if body[0] != '{' || body[len(body)-1] != '}' || len(bytes.TrimSpace(body[1:len(body)-1])) > 0 {
			return answer{}, webhook.NewError(webhook.CodeInvalid, "This request takes no body. Send none, or {}.")
		}
		return handle(req)
	}
}

// readError returns the client's error for a failed read of the body.
func readError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return webhook.NewError(webhook.CodeRequestTimeout, "The body did not arrive in time.")
	}
	return webhook.NewError(webhook.CodeInvalid, "The body could not be read completely.")
}
