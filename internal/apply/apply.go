// Package apply brings a service to the state that a YAML file describes: event types,
// programs, subscriptions and access tokens.
//
// [Read] parses the file strictly, [Client.State] reads the current state through the API,
// [Diff] compares the two, and [Client.Apply] makes the changes through the API. It guarantees
// that
//
//   - what the file does not mention is not changed, and nothing is deleted
//   - a second run with the same file sends no request that writes
//   - a run after an interrupted one continues
//   - secrets are read from other files or from the environment, and are in no output; the
//     secret of a new token is written to a file of its own before the next change
package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"service/webhook"
)

// Result is the outcome of a change.
type Result struct {
	Change *Change
	Err    error // nil if the change was made
}

// errSkipped is the error of a change that was not attempted.
var errSkipped = errors.New("not attempted")

// Skipped reports whether a change was not attempted.
func (r Result) Skipped() bool { return errors.Is(r.Err, errSkipped) }

// Resolve reads the secrets that the changes of a plan need, and adds problems with them to the
// plan's problems. lookup returns environment variables.
func (p *Plan) Resolve(lookup func(string) (string, bool)) {
	for _, c := range p.Changes {
		for _, r := range c.calls {
			for _, name := range slices.Sorted(maps.Keys(r.secrets)) {
				s := r.secrets[name]
				text, err := s.resolve(lookup)
				if err == nil && name == "signing_secret" {
					if _, err = webhook.ParseSigningSecret(text); err != nil {
						err = fmt.Errorf("%s: the secret %w", s.At, err)
					}
				}
				if err != nil {
					p.Problems = append(p.Problems, Problem{s.Line, err.Error()})
				}
				if name, of := strings.CutPrefix(name, headerSecret); of {
					r.body["headers"].(Settings)[name] = text
				} else {
					r.body[name] = text
				}
			}
		}
	}
}

// Apply makes the changes of a resolved plan in order and reports each result. A refused change
// does not end the run, but the changes that depend on it are skipped, and so is the rest of a
// program that has reached its rate limit. If the service cannot be reached, or ctx ends, the
// remaining changes are skipped. Apply returns the number of changes made.
func (c *Client) Apply(ctx context.Context, p *Plan, report func(Result)) (made int, err error) {
	blocked := make(map[string]string) // by program: why its other changes are skipped
	for i := range p.Changes {
		change := &p.Changes[i]
		if err != nil {
			report(Result{change, errSkipped})
			continue
		}
		if why := blocked[change.Program]; why != "" {
			report(Result{change, fmt.Errorf("%w: %s", errSkipped, why)})
			continue
		}
		problem := c.make(ctx, change)
		report(Result{change, problem})
		if problem == nil {
			made++
			continue
		}
		if change.Noun == "program" && change.Op == Create {
			blocked[change.Program] = "its program was not created"
		}
		switch {
		case !concernsOne(problem):
			err = problem
		case rateLimited(problem): // waiting again for each of its changes could take hours
			blocked[change.Program] = "its program is at its rate limit"
		}
	}
	return made, err
}

// refused reports whether the API refused a request for good, for a reason that concerns this
// request only.
func refused(err error) bool {
	var r *Refusal
	var temporary Temporary
	return errors.As(err, &r) && !errors.As(err, &temporary) && r.Status != http.StatusUnauthorized && r.Status != http.StatusForbidden
}

// rateLimited reports whether a program has reached its rate limit. The platform token's limit
// concerns the whole run.
func rateLimited(err error) bool {
	var r *Refusal
	return errors.As(err, &r) && r.Status == http.StatusTooManyRequests && r.Program != ""
}

// concernsOne reports whether an error concerns one program or change, so that the run
// continues with the others.
func concernsOne(err error) bool { return refused(err) || rateLimited(err) }

// Retryable reports whether the same request may succeed later although the file and the
// service's records do not change.
func Retryable(err error) bool {
	var r *Refusal
	var temporary Temporary
	return errors.As(err, &temporary) || errors.As(err, &r) && r.Status >= 500
}

// make makes one change.
func (c *Client) make(ctx context.Context, change *Change) (err error) {
	for _, r := range change.calls {
		if r.file != "" {
			err = c.secretTo(ctx, r)
		} else {
			_, err = c.do(ctx, r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// secretTo sends a request and writes the secret in its response to a new file. The pending file
// exists from before the request until then, so that after a crash the next run knows that a secret
// is lost.
func (c *Client) secretTo(ctx context.Context, r call) error {
	if err := begin(r.file, time.Now()); err != nil {
		return fmt.Errorf("no request was sent: %w", err)
	}
	e, err := c.do(ctx, r)
	if err != nil {
		if refused(err) {
			return errors.Join(err, os.Remove(r.file+pendingSuffix)) // nothing was created
		}
		return err
	}
	var record map[string]any
	if err := json.Unmarshal(e.Data, &record); err != nil {
		return fmt.Errorf("invalid response of the server: %w", err)
	}
	secret, _ := record[r.field].(string)
	if secret == "" {
		return fmt.Errorf("the response of the server lacks %s", r.field)
	}
	return finish(r.file, secret)
}
