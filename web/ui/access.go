package ui

import "context"

type accessKey struct{}

// WithAccess returns a context for rendering a page in which allowed reports whether the
// visitor's role allows the page or action at an address.
func WithAccess(ctx context.Context, allowed func(address string) bool) context.Context {
	return context.WithValue(ctx, accessKey{}, allowed)
}

// Allowed reports whether the visitor's role allows the page or action at an address. Components
// omit links and forms that it does not allow. Without [WithAccess] everything is allowed.
func Allowed(ctx context.Context, address string) bool {
	allowed, ok := ctx.Value(accessKey{}).(func(string) bool)
	return !ok || allowed(At(ctx, address))
}
