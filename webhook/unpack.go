package webhook

import (
	"bytes"
	"compress/gzip"
	"io"
)

// Unpack decompresses a stored response body in gzip format, up to MaxStoredBody bytes of
// text, and reports whether there is more. It returns nil for any other body, and if nothing
// can be decompressed. Some receivers send gzip although the service does not ask for it.
func Unpack(body []byte) (text []byte, cut bool) {
	if !bytes.HasPrefix(body, []byte("\x1f\x8b\x08")) {
		return nil, false
	}
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, false
	}
	// An error means that the end of the body is missing or damaged.
	text, err = io.ReadAll(io.LimitReader(z, MaxStoredBody+1))
	if len(text) == 0 {
		return nil, false
	}
	if len(text) > MaxStoredBody {
		text, cut = text[:MaxStoredBody], true
	}
	return text, cut || err != nil
}
