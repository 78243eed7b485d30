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
	// Not from SERVICE_LISTEN, which is the address of serve.
	Listen     string `default:"127.0.0.1:9000" env:"-" placeholder:"ADDR" help:"The address to receive on."`
	Secret     string `env:"SERVICE_SECRET" placeholder:"whsec_…" help:"The signing secret of the subscription: signatures are verified with it. A command line can be seen by others on this machine: --secret-file or the environment cannot."`
	SecretFile string `env:"SERVICE_SECRET_FILE" placeholder:"FILE" help:"A file that holds the signing secret."`
	Status     string `default:"200" placeholder:"N" help:"The status to answer with."`
	FailFirst  string `default:"0" placeholder:"N" help:"Answer 503 the first N times that a delivery comes."`
	Forward    string `placeholder:"URL" help:"Pass each delivery that would get a 2xx on to this URL, and its status back."`
	NoBody     bool   `name:"no-body" help:"Print one line for each delivery, without its body."`
	JSON       bool   `name:"json" help:"Print one JSON object a line, with the whole body."`
}

func (c *listenCmd) Run(ctx context.Context, std Streams) error {
	var f configErrors
	f.address("listen", c.Listen)
	status := f.integer("status", c.Status, 200, 599)
	failFirst := f.integer("fail-first", c.FailFirst, 0, 1000)
	r := receiver{print: printArrival(std.Out, !c.NoBody), answer: func(a *arrival) int {
		if a.Times <= failFirst {
			return http.StatusServiceUnavailable
		}
		return status
	}}
	if c.JSON {
		r.print = printArrivalJSON(std.Out)
	}
	if c.Forward != "" {
		u, err := url.Parse(c.Forward)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			f.add("forward", "must be an absolute URL that begins with http:// or https://")
		}
		r.forward = &forwarder{url: c.Forward, client: forwardClient()}
	}
	key, err := secret("secret", c.Secret, c.SecretFile)
	if err != nil {
		return err
	}
	if key != "" {
		if err := r.verifyWith(key); err != nil {
			f.add("secret", "must be the signing secret of a subscription: whsec_ and base64")
		}
	}
	if err := f.err(); err != nil {
		return err
	}

	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(std.Err, "Receiving webhooks on http://%s/ until Ctrl-C.\n", l.Addr())
	if key == "" {
		fmt.Fprintln(std.Err, "Signatures are not verified; give --secret to have them verified.")
	}
	return server.Serve(ctx, &http.Server{Handler: &r}, l, time.Second)
}
