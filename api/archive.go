package api

import (
	"errors"
	"io"
	"time"

	"service/internal/archive"
	"service/store"
	"service/store/datadir"
	"service/webhook"
)

// source is an [archive.Source] or an [archive.ProgramSource].
type source interface {
	Send(io.Writer) error
	Close() error
}

// sent returns the response that sends the source. It records the action in the audit log, because
// a source contains all data.
func (cfg OwnerConfig) sent(req *request, s source, action webhook.Action, programID, detail string) (answer, error) {
	if err := cfg.record(req, action, programID, detail); err != nil {
		return answer{}, errors.Join(err, s.Close())
	}
	return req.streamed(func(w io.Writer) error { return errors.Join(s.Send(w), s.Close()) }), nil
}

// backup sends the input of [archive.Write].
func (cfg OwnerConfig) backup(req *request, in *archive.Request) (answer, error) {
	s, err := archive.NewSource(req.ctx, req.api.store, in, cfg.Version)
	if err != nil {
		return answer{}, err
	}
	detail := "without the keys"
	if in.Keys {
		detail = "with the keys, encrypted"
	}
	return cfg.sent(req, s, webhook.ActionBackupCreate, "", detail)
}

// ExportSpace is the maximum size of a program's export, and the free disk space, in bytes.
type ExportSpace struct {
	Need int64 `json:"need"`
	Free int64 `json:"free"`
}

func (cfg OwnerConfig) exportSpace(req *request, in *archive.ProgramRequest) (answer, error) {
	need, free, err := req.api.store.Programs().ExportSpace(req.ctx, in.Copies)
	return answer{data: ExportSpace{need, free}}, err
}

// exportProgram sends the input of [archive.WriteProgram].
func (cfg OwnerConfig) exportProgram(req *request, in *archive.ProgramRequest) (answer, error) {
	if cfg.CatalogErr != nil {
		return answer{}, cfg.CatalogErr
	}
	s, err := archive.NewProgramSource(req.ctx, req.api.store, req.api.catalog, in, cfg.Version)
	if err != nil {
		return answer{}, err
	}
	return cfg.sent(req, s, webhook.ActionProgramExport, in.ProgramID, "")
}

// importProgram imports a program from the output of [archive.ProgramSource.Send]. It validates as
// much as possible before it adds anything. Without a server, the next start records attempts that
// were in flight as interrupted.
func (cfg OwnerConfig) importProgram(req *request) (ans answer, err error) {
	began, st := time.Now(), req.api.store
	if cfg.Retry == nil { // remove what an interrupted import left
		if err := st.Programs().Erase(req.ctx); err != nil {
			return ans, err
		}
	}
	p, err := archive.ReceiveProgram(req.ctx, req.http.Body, st.Dir(), st.Programs().ImportRoom)
	if err != nil {
		return ans, err
	}
	defer func() { err = errors.Join(err, p.Remove()) }()
	req.bodyRead()
	if cfg.CatalogErr != nil {
		return ans, cfg.CatalogErr
	}
	types, err := p.Types.Check(req.ctx, req.api.catalog)
	if err != nil {
		return ans, err
	}
	x := &store.ProgramImport{Path: p.Path, Key: p.Key, ProgramID: p.Header.ProgramID, Audit: req.actor(), Retry: cfg.Retry}
	x.Idle, x.Audit.Action = cfg.Retry == nil, webhook.ActionProgramImport
	y, err := st.Programs().Import(req.ctx, x, func(w store.Write, y store.Imported) error {
		if err := types.Create(w, req.actor()); err != nil {
			return err
		}
		detail := webhook.Count(y.Subscriptions, "subscription") + ", " + webhook.Count(y.Events, "event") + ", " +
			webhook.Count(y.Deliveries, "delivery")
		return req.audit(w, webhook.ActionProgramImport, y.ProgramID, y.ProgramID, detail)
	})
	if errors.Is(err, datadir.ErrUnusable) {
		err = webhook.NewError(webhook.CodeInvalid, "The export cannot be imported: "+err.Error()+".")
	}
	if err == nil {
		req.api.logger.Info("imported a program", "program", y.ProgramID, "events", y.Events, "deliveries", y.Deliveries,
			"duration", time.Since(began).Round(time.Millisecond))
	}
	return answer{data: y}, err
}
