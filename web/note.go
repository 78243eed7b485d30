package web

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"

	"service/web/ui"
)

const (
	noteCookie       = "note"
	portalNoteCookie = "portal-note"

	noteLife = 60   // seconds
	maxNote  = 1500 // bytes of text; a cookie can hold 4,096
)

// newNoteCookie returns the cookie of a note.
func (w *Web) newNoteCookie(r *http.Request, n *ui.Note) *http.Cookie {
	text := *n
	text.Text = cutText(text.Text, maxNote)
	b, _ := json.Marshal(text) // marshaling two strings cannot fail
	return w.noteCookie(r, base64.RawURLEncoding.EncodeToString(append(w.noteMAC(b), b...)), noteLife)
}

// noteName is the name of the cookie: admins and partners have separate notes.
func noteName(r *http.Request) string {
	if inPortal(r) {
		return portalNoteCookie
	}
	return noteCookie
}

func (w *Web) noteCookie(r *http.Request, value string, age int) *http.Cookie {
	return &http.Cookie{
		Name: noteName(r), Value: value, Path: "/", MaxAge: age,
		Secure: w.cfg.Secure, HttpOnly: true, SameSite: http.SameSiteLaxMode,
	}
}

func (w *Web) noteMAC(b []byte) []byte {
	m := hmac.New(sha256.New, w.noteKey[:])
	m.Write(b)
	return m.Sum(nil)
}

// readNote returns the note of a request, nil unless this process signed it.
func (w *Web) readNote(r *http.Request) *ui.Note {
	c, err := r.Cookie(noteName(r))
	if err != nil {
		return nil
	}
	b, err := base64.RawURLEncoding.DecodeString(c.Value)
	if err != nil || len(b) < sha256.Size || !hmac.Equal(b[:sha256.Size], w.noteMAC(b[sha256.Size:])) {
		return nil
	}
	var n ui.Note
	if json.Unmarshal(b[sha256.Size:], &n) != nil {
		return nil
	}
	return &n
}

// cutText truncates a text to a number of bytes and marks the truncation.
func cutText(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-len("…")], "") + "…"
}
