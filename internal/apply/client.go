package apply

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"service/webhook"
)

// Client calls the API of a service. Its fields are set before its first use.
type Client struct {
	// Send sends a request. It returns a [Temporary] error if sending it again may help.
	Send func(*http.Request) (*http.Response, error)

	BaseURL  string        // without a trailing slash
	Token    string        // platform token; "" if the connection needs none
	Replays  bool          // the API stores responses by Idempotency-Key
	RetryFor time.Duration // how long to repeat a request
	Note     func(format string, args ...any)
}

// Temporary is an error that may not recur in a later request.
type Temporary struct {
	Err   error
	After time.Duration // minimum time to wait
	Once  bool          // this run must not send the request again
}

func (e Temporary) Error() string { return e.Err.Error() }
func (e Temporary) Unwrap() error { return e.Err }

// Refusal is an error response of the API.
type Refusal struct {
	Status  int
	Detail  string
	Program string // that the request acted in, "" for none
}

func (e *Refusal) Error() string { return e.Detail }

// maxResponse bounds a response, in bytes.
const maxResponse = 64 << 20

// API paths.
const (
	programsPath      = "/v2/programs/"
	subscriptionsPath = "/v2/webhooks/subscriptions"
)

func tokensPath(program string) string { return programsPath + url.PathEscape(program) + "/tokens" }

// call is an API request.
type call struct {
	method, path string             // the path includes the query
	program      string             // to act in; "" for none
	body         Settings           // as JSON; nil for none
	secrets      map[string]*Secret // secret properties of the body; secret headers are headers.NAME
	field, file  string             // the secret in the response and the file to create with it; "" for none
}

// envelope is a response of the API.
type envelope struct {
	Data json.RawMessage
	Meta struct {
		Pagination struct {
			TotalPages int `json:"total_pages"`
		}
	}
}

// Waits between two attempts of a request. The first wait doubles up to the longest.
const (
	firstWait   = 250 * time.Millisecond
	longestWait = 15 * time.Second
)

// do sends a request until the API accepts or refuses it, or RetryFor has passed.
func (c *Client) do(ctx context.Context, r call) (*envelope, error) {
	giveUp := time.Now().Add(c.RetryFor)
	key := ""
	if r.method != http.MethodGet {
		key = "apply-" + webhook.NewID()
	}
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		e, err := c.try(ctx, r, key)
		var temporary Temporary
		if err == nil || !errors.As(err, &temporary) || temporary.Once || ctx.Err() != nil {
			return e, err
		}
		pause := max(wait/2+rand.N(wait/2+1), temporary.After)
		if time.Now().Add(pause).After(giveUp) {
			return nil, fmt.Errorf("%w; gave up after %s", err, c.RetryFor)
		}
		c.Note("%v; retrying in %s", err, pause.Round(time.Millisecond))
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w; interrupted", err)
		}
	}
}

// requestTime limits one request.
const requestTime = 2 * time.Minute

// try sends a request once, with an Idempotency-Key unless key is "".
func (c *Client) try(ctx context.Context, r call, key string) (*envelope, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	var body io.Reader = http.NoBody
	if r.body != nil {
		b, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, c.BaseURL+r.path, body)
	if err != nil {
		return nil, err
	}
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, value := range map[string]string{"X-Program-Id": r.program, webhook.IdempotencyHeader: key} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	resp, err := c.Send(req)
	if err != nil {
		return nil, c.unknownOutcome(r, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse+1))
	if err != nil {
		return nil, c.unknownOutcome(r, Temporary{Err: fmt.Errorf("the response ended early: %w", err)})
	}
	if resp.StatusCode/100 == 2 {
		e := new(envelope)
		if err := json.Unmarshal(b, e); err != nil || len(b) > maxResponse {
			return nil, errors.New("the response of the server is not JSON, or too large; check --url")
		}
		return e, nil
	}
	err = refusal(resp, b, r.program)
	if resp.StatusCode == http.StatusBadGateway || resp.StatusCode == http.StatusGatewayTimeout {
		err = c.unknownOutcome(r, err)
	}
	return nil, err
}

// unknownOutcome sets Once in the error of a request if sending the request again could create a
// second record. The next run finds the first record.
func (c *Client) unknownOutcome(r call, err error) error {
	var temporary Temporary
	if r.method == http.MethodPost && !c.Replays && errors.As(err, &temporary) {
		temporary.Once = true
		return temporary
	}
	return err
}

// ReadError returns the error of an unsuccessful response, as the API describes it. It returns
// another error if the response is not from the API.
func ReadError(resp *http.Response, body []byte) (*webhook.Error, error) {
	var problem struct {
		Error struct {
			Title       string
			Detail      string
			Validations []webhook.Validation
		}
	}
	if bytes.Contains(body, []byte("HTTP request to an HTTPS server")) { // from net/http
		return nil, errors.New("the server uses HTTPS; begin --url with https://")
	}
	if err := json.Unmarshal(body, &problem); err != nil || problem.Error.Title == "" {
		return nil, fmt.Errorf("the server responded %s; check --url", resp.Status)
	}
	return &webhook.Error{Detail: problem.Error.Detail, Validations: problem.Error.Validations}, nil
}

// refusal returns the error of the response to a request in a program.
func refusal(resp *http.Response, body []byte, program string) error {
	e, err := ReadError(resp, body)
	if err != nil {
		return err
	}
	refused := &Refusal{resp.StatusCode, "the server responded " + resp.Status + ": " + strings.TrimSuffix(e.Error(), "."), program}
	after, errAfter := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 31)
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return Temporary{Err: refused, After: time.Duration(after) * time.Second}
	case http.StatusConflict:
		if errAfter == nil { // a request with the same key is in progress
			return Temporary{Err: refused, After: time.Duration(after) * time.Second}
		}
	}
	return refused
}

// pageSize is the number of records per page of a list.
const pageSize = 100

// list returns every record of a list. path must contain a query. A record that appears on two
// pages, because others were created or removed between the requests, counts once.
func list[T any](ctx context.Context, c *Client, path, program string, id func(*T) string) (all []T, err error) {
	seen := make(map[string]bool)
	page := ""
	for number := 2; ; number++ {
		e, err := c.do(ctx, call{method: http.MethodGet, path: path + page, program: program})
		if err != nil {
			return nil, err
		}
		var records []T
		if err := json.Unmarshal(e.Data, &records); err != nil {
			return nil, fmt.Errorf("invalid response of the server: %w", err)
		}
		for i := range records {
			if one := id(&records[i]); !seen[one] {
				seen[one] = true
				all = append(all, records[i])
			}
		}
		if number > e.Meta.Pagination.TotalPages {
			return all, nil
		}
		page = fmt.Sprintf("&page[number]=%d", number)
	}
}

// Concurrency and sizes of the requests that read the state.
const (
	readers       = 8
	programsATime = 50 // IDs in one request; keeps the URL short
)

// State reads the current state of what a file mentions. An error that concerns one program is
// stored in that program's state, and State reads the others.
func (c *Client) State(ctx context.Context, f *File) (*State, error) {
	s := &State{EventTypes: make(map[string]json.RawMessage), Programs: make(map[string]*ProgramState)}
	types, err := list(ctx, c, "/v2/event_types", "", func(t *EventType) string { return t.Name })
	if err != nil {
		return nil, err
	}
	for _, t := range types {
		s.EventTypes[t.Name] = t.Schema
	}
	for some := range slices.Chunk(f.Programs, programsATime) {
		if err := c.programs(ctx, some, s); err != nil {
			return nil, err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for i := range f.Programs {
		p := &f.Programs[i]
		state := s.Programs[p.ID]
		if state == nil || state.Err != nil || len(p.Subscriptions)+len(p.Tokens) == 0 {
			continue
		}
		g.Go(func() error {
			err := c.contents(ctx, p, state)
			if concernsOne(err) {
				state.Err, err = err, nil
			}
			return err
		})
	}
	return s, g.Wait()
}

// contents reads the subscriptions and the tokens of a program, if the file has any.
func (c *Client) contents(ctx context.Context, p *Program, state *ProgramState) (err error) {
	if len(p.Subscriptions) > 0 {
		path := fmt.Sprintf("%s?page[size]=%d", subscriptionsPath, pageSize)
		if state.Subscriptions, err = list(ctx, c, path, p.ID, func(s *SubscriptionState) string { return s.ID }); err != nil {
			return err
		}
	}
	if len(p.Tokens) > 0 {
		path := fmt.Sprintf("%s?page[size]=%d&filter[state]=valid", tokensPath(p.ID), pageSize)
		state.Tokens, err = list(ctx, c, path, "", func(t *TokenState) string { return t.ID })
	}
	return err
}

// unusable returns why nothing in a program can be changed, according to its status in the API; nil
// if it can.
func unusable(status string) error {
	switch status {
	case "", "active":
		return nil
	case "erasing":
		return errors.New("it is being erased: remove it from the file, or run again when that has finished to create it")
	case webhook.ProgramMoved:
		return errors.New("it has moved to another installation, which service program list shows: apply its part of the file there")
	case webhook.ProgramMoving, webhook.ProgramArriving:
		return Temporary{Err: errors.New("it is being moved between installations: run again when that has finished")}
	}
	return fmt.Errorf("its status is %s: run again when it is active", status)
}

// programs reads the programs of the file that exist.
func (c *Client) programs(ctx context.Context, some []Program, s *State) error {
	ids := make([]string, len(some))
	for i, p := range some {
		ids[i] = p.ID
	}
	path := fmt.Sprintf("/v2/programs?page[size]=%d&filter[id]=%s", pageSize, url.QueryEscape(strings.Join(ids, ",")))
	all, err := list(ctx, c, path, "", func(p *ProgramState) string { return p.ID })
	for i := range all {
		p := &all[i]
		p.Err = unusable(p.Status)
		s.Programs[p.ID] = p
	}
	return err
}
