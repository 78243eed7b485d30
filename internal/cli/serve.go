package cli

import (
	"context"

	"github.com/alecthomas/kong"

	"service/internal/server"
)

type serveCmd struct {
	serveFlags
	Demo bool `help:"The same on a throw-away data directory, with a program, a token, receivers, subscriptions and sample events of every type being published."`
}

func (c *serveCmd) Run(ctx context.Context, std Streams, conf *configuration, line *kong.Context) error {
	if c.Demo && conf.given["data"] {
		f := configErrors{{"data", "--demo has a throw-away data directory of its own; leave one of the two out"}}
		return f.err()
	}
	if c.Demo {
		c.keyFlag = keyFlag{} // throw-away data has a throw-away key
	}
	if c.Demo && c.LogLevel == "info" {
		c.LogLevel = "warn" // the demo tells what happens in lines of its own
	}
	s, err := c.settings(std.Err)
	if err != nil {
		return err
	}
	prepare(s, conf.shown(line))
	if c.Demo {
		return demo(ctx, s, c.AllowDestination, std, demoPace)
	}
	svc, err := server.Open(ctx, s)
	if err != nil {
		return startError(ctx, c.keyFlag.explain(err))
	}
	return announceAndRun(ctx, svc, s, std)
}
