package api

import (
	"context"
	"io"
	"mime"
	"time"

	"github.com/google/uuid"

	"service/store"
	"service/webhook"
)

// moveIDs returns the program and the move that the path names.
func moveIDs(req *request) (programID, moveID string, err error) {
	programID, moveID = req.params.ByName("id"), req.params.ByName("move_id")
	if faults := webhook.CheckIdentifier("id", programID); faults != nil {
		return "", "", webhook.Invalid(faults...)
	}
	if id, err := uuid.Parse(moveID); req.params.ByName("move_id") != "" && (err != nil || id.String() != moveID) {
		fault := webhook.Validation{Code: webhook.InvalidFormat, Parameter: "move_id", Detail: "must be a UUID in lower case"}
		return "", "", webhook.Invalid(fault)
	}
	return programID, moveID, nil
}

func readMove(req *request) (answer, error) {
	programID, _, err := moveIDs(req)
	if err != nil {
		return answer{}, err
	}
	state, err := req.api.moves.State(req.ctx, programID)
	return answer{data: state}, err
}

// upload returns the body of a request, which may have any size. Its duration is not bounded; the
// silence between two reads is.
func (req *request) upload() (io.Reader, error) {
	if media, _, err := mime.ParseMediaType(req.http.Header.Get("Content-Type")); err != nil || media != "application/x-tar" {
		return nil, webhook.NewError(webhook.CodeUnsupportedMedia, "The Content-Type must be application/x-tar.")
	}
	req.writeUntil(time.Time{})
	req.ctx = req.http.Context()
	return stream{req}, nil
}

func receiveFirst(req *request) (answer, error) {
	return receivePart(req, func(ctx context.Context, programID, moveID string, body io.Reader) error {
		return req.api.moves.First(ctx, programID, moveID, body, req.actor())
	})
}

func receiveChanges(req *request) (answer, error) {
	return receivePart(req, req.api.moves.Changes)
}

func receiveRest(req *request) (answer, error) {
	return receivePart(req, func(ctx context.Context, programID, moveID string, body io.Reader) error {
		_, err := req.api.moves.Rest(ctx, programID, moveID, body, req.actor())
		return err
	})
}

// receivePart passes a part of a program to the target of its move.
func receivePart(req *request,
	part func(ctx context.Context, programID, moveID string, body io.Reader) error) (answer, error) {
	programID, moveID, err := moveIDs(req)
	if err != nil {
		return answer{}, err
	}
	body, err := req.upload()
	if err == nil {
		err = part(req.http.Context(), programID, moveID, body)
	}
	if err != nil {
		return answer{}, err
	}
	req.unread = false
	return readMove(req)
}

func activateMove(req *request) (answer, error) {
	programID, moveID, err := moveIDs(req)
	if err != nil {
		return answer{}, err
	}
	if err := req.api.moves.Activate(req.ctx, programID, moveID, req.actor()); err != nil {
		return answer{}, err
	}
	return readMove(req)
}

func abortMove(req *request) (answer, error) {
	programID, moveID, err := moveIDs(req)
	if err != nil {
		return answer{}, err
	}
	if err := req.api.moves.Abort(req.http.Context(), programID, moveID, req.actor()); err != nil {
		return answer{}, err
	}
	return readMove(req)
}

// MoveRequest names the installation that a program moves to.
type MoveRequest struct {
	ProgramID string           `json:"program_id"`
	To        store.MoveTarget `json:"to"`
}

// moveProgram moves a program and streams progress. The move continues if the client disconnects.
func (cfg OwnerConfig) moveProgram(req *request, in *MoveRequest) (answer, error) {
	job, attached, err := cfg.Moves.Start(req.ctx, in.ProgramID, &in.To, req.actor())
	if err != nil {
		return answer{}, err
	}
	return req.streamed(func(w io.Writer) error {
		if attached {
			req.show(w, Progress{Text: "The move is already in progress."})
		}
		return job.Follow(req.ctx, func(text string) { req.show(w, Progress{Text: text}) })
	}), nil
}
