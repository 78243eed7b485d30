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

// MoveTarget receives programs that other installations move here, see package move.
type MoveTarget interface {
	State(ctx context.Context, programID string) (webhook.MoveState, error)
	First(ctx context.Context, programID, moveID string, body io.Reader, entry webhook.AuditEntry) error
	Changes(ctx context.Context, programID, moveID string, body io.Reader) error
	Rest(ctx context.Context, programID, moveID string, body io.Reader, actor webhook.AuditEntry) (store.Imported, error)
	Activate(ctx context.Context, programID, moveID string, actor webhook.AuditEntry) error
	Abort(ctx context.Context, programID, moveID string, actor webhook.AuditEntry) error
}

// moveHandlers serve the routes of programs that move here.
type moveHandlers struct{ api *API }

// ids returns the program and the move that the path names.
func (moveHandlers) ids(req *request) (programID, moveID string, err error) {
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

func (h moveHandlers) read(req *request) (answer, error) {
	programID, _, err := h.ids(req)
	if err != nil {
		return answer{}, err
	}
	state, err := h.api.moves.State(req.ctx, programID)
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

func (h moveHandlers) first(req *request) (answer, error) {
	return h.receive(req, func(ctx context.Context, programID, moveID string, body io.Reader) error {
		return h.api.moves.First(ctx, programID, moveID, body, req.actor())
	})
}

func (h moveHandlers) changes(req *request) (answer, error) {
	return h.receive(req, h.api.moves.Changes)
}

func (h moveHandlers) rest(req *request) (answer, error) {
	return h.receive(req, func(ctx context.Context, programID, moveID string, body io.Reader) error {
		_, err := h.api.moves.Rest(ctx, programID, moveID, body, req.actor())
		return err
	})
}

// receive passes a part of a program to the MoveTarget.
func (h moveHandlers) receive(req *request,
	part func(ctx context.Context, programID, moveID string, body io.Reader) error) (answer, error) {
	programID, moveID, err := h.ids(req)
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
	return h.read(req)
}

func (h moveHandlers) activate(req *request) (answer, error) {
	programID, moveID, err := h.ids(req)
	if err != nil {
		return answer{}, err
	}
	if err := h.api.moves.Activate(req.ctx, programID, moveID, req.actor()); err != nil {
		return answer{}, err
	}
	return h.read(req)
}

func (h moveHandlers) abort(req *request) (answer, error) {
	programID, moveID, err := h.ids(req)
	if err != nil {
		return answer{}, err
	}
	if err := h.api.moves.Abort(req.http.Context(), programID, moveID, req.actor()); err != nil {
		return answer{}, err
	}
	return h.read(req)
}

// MoveRequest names the installation that a program moves to.
type MoveRequest struct {
	ProgramID string           `json:"program_id"`
	To        store.MoveTarget `json:"to"`
}

// moveProgram moves a program and streams progress. The move continues if the client disconnects.
func (h ownerHandlers) moveProgram(req *request, in *MoveRequest) (answer, error) {
	job, attached, err := h.Moves.Start(req.ctx, in.ProgramID, &in.To, req.actor())
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
