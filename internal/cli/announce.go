package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"service/internal/server"
	"service/internal/terminal"
	"service/webhook"
)

// prepare sets up the process for serving: the settings that the admin UI shows, and
// the logger of libraries.
func prepare(s *server.Config, shown []server.Setting) {
	s.Program, s.Settings = commandName(), shown
	// net/http logs unsolicited responses through package log. They are remote input
	// and only useful for debugging.
	slog.SetDefault(s.Logger)
	slog.SetLogLoggerLevel(slog.LevelDebug)
}

// announcePrimary prints the URLs of a service that is about to serve.
func announcePrimary(ctx context.Context, svc *server.Server, s *server.Config, std Streams) error {
	tuneGC()
	link, err := svc.SetupLink(ctx)
	var refused *webhook.Error
	if err != nil && !errors.As(err, &refused) {
		return err
	}
	announce(std.Out, svc, s, link)
	return nil
}

// announceStandby prints the address of a node that is not the primary.
func announceStandby(w io.Writer, b *server.Standby, s *server.Config) {
	fmt.Fprintf(w, "Standby   %s, following %s\n", b.URL(), terminal.Escape(s.Replica.Target()))
	fmt.Fprintf(w, "          takes over when the primary's lease ends, or on: %s promote --data %s\n", s.Program, shellQuote(s.Dir))
}

// announce prints the URLs of the service and the first steps. link creates the first admin; it is
// empty if an admin exists.
func announce(w io.Writer, svc *server.Server, s *server.Config, link string) {
	data := ""
	if s.Dir != placesOf(ownName()).data {
		data = " --data " + shellQuote(s.Dir)
	}
	if h, held := svc.Store().Holds().Current(); held {
		fmt.Fprintf(w, "PAUSED    restored from %s as of %s: deliveries are paused\n",
			terminal.Escape(h.From), webhook.FormatTime(h.State))
		fmt.Fprintf(w, "          (%s; to resume: %s release%s)\n", describeRepeats(&h.Repeats), s.Program, data)
	}
	if link == "" {
		fmt.Fprintf(w, "Admin UI  %s/\n", svc.URL())
	} else {
		fmt.Fprintf(w, "Admin UI  %s\n", link)
		fmt.Fprintf(w, "          (creates the first admin; valid for 30 minutes; new link: %s admin setup-link%s)\n", s.Program, data)
	}
	fmt.Fprintf(w, "API       %s\n", svc.URL())
	if len(s.Domains) == 0 {
		flags := ""
		if !s.AllowHTTP || !s.Destinations.AllowsHost("localhost") {
			flags = "start serve with --allow-http --allow-destination 127.0.0.0/8, then "
		}
		fmt.Fprintf(w, "Receive   on this machine: %srun %s listen\n", flags, s.Program)
	}
	const scopes = "webhooks.read,webhooks.write,events.read,events.write"
	fmt.Fprintf(w, "Token     TOKEN=$(%s token create%s --program acme --user me --scope %s)\n", s.Program, data, scopes)
	fmt.Fprintf(w, "Try it    %s/v2/webhooks/subscriptions\n", curl(svc))
}

// curl returns a command that calls the API with $TOKEN, without the path at its end.
func curl(svc *server.Server) string {
	ca := ""
	if svc.CAFile() != "" {
		ca = " --cacert " + shellQuote(svc.CAFile())
	}
	return "curl" + ca + ` -H "Authorization: Bearer $TOKEN" ` + svc.URL()
}

// shellQuote quotes an argument for a POSIX shell.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:,@%", r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
