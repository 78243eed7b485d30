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
	"net/url"
	"os"
	"time"

	"service/webhook"
)

// Result is what became of a change.
type Result struct {
	Change *Change
	Err    error // nil if it was made
}

// errSkipped is the error of a change that was not attempted.
var errSkipped = errors.New("not attempted")

// Skipped reports whether a change was not attempted.
func (r Result) Skipped() bool { return errors.Is(r.Err, errSkipped) }

// Resolve reads the secrets that the changes of a plan need, and adds what is wrong with them
// to its problems. lookup returns environment variables.
func (p *Plan) Resolve(lookup func(string) (string, bool)) Secrets {
	all := make(Secrets)
	for i := range p.Changes {
		c := &p.Changes[i]
		if c.Subscription == nil {
			continue
		}
		if c.SetAuthorization && !c.Subscription.Authorization.Null {
			p.resolve(all, c.Subscription.Authorization, lookup)
		}
		if s := c.Subscription.SigningSecret; s != nil && c.Op == Create && p.resolve(all, s, lookup) {
			if _, err := webhook.ParseSigningSecret(all[s]); err != nil {
				p.Problems = append(p.Problems, Problem{s.Line, fmt.Sprintf("%s: the secret %v", s.At, err)})
			}
		}
	}
	return all
}

// Secrets are resolved secrets.
type Secrets map[*Secret]string

func (p *Plan) resolve(all Secrets, s *Secret, lookup func(string) (string, bool)) bool {
	text, err := s.resolve(lookup)
	if err != nil {
		p.Problems = append(p.Problems, Problem{s.Line, err.Error()})
		return false
	}
	all[s] = text
	return true
}

// Apply makes the changes of a plan in their order and reports each result. A refused change
// does not end the run, but the changes that need it are skipped, and so is the rest of a
// program that is at its rate limit. If the service cannot be reached, or ctx ends, the rest is
// skipped. It returns the number of changes made.
func (c *Client) Apply(ctx context.Context, p *Plan, secrets Secrets,
	report func(Result)) (made int, err error) {
	blocked := make(map[string]string) // by program: why its other changes are skipped
	for i := range p.Changes {
		change := &p.Changes[i]
		program := change.ProgramID()
		if err != nil {
			report(Result{change, errSkipped})
			continue
		}
		if why := blocked[program]; why != "" {
			report(Result{change, fmt.Errorf("%w: %s", errSkipped, why)})
			continue
		}
		problem := c.make(ctx, change, secrets)
		report(Result{change, problem})
		if problem == nil {
			made++
			continue
		}
		if change.Program != nil && change.Op == Create {
			blocked[change.Program.ID] = "its program was not created"
		}
		switch {
		case !concernsOne(problem):
			err = problem
		case rateLimited(problem): // waiting again for each of its changes could take hours
			blocked[program] = "its program is at its rate limit"
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

// rateLimited reports whether a program is at its rate limit. The limit of the platform token
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
func (c *Client) make(ctx context.Context, change *Change, secrets Secrets) error {
	switch {
	case change.EventType != nil:
		t := change.EventType
		return c.put(ctx, "/v2/event_types/"+url.PathEscape(t.Name), "", map[string]any{"schema": t.Schema})
	case change.Program != nil:
		return c.put(ctx, "/v2/programs/"+url.PathEscape(change.Program.ID), "", change.Settings)
	case change.Subscription != nil:
		return c.subscription(ctx, change, secrets)
	}
	return c.token(ctx, change)
}

func (c *Client) put(ctx context.Context, path, program string, body any) error {
	_, err := c.do(ctx, call{method: http.MethodPut, path: path, program: program, key: newKey(), body: body})
	return err
}

// newKey returns an Idempotency-Key.
func newKey() string { return "apply-" + webhook.NewID() }

const subscriptionsPath = "/v2/webhooks/subscriptions"

func (c *Client) subscription(ctx context.Context, change *Change, secrets Secrets) error {
	s, path := change.Subscription, subscriptionsPath+"/"+url.PathEscape(change.ID)
	b := maps.Clone(change.Settings)
	if names, ok := b["events"]; ok {
		var events []map[string]string
		for _, name := range texts(names) {
			events = append(events, map[string]string{"name": name})
		}
		b["events"] = events
	}
	if change.SetAuthorization {
		b["authorization_header"] = nil
		if !s.Authorization.Null {
			b["authorization_header"] = secrets[s.Authorization]
		}
	}
	if change.Op == Update {
		if len(b) > 0 {
			if err := c.put(ctx, path, s.ProgramID, b); err != nil {
				return err
			}
		}
		if !change.Rotate {
			return nil
		}
		return c.secretTo(ctx, s.SigningSecretFile, "signing_secret", call{
			method: http.MethodPost, path: path + "/rotate_secret", program: s.ProgramID, key: newKey(),
		})
	}
	b["url"] = s.URL
	if s.SigningSecret != nil {
		b["signing_secret"] = secrets[s.SigningSecret]
	}
	create := call{method: http.MethodPost, path: subscriptionsPath, program: s.ProgramID, key: newKey(), body: b}
	if s.SigningSecretFile != "" {
		return c.secretTo(ctx, s.SigningSecretFile, "signing_secret", create)
	}
	_, err := c.do(ctx, create)
	return err
}

func (c *Client) token(ctx context.Context, change *Change) error {
	t := change.Token
	path := "/v2/programs/" + url.PathEscape(t.ProgramID) + "/tokens"
	if change.Op != Revoke {
		b := map[string]any{"name": t.Name, "user_id": t.User, "scopes": t.Scopes}
		if t.Expires != nil && !t.Expires.IsZero() {
			b["expires_at"] = webhook.FormatTime(*t.Expires)
		}
		if err := c.secretTo(ctx, t.SecretFile, "secret", call{method: http.MethodPost, path: path, key: newKey(), body: b}); err != nil {
			return err
		}
	}
	for _, id := range change.Revoke {
		if _, err := c.do(ctx, call{method: http.MethodDelete, path: path + "/" + url.PathEscape(id), key: newKey()}); err != nil {
			return err
		}
	}
	return nil
}

// secretTo sends a request whose response has a secret in a field, and writes that to a new
// file. The pending file exists from before the request until then, so that a run after a crash
// knows that a secret is lost.
func (c *Client) secretTo(ctx context.Context, path, field string, r call) error {
	if err := begin(path, time.Now()); err != nil {
		return fmt.Errorf("no request was sent: %w", err)
	}
	e, err := c.do(ctx, r)
	if err != nil {
		if refused(err) {
			return errors.Join(err, os.Remove(path+pendingSuffix)) // nothing was created
		}
		return err
	}
	var record map[string]any
	if err := json.Unmarshal(e.Data, &record); err != nil {
		return fmt.Errorf("invalid response of the server: %w", err)
	}
	secret, _ := record[field].(string)
	if secret == "" {
		return fmt.Errorf("the response of the server lacks %s", field)
	}
	return finish(path, secret)
}
