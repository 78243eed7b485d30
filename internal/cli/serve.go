package cli

import (
	"context"
	"net"

	"github.com/alecthomas/kong"

	"service/internal/server"
)

type serveCmd struct {
	serveFlags
	Demo bool `help:"Run on temporary data, with two receivers and subscriptions, and publish sample events."`
}

func (c *serveCmd) Run(ctx context.Context, std Streams, conf *configuration, line *kong.Context) error {
	if c.Demo && conf.given["data"] {
		f := configErrors{{"data", "must not be set with --demo, which uses a temporary data directory"}}
		return f.err()
	}
	if c.Demo {
		c.keyFlag, c.Litestream = keyFlag{}, noFile // temporary data gets a temporary key and no replica
	}
	if c.Demo && c.LogLevel == "info" {
		c.LogLevel = "warn" // the demo prints what happens itself
	}
	s, err := c.settings(std.Err)
	if err != nil {
		return err
	}
	prepare(s, conf.shown(line))
	if c.Demo {
		if !conf.given["listen"] && !canListen(s.Listen) {
			s.Listen = "127.0.0.1:0"
		}
		return demo(ctx, s, c.AllowDestination, std, demoPace)
	}
	return c.keyFlag.explain(server.Run(ctx, s, server.Roles{
		Primary: func(ctx context.Context, svc *server.Server) error { return announcePrimary(ctx, svc, s, std) },
		Standby: func(b *server.Standby) { announceStandby(std.Out, b, s) },
	}))
}

// canListen reports whether an address is free.
func canListen(addr string) bool {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	l.Close()
	return true
}
