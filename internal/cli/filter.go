package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"service/internal/terminal"
	"service/webhook"
)

type filterCmd struct {
	Test filterTestCmd `cmd:"" help:"Print how many stored events filters let pass, with examples and the values that decided. Changes nothing."`
}

type filterTestCmd struct {
	dataFlag
	File      string `arg:"" help:"JSON file such as {\"events\": [{\"name\": NAME, \"filter\": {…}}]}: events as a subscription has them. - for stdin."`
	Program   string `placeholder:"ID" help:"Program whose events are read. Required without a token, and with one of the scope platform."`
	From      string `placeholder:"T" help:"Time from which on events are read, such as 2026-03-14 or 2026-03-14T08:24:57Z. Default: from in the file, or 7 days ago."`
	To        string `placeholder:"T" help:"Time at which the range ends. Default: to in the file, or now."`
	JSON      bool   `name:"json" help:"Print the response of the API."`
	URL       string `name:"url" placeholder:"URL" help:"Base URL of the API. Default with a token: https://127.0.0.1:8443. Without a token, the admin socket of --data is used."`
	Token     string `env:"SERVICE_TOKEN" placeholder:"TOKEN" help:"Access token with the scope webhooks.write. Prefer --token-file: other users can see command lines."`
	TokenFile string `env:"SERVICE_TOKEN_FILE" placeholder:"FILE" help:"File with the token."`
	CA        string `name:"ca" placeholder:"FILE" help:"PEM file of certificates to trust instead of the system's, such as the server's ca.pem."`
}

func (c *filterTestCmd) Run(ctx context.Context, std Streams) error {
	token, err := secret("token", c.Token, c.TokenFile)
	if err != nil {
		return err
	}
	var f configErrors
	base := ""
	switch {
	case token != "":
		base = f.apiURL("url", cmp.Or(c.URL, defaultURL))
	case c.URL != "":
		f.add("token", "is required: an access token with the scope %s", webhook.ScopeWebhooksWrite)
	case c.Program == "":
		f.add("program", "is required: the program whose events are read; a token names its own")
	}
	if c.To != "" && c.From == "" {
		f.add("from", "is required: the time at which the range begins that --to ends")
	}
	if err := f.err(); err != nil {
		return err
	}
	body, err := c.body(ctx, std.In)
	if err != nil {
		return err
	}
	api, end, err := connectAPI(ctx, base, token, c.CA, c.Data)
	if err != nil {
		return err
	}
	defer end()
	api.program = c.Program
	const path = "/v2/webhooks/filter_tests"
	answer, err := api.call(ctx, http.MethodPost, path, "application/json", bytes.NewReader(body), http.StatusOK)
	if err != nil {
		return err
	}
	return c.print(std.Out, answer)
}

// body returns the request: the file with the times of the flags.
func (c *filterTestCmd) body(ctx context.Context, in io.Reader) ([]byte, error) {
	name, text := c.File, []byte(nil)
	var err error
	if name == "-" {
		name = "stdin"
		text, err = io.ReadAll(interruptible(ctx, in))
	} else {
		text, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil || fields == nil {
		return nil, fmt.Errorf(`%s: must be a JSON object such as {"events": [{"name": "content_published", "filter": {"all": […]}}]}`, name)
	}
	from, to := c.From, c.To
	if from == "" && fields["from"] == nil {
		from = time.Now().AddDate(0, 0, -webhook.FilterTestDays).UTC().Format(time.RFC3339)
	}
	for name, value := range map[string]string{"from": from, "to": to} {
		if value != "" {
			fields[name], _ = json.Marshal(value) // marshaling a string cannot fail
		}
	}
	return json.Marshal(fields)
}

// testedEvent is the result of a filter for the stored events of one name.
type testedEvent struct {
	Name             string
	Read, Matched    int64
	Complete         bool
	MatchedEvents    []testedExample `json:"matched_events"`
	NotMatchedEvents []testedExample `json:"not_matched_events"`
}

type testedExample struct {
	ID         string
	ReceivedAt string `json:"received_at"`
	Values     []webhook.FilterValue
}

// print prints a response.
func (c *filterTestCmd) print(w io.Writer, response []byte) error {
	var r struct{ Data json.RawMessage }
	var tested struct{ Events []testedEvent }
	if err := json.Unmarshal(response, &r); err != nil {
		return fmt.Errorf("the server's response cannot be read: %w", err)
	}
	if err := json.Unmarshal(r.Data, &tested); err != nil {
		return fmt.Errorf("the server's response cannot be read: %w", err)
	}
	if c.JSON {
		return printJSON(w, r.Data)
	}
	for _, e := range tested.Events {
		read := webhook.Count(int(e.Read), "event")
		switch {
		case e.Complete:
			fmt.Fprintf(w, "%s: %d of %s would be sent\n", e.Name, e.Matched, read)
		case e.Read > 0:
			fmt.Fprintf(w, "%s: %d of the newest %s would be sent; there was no time to read more\n", e.Name, e.Matched, read)
		default:
			fmt.Fprintf(w, "%s: not counted: there was no time to read its events\n", e.Name)
		}
		for _, of := range []struct {
			title    string
			examples []testedExample
		}{{"sent", e.MatchedEvents}, {"not sent", e.NotMatchedEvents}} {
			if len(of.examples) > 0 {
				fmt.Fprintf(w, "  %s:\n", of.title)
			}
			for _, x := range of.examples {
				values := make([]string, len(x.Values))
				for i, v := range x.Values {
					values[i] = v.Path + " " + string(v.Value)
				}
				line := "    " + x.ReceivedAt + "  " + x.ID + "  " + strings.Join(values, ", ")
				fmt.Fprintln(w, terminal.Escape(strings.TrimRight(line, " ")))
			}
		}
	}
	return nil
}
