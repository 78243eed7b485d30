package client

import (
	"context"
	"errors"
	"net"
	"testing"

	"service/test/harness"
)

// TestMain uses Go's resolver once. Its first use makes a channel for the whole process, which
// must not belong to the bubble of the first test.
func TestMain(m *testing.M) {
	resolver := net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("no name server")
	}}
	resolver.LookupHost(context.Background(), "a.test.")
	harness.Main(m)
}
