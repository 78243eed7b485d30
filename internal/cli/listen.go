package cli

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"service/internal/server"
)

type listenCmd struct {
	// Not from SERVICE_LISTEN, which is the listen address of serve.
	Listen     string `default:"127.0.0.1:9000" env:"-" placeholder:"ADDR" help:"Address to receive on."`
	Secret     string `env:"SERVICE_SECRET" placeholder:"whsec_…" help:"Signing secret of the subscription, to verify signatures, or with --pull to sign. Prefer --secret-file: other users can see command lines."`
	SecretFile string `env:"SERVICE_SECRET_FILE" placeholder:"FILE" help:"File with the signing secret."`
	Status     string `default:"200" placeholder:"N" help:"Status code of the response."`
	FailFirst  string `default:"0" placeholder:"N" help:"Number of first attempts of each delivery that get a 503."`
	Forward    string `placeholder:"URL" help:"URL to forward deliveries to, and whose status to return. Deliveries that --status or --fail-first rejects are not forwarded. With --pull, each event is sent until the status is a 2xx."`
	NoBody     bool   `name:"no-body" help:"Print one line per delivery, without the body."`
	JSON       bool   `name:"json" help:"Print one JSON object per line, with the full body."`
	pullFlags
}

func (c *listenCmd) Run(ctx context.Context, std Streams, conf *configuration) error {
	if c.Pull != "" {
		return c.pull(ctx, std, conf)
	}
	var f configErrors
	c.refuse(&f, conf, false)
	f.address("listen", c.Listen)
	status := f.integer("status", c.Status, 200, 599)
	failFirst := f.integer("fail-first", c.FailFirst, 0, 1000)
	r := receiver{print: c.printer(std), respond: func(a *arrival) int {
		if a.Times <= failFirst {
			return http.StatusServiceUnavailable
		}
		return status
	}}
	if c.checkForward(&f); c.Forward != "" {
		r.forward = &forwarder{url: c.Forward, client: forwardClient()}
	}
	key, err := secret("secret", c.Secret, c.SecretFile)
	if err != nil {
		return err
	}
	if key != "" {
		if err := r.verifyWith(key); err != nil {
			f.addSecret()
		}
	}
	if err := f.err(); err != nil {
		return err
	}

	l, err := net.Listen("tcp", c.Listen)
	if err != nil && !conf.given["listen"] {
		l, err = net.Listen("tcp", "127.0.0.1:0") // the default port is taken
	}
	if err != nil {
		return server.ExplainListen(ctx, "listen", c.Listen, err)
	}
	fmt.Fprintf(std.Err, "Receiving webhooks on http://%s/ until Ctrl-C.\n", l.Addr())
	if key == "" {
		fmt.Fprintln(std.Err, "Signatures are not verified. To verify them, set --secret-file.")
	}
	return server.Serve(ctx, &http.Server{Handler: &r}, l, time.Second)
}

// printer returns the function that prints what arrives.
func (c *listenCmd) printer(std Streams) func(*arrival) {
	if c.JSON {
		return printArrivalJSON(std.Out)
	}
	return printArrival(std.Out, !c.NoBody)
}

// checkForward checks --forward.
func (c *listenCmd) checkForward(f *configErrors) {
	if c.Forward == "" {
		return
	}
	u, err := url.Parse(c.Forward)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		f.add("forward", "must be an absolute URL that begins with http:// or https://")
	}
}

// addSecret adds the error of an invalid signing secret, which the text must not contain.
func (f *configErrors) addSecret() {
	f.add("secret", "must be the signing secret of a subscription: whsec_ and base64")
}
