package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"service/internal/move"
	"service/store"
	"service/webhook"
)

// moveRequest names the installation that a program moves to.
type moveRequest struct {
	URL   string `json:"url"`
	CA    string `json:"ca"`
	Token string `json:"token"`
}

// moveLine is a line of the response to a move: progress or, in the last line, the result.
type moveLine struct {
	Progress string         `json:"progress,omitempty"`
	Done     bool           `json:"done,omitempty"`
	Error    *webhook.Error `json:"error,omitempty"`
}

// moveProgram moves a program and streams progress. The move continues if the client goes away.
func (s *Server) moveProgram(w http.ResponseWriter, r *http.Request) {
	var job *move.Job
	var attached bool
	s.respond(func(r *http.Request) (any, error) {
		request, err := decode[moveRequest](r)
		if err != nil {
			return nil, err
		}
		to := &store.MoveTarget{URL: request.URL, CA: request.CA, Token: request.Token}
		job, attached, err = s.Moves.Start(r.Context(), r.PathValue("id"), to, s.Store.entry("", "", "", ""))
		return streamed{}, err
	})(w, r)
	if job == nil {
		return // respond has written the error
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines, flush := json.NewEncoder(w), http.NewResponseController(w).Flush
	send := func(line moveLine) {
		if lines.Encode(line) == nil { // an error means that the client is gone
			_ = flush()
		}
	}
	if attached {
		send(moveLine{Progress: "The move is already in progress."})
	}
	err := job.Follow(r.Context(), func(text string) { send(moveLine{Progress: text}) })
	last := moveLine{Done: err == nil}
	if err != nil && !errors.As(err, &last.Error) {
		last.Error = webhook.NewError(webhook.CodeConflict, err.Error())
	}
	send(last)
}

// MoveProgram moves a program to another installation, and calls progress with each step. It can
// be called again for a move that is in progress. The error is a *webhook.Error if the move
// failed; the program is then active here.
func (c *Client) MoveProgram(ctx context.Context, id string, to store.MoveTarget, progress func(string)) error {
	request := moveRequest{to.URL, to.CA, to.Token}
	return c.stream(ctx, http.MethodPost, "/programs/"+url.PathEscape(id)+"/move", request, func(response io.Reader) error {
		for lines := json.NewDecoder(response); ; {
			var line moveLine
			if err := lines.Decode(&line); err != nil {
				return fmt.Errorf("the running server ended the connection: %w", err)
			}
			switch {
			case line.Error != nil:
				return line.Error
			case line.Done:
				return nil
			}
			progress(line.Progress)
		}
	})
}
