package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"service/internal/apply"
	"service/internal/terminal"
	"service/webhook"
)

type applyCmd struct {
	dataFlag
	File          string `short:"f" placeholder:"FILE" help:"YAML file with the desired state, - for stdin (required)."`
	DryRun        bool   `env:"-" help:"Print the changes and make none."`
	UpdateSecrets bool   `env:"-" help:"Set authorization headers again. They cannot be read back, so apply cannot detect that one has changed."`
	ReplaceTokens bool   `env:"-" help:"Replace tokens that differ from the file: create a new one, then revoke the old one."`
	Schema        bool   `env:"-" help:"Print the JSON Schema of the file, for editors."`
	URL           string `name:"url" placeholder:"URL" help:"Base URL of the API. Default with a token: https://127.0.0.1:8443. Without a token, the admin socket of --data is used."`
	Token         string `env:"SERVICE_TOKEN" placeholder:"TOKEN" help:"A token with the scope platform, from service token create --scope platform. Prefer --token-file: other users can see command lines."`
	TokenFile     string `env:"SERVICE_TOKEN_FILE" placeholder:"FILE" help:"File with the token."`
	CA            string `name:"ca" aliases:"ca-file" placeholder:"FILE" help:"PEM file of certificates to trust instead of the system's, such as the server's ca.pem."`
	RetryFor      string `default:"2m" placeholder:"D" help:"Time to keep repeating a request while the server is unreachable or busy."`
}

func (c *applyCmd) Run(ctx context.Context, std Streams) error {
	if c.Schema {
		_, err := std.Out.Write(apply.Schema())
		return err
	}
	var f configErrors
	retryFor := f.duration("retry-for", c.RetryFor, 0, 24*time.Hour)
	if c.File == "" {
		f.add("file", "is required: the YAML file with the desired state")
	}
	token, err := secret("token", c.Token, c.TokenFile)
	if err != nil {
		return err
	}
	if c.URL != "" && token == "" {
		f.add("token", "is required with --url: a token with the scope platform")
	}
	base := f.apiURL("url", cmp.Or(c.URL, defaultURL))
	if err := f.err(); err != nil {
		return err
	}
	in := std.In
	if c.File == "-" {
		in = interruptible(ctx, in)
	}
	file, err := apply.Read(c.File, in)
	var problems *apply.Problems
	if errors.As(err, &problems) {
		return usageError{err}
	} else if err != nil {
		return err
	}
	progress := terminal.NewProgress(std.Err)
	defer progress.End()
	client := &apply.Client{BaseURL: base, Token: token, RetryFor: retryFor, Note: progress.Note}
	end, err := c.connect(ctx, client)
	if err != nil {
		return err
	}
	defer end()
	r := applyRun{std: std, client: client, file: file, progress: progress, dryRun: c.DryRun}
	return r.run(ctx, apply.Options{UpdateSecrets: c.UpdateSecrets, ReplaceTokens: c.ReplaceTokens})
}

// defaultURL is the base URL of the API on this host.
const defaultURL = "https://" + localListen

// connectAPI returns a connection to the API, and a function that ends it. It uses the base URL with a
// token, otherwise the admin socket of a data directory.
func connectAPI(ctx context.Context, base, token, ca, dir string) (api *apiConn, end func(), err error) {
	if token != "" {
		client, err := apiClient(ca)
		if err != nil {
			return nil, nil, err
		}
		return &apiConn{send: client.Do, base: base, token: token}, client.CloseIdleConnections, nil
	}
	running, err := dialServer(ctx, dir, ": start it, or set --url and --token-file")
	if err != nil {
		return nil, nil, err
	}
	return &apiConn{send: running.API}, func() { running.Close() }, nil
}

// connect makes the client use HTTPS if it has a token, otherwise the admin socket.
func (c *applyCmd) connect(ctx context.Context, client *apply.Client) (end func(), err error) {
	api, end, err := connectAPI(ctx, client.BaseURL, client.Token, c.CA, c.Data)
	if err != nil {
		return nil, err
	}
	client.BaseURL, client.Replays = api.base, api.token != ""
	client.Send = func(req *http.Request) (*http.Response, error) {
		resp, err := api.send(req)
		if err != nil {
			return nil, transportError(ctx, err)
		}
		return resp, nil
	}
	return end, nil
}

// applyRun compares a file with a service, and applies the difference.
type applyRun struct {
	std      Streams
	client   *apply.Client
	file     *apply.File
	progress *terminal.Progress
	dryRun   bool
}

func (r *applyRun) run(ctx context.Context, options apply.Options) error {
	state, err := r.client.State(ctx, r.file)
	if err != nil {
		return fmt.Errorf("failed to read the current state: %w; nothing was changed", err)
	}
	outputs := apply.Outputs(r.file)
	plan := apply.Diff(ctx, r.file, state, outputs, options, time.Now())
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	plan.Resolve(os.LookupEnv)
	if !r.dryRun {
		if err := apply.Tidy(outputs); err != nil {
			return fmt.Errorf("%w; nothing was changed", err)
		}
	}
	if r.dryRun {
		for i := range plan.Changes {
			r.print(r.std.Out, plan.Changes[i].String())
		}
	}
	later := true // the next run can make what this run leaves out
	for i := range plan.Failed {
		r.print(r.std.Err, "failed: "+plan.Failed[i].String())
		later = later && apply.Retryable(plan.Failed[i].Err)
	}
	if len(plan.Problems) > 0 {
		return fmt.Errorf("%w; nothing was changed", &apply.Problems{File: r.file.Name, All: plan.Problems})
	}
	if r.dryRun || len(plan.Changes) == 0 {
		r.print(r.std.Out, planned(plan))
		if n := len(plan.Failed); n > 0 {
			text := advice(later)
			if r.dryRun && later {
				text = "run again later"
			}
			return fmt.Errorf("%s not compared; %s", webhook.Count(n, "program"), text)
		}
		return nil
	}
	return r.apply(ctx, plan, later)
}

// apply makes the changes of a plan. later reports whether the next run can make what the plan
// leaves out.
func (r *applyRun) apply(ctx context.Context, plan *apply.Plan, later bool) error {
	var skipped int
	made, err := r.client.Apply(ctx, plan, func(result apply.Result) {
		switch {
		case result.Err == nil:
			r.print(r.std.Out, result.Change.String())
			return
		case !result.Skipped():
			r.print(r.std.Err, "failed: "+result.Change.String()+": "+result.Err.Error())
			later = later && (apply.Retryable(result.Err) || ctx.Err() != nil)
			return
		}
		if skipped++; skipped <= maxListed {
			r.print(r.std.Err, "not done: "+result.Change.String())
		}
	})
	if skipped > maxListed {
		r.print(r.std.Err, fmt.Sprintf("not done: %d more", skipped-maxListed))
	}
	total := len(plan.Changes)
	if made == total && len(plan.Failed) == 0 {
		r.print(r.std.Out, fmt.Sprintf("%s made, %d unchanged", webhook.Count(made, "change"), plan.Unchanged))
		return nil
	}
	text := fmt.Sprintf("%d of %s made", made, webhook.Count(total, "change"))
	if n := len(plan.Failed); n > 0 {
		text += ", " + webhook.Count(n, "program") + " not compared"
	}
	text += "; " + advice(later)
	if err != nil {
		return fmt.Errorf("%w; %s", err, text)
	}
	return errors.New(text)
}

// advice returns what to do after a run that left something out.
func advice(later bool) string {
	if later {
		return "the next run makes the rest"
	}
	return "correct what failed, then run again"
}

// print prints a line without control characters.
func (r *applyRun) print(w io.Writer, line string) {
	r.progress.End()
	fmt.Fprintf(w, "%s\n", terminal.Line(line))
}

// planned summarizes a plan.
func planned(p *apply.Plan) string {
	counts := make(map[apply.Op]int)
	for i := range p.Changes {
		counts[p.Changes[i].Op]++
	}
	if len(p.Changes) == 0 {
		return fmt.Sprintf("Nothing to change: %d unchanged", p.Unchanged)
	}
	words := []string{fmt.Sprintf("%d to create", counts[apply.Create]), fmt.Sprintf("%d to change", counts[apply.Update])}
	if n := counts[apply.Revoke]; n > 0 {
		words = append(words, fmt.Sprintf("%d to revoke", n))
	}
	return strings.Join(append(words, fmt.Sprintf("%d unchanged", p.Unchanged)), ", ")
}
