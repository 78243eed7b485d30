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

// mediaType returns which of the allowed media types the body is of.
func (req *request) mediaType(allowed ...string) (string, error) {
	given := req.http.Header["Content-Type"]
	if len(given) == 1 && !req.isEncoded() {
		media := given[0]
		if media != mediaJSON { // it mostly is
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
	return "", webhook.NewError(webhook.CodeUnsupportedMedia, "The body must be "+strings.Join(allowed, " or ")+", in UTF-8 and without a content encoding; say so in Content-Type.")
}

func (req *request) isEncoded() bool {
	for _, encoding := range req.http.Header["Content-Encoding"] {
		if !strings.EqualFold(encoding, "identity") {
			return true
		}
	}
	return false
}

// readJSON returns the body of a request that must be JSON. It is valid until
// the request has been handled.
func (req *request) readJSON() ([]byte, error) {
	if _, err := req.mediaType(mediaJSON); err != nil {
		return nil, err
	}
	return req.readBody()
}

// readBody returns the whole body, which may be empty.
func (req *request) readBody() ([]byte, error) {
	r := req.http
	if r.ContentLength == 0 {
		return nil, nil
	}
	if req.body != nil { // it was read for the sake of its Idempotency-Key
		return req.body.Bytes(), nil
	}
	if r.ContentLength > webhook.MaxBodyBytes {
		return nil, tooLarge()
	}
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

// bodyRead says that the body has been read to its end: the bound on its
// arrival must not end the work on it.
func (req *request) bodyRead() {
	req.unread = false
	req.readUntil(time.Time{})
}

// The bounds of what is read past of a body that its answer did not need.
const (
	maxIgnoredBody = 64 << 10 // bytes; the connection of a longer one ends with the answer
	maxIgnoring    = time.Second
)

// leaveBody prepares an answer that comes before the end of the body: it must
// not wait for it, nor hold the connection.
func (req *request) leaveBody(header http.Header) {
	if !req.unread || req.http.ProtoMajor != 1 {
		return // HTTP/2 ends the stream by itself
	}
	req.readUntil(time.Now().Add(maxIgnoring))
	if n := req.http.ContentLength; n < 0 || n > maxIgnoredBody {
		header.Set("Connection", "close")
	}
}

// readNothing checks that the request has no body, or an empty JSON object.
func (req *request) readNothing() error {
	body, err := req.readBody()
	if err != nil {
		return err
	}
	body = bytes.TrimSpace(body)
	if len(body) == 0 {
		return nil
	}
	if _, err := req.mediaType(mediaJSON); err != nil {
		return err
	}
	if body[0] != '{' || body[len(body)-1] != '}' || len(bytes.TrimSpace(body[1:len(body)-1])) > 0 {
		return webhook.NewError(webhook.CodeInvalid, "This request takes no body; leave it empty.")
	}
	return nil
}

// readError words what kept a body from being read: none of it is a fault of
// the service.
func readError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return webhook.NewError(webhook.CodeRequestTimeout, "The body did not arrive in time.")
	}
	return webhook.NewError(webhook.CodeInvalid, "The body could not be read to its end.")
}
