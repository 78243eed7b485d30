package ui

import (
	"context"
	"strings"

	"github.com/a-h/templ"
)

type baseKey struct{}

// WithBase returns a context for rendering a page whose links begin with base, "" for none: portal
// pages are pages of the admin UI below /portal.
func WithBase(ctx context.Context, base string) context.Context {
	return context.WithValue(ctx, baseKey{}, base)
}

// At returns the address of a page or an action with the visitor's base. See [WithBase].
func At(ctx context.Context, address string) string {
	base, _ := ctx.Value(baseKey{}).(string)
	if rest, below := strings.CutPrefix(address, base); !strings.HasPrefix(address, "/") || below && (rest == "" || rest[0] == '/' ||
		rest[0] == '?' || rest[0] == '#') {
		return address
	}
	return base + address
}

// URL is [At] for the address of a link or a form.
func URL(ctx context.Context, address string) templ.SafeURL { return templ.SafeURL(At(ctx, address)) }

// ForPartner reports whether the page belongs to the portal: its reader is a partner and not the
// operator of the service.
func ForPartner(ctx context.Context) bool { return ctx.Value(baseKey{}) != nil }
