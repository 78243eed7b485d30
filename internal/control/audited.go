package control

import (
	"context"
	"errors"
	"io"

	"golang.org/x/sync/errgroup"

	"service/internal/archive"
	"service/store"
	"service/webhook"
)

// AuditedStore is the store for commands. It records their changes in the audit log.
type AuditedStore struct {
	*store.Store
	Version string // of the binary, for the manifest of backups
	// Catalog returns the event types, for exports and imports of programs.
	Catalog func() (*webhook.Catalog, error)
}

// terminal is the actor of commands.
func terminal() webhook.AuditEntry { return webhook.AuditEntry{Admin: webhook.Terminal} }

// entry returns an entry of the audit log.
func (AuditedStore) entry(action webhook.Action, programID, subjectID, detail string) webhook.AuditEntry {
	return webhook.AuditEntry{Admin: webhook.Terminal, Action: action, ProgramID: programID, SubjectID: subjectID, Detail: detail}
}

// audit records an action on a program, "" for none, in a write of its own.
func (t AuditedStore) audit(ctx context.Context, action webhook.Action, programID, detail string) error {
	return t.Write(ctx, func(w store.Write) error { return w.Audit(t.entry(action, programID, programID, detail)) })
}

// CreateToken calls [store.TokenWrites.Create].
func (t AuditedStore) CreateToken(ctx context.Context, n webhook.NewToken) (token webhook.Token, secret string, err error) {
	err = t.Write(ctx, func(w store.Write) (err error) {
		token, secret, err = w.Tokens().Create(n, terminal())
		return err
	})
	return token, secret, err
}

// CreatePortalLink calls [store.PortalWrites.CreateLink].
func (t AuditedStore) CreatePortalLink(ctx context.Context, n webhook.NewPortalLink) (l webhook.PortalLink, code string, err error) {
	err = t.Write(ctx, func(w store.Write) (err error) {
		l, code, err = w.Portal().CreateLink(n, terminal())
		return err
	})
	return l, code, err
}

// Tokens calls [store.Tokens.List].
func (t AuditedStore) Tokens(ctx context.Context) ([]webhook.Token, error) {
	return t.Store.Tokens().List(ctx)
}

// Admins calls [store.Admins.List].
func (t AuditedStore) Admins(ctx context.Context) ([]webhook.Admin, error) {
	return t.Store.Admins().List(ctx)
}

// RevokeToken calls [store.TokenWrites.Revoke].
func (t AuditedStore) RevokeToken(ctx context.Context, id string) (token webhook.Token, err error) {
	err = t.Write(ctx, func(w store.Write) (err error) {
		token, err = w.Tokens().Revoke(id, terminal())
		return err
	})
	return token, err
}

// RotateKey calls [store.Store.RotateKey].
func (t AuditedStore) RotateKey(ctx context.Context) (store.KeyRotation, error) {
	r, err := t.Store.RotateKey(ctx)
	if err != nil {
		return r, err
	}
	return r, t.audit(ctx, webhook.ActionKeyRotate, "", "re-encrypted "+webhook.Count(r.Secrets(), "secret"))
}

// CreateAdmin calls [store.AdminWrites.Create].
func (t AuditedStore) CreateAdmin(ctx context.Context, email string, role webhook.Role,
	hash webhook.PasswordHash) (admin webhook.Admin, err error) {
	err = t.Write(ctx, func(w store.Write) (err error) {
		if admin, err = w.Admins().Create(email, role, hash); err != nil {
			return err
		}
		return w.Audit(t.entry(webhook.ActionAdminCreate, "", admin.ID, email+" as "+string(role)))
	})
	return admin, err
}

// PasswordReset is the result of [AuditedStore.ResetPassword].
type PasswordReset struct {
	Sessions        int `json:"sessions"`         // that ended
	RemovedPasskeys int `json:"removed_passkeys"` // of the admin
	Passkeys        int `json:"passkeys"`         // that remain
}

// ResetPassword sets a new password and ends the admin's sessions. It also removes the admin's
// passkeys if removePasskeys.
func (t AuditedStore) ResetPassword(ctx context.Context, email string, hash webhook.PasswordHash,
	removePasskeys bool) (did PasswordReset, err error) {
	err = t.Write(ctx, func(w store.Write) error {
		admin, err := w.Admins().Get(email)
		if err != nil {
			return err
		}
		did = PasswordReset{}
		if did.Sessions, err = w.Admins().SetPassword(admin.ID, hash, ""); err != nil {
			return err
		}
		detail := email + "; ended " + webhook.Count(did.Sessions, "session")
		if removePasskeys {
			if did.RemovedPasskeys, err = w.Passkeys().RemoveAll(admin.ID); err != nil {
				return err
			}
			detail += "; removed " + webhook.Count(did.RemovedPasskeys, "passkey")
		}
		if did.Passkeys, err = w.Passkeys().Count(admin.ID); err != nil {
			return err
		}
		return w.Audit(t.entry(webhook.ActionAdminPassword, "", admin.ID, detail))
	})
	return did, err
}

// RemoveAdmin calls [store.AdminWrites.Remove].
func (t AuditedStore) RemoveAdmin(ctx context.Context, email string) error {
	return t.Write(ctx, func(w store.Write) error {
		admin, err := w.Admins().Remove(email)
		if err != nil {
			return err
		}
		return w.Audit(t.entry(webhook.ActionAdminRemove, "", admin.ID, email))
	})
}

// EndSessions ends the sessions of one admin, or of all if email is empty. It returns their
// number.
func (t AuditedStore) EndSessions(ctx context.Context, email string) (ended int, err error) {
	all, err := t.Admins(ctx)
	if err != nil {
		return 0, err
	}
	found := email == ""
	err = t.Write(ctx, func(w store.Write) error {
		for _, admin := range all {
			if email != "" && admin.Email != email {
				continue
			}
			found = true
			n, err := w.Sessions().EndAll(admin.ID, "")
			if err != nil {
				return err
			}
			ended += n
			if n > 0 {
				entry := t.entry(webhook.ActionSessionEnd, "", admin.ID, "from the command line: ended "+webhook.Count(n, "session"))
				if err := w.Audit(entry); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err == nil && !found {
		err = webhook.NotFound("admin")
	}
	return ended, err
}

// Salvage publishes events of an old primary. It returns how many of them are new.
func (t AuditedStore) Salvage(ctx context.Context, programID string, events []webhook.Event) (added int, err error) {
	err = t.Write(ctx, func(w store.Write) (err error) {
		if added, err = w.Publish(programID, events); err != nil || added == 0 {
			return err
		}
		return w.Audit(t.entry(webhook.ActionEventPublish, programID, "", "salvaged from an old primary: "+webhook.Count(added, "event")))
	})
	return added, err
}

// Release ends the hold after a restore.
func (t AuditedStore) Release(ctx context.Context) error {
	return t.Write(ctx, func(w store.Write) error { return w.Release(terminal()) })
}

// DeleteProgram begins to erase a program. If no server runs, it erases all of it.
func (t AuditedStore) DeleteProgram(ctx context.Context, id string) (webhook.Erasure, error) {
	e, err := t.beginErasure(ctx, id)
	if err != nil {
		return e, err
	}
	err = t.Store.Programs().Erase(ctx)
	e.Finished = err == nil
	return e, err
}

// beginErasure begins to erase a program.
func (t AuditedStore) beginErasure(ctx context.Context, id string) (e webhook.Erasure, err error) {
	err = t.Write(ctx, func(w store.Write) error {
		began, err := w.Programs().Erase(id, terminal())
		e = t.Store.Programs().Erasure(id, began)
		return err
	})
	return e, err
}

// ProgramSpace calls [store.Programs.ExportSpace].
func (t AuditedStore) ProgramSpace(ctx context.Context, copies int) (y ProgramSpace, err error) {
	y.Need, y.Free, err = t.Store.Programs().ExportSpace(ctx, copies)
	return y, err
}

// ExportProgram calls use with the input of [archive.WriteProgram].
func (t AuditedStore) ExportProgram(ctx context.Context, r archive.ProgramRequest, use func(io.Reader) error) error {
	s, err := t.programSource(ctx, &r)
	if err != nil {
		return err
	}
	return pipe(s, use)
}

// programSource exports a program and records that in the audit log.
func (t AuditedStore) programSource(ctx context.Context, r *archive.ProgramRequest) (*archive.ProgramSource, error) {
	catalog, err := t.Catalog()
	if err != nil {
		return nil, err
	}
	s, err := archive.NewProgramSource(ctx, t.Store, catalog, r, t.Version)
	if err != nil {
		return nil, err
	}
	if err := t.audit(ctx, webhook.ActionProgramExport, r.ProgramID, ""); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// ImportProgram imports a program from the output of [archive.ProgramSource.Send], in a process
// without a server. The next start records attempts that were in flight as interrupted.
func (t AuditedStore) ImportProgram(ctx context.Context, from io.Reader) (store.Imported, error) {
	if err := t.Store.Programs().Erase(ctx); err != nil { // what an interrupted import left
		return store.Imported{}, err
	}
	return t.importProgram(ctx, from, &store.ProgramImport{Idle: true})
}

// importProgram imports a program. It refuses everything that it can before it adds anything.
func (t AuditedStore) importProgram(ctx context.Context, from io.Reader, x *store.ProgramImport) (y store.Imported, err error) {
	p, err := archive.ReceiveProgram(ctx, from, t.Dir(), t.Store.Programs().ImportRoom)
	if err != nil {
		return y, err
	}
	defer func() { err = errors.Join(err, p.Remove()) }()
	catalog, err := t.Catalog()
	if err != nil {
		return y, err
	}
	types, err := p.Types.Check(ctx, catalog)
	if err != nil {
		return y, err
	}
	x.Path, x.Key, x.ProgramID = p.Path, p.Key, p.Header.ProgramID
	x.Audit = t.entry(webhook.ActionProgramImport, "", "", "")
	y, err = t.Store.Programs().Import(ctx, x, func(w store.Write, y store.Imported) error {
		if err := types.Create(w, t.entry("", "", "", "")); err != nil {
			return err
		}
		detail := webhook.Count(y.Subscriptions, "subscription") + ", " + webhook.Count(y.Events, "event") + ", " +
			webhook.Count(y.Deliveries, "delivery")
		return w.Audit(t.entry(webhook.ActionProgramImport, y.ProgramID, y.ProgramID, detail))
	})
	if errors.Is(err, store.ErrUnusable) {
		err = webhook.NewError(webhook.CodeInvalid, "The export cannot be imported: "+err.Error()+".")
	}
	return y, err
}

// Backup calls use with the input of [archive.Write].
func (t AuditedStore) Backup(ctx context.Context, r archive.Request, use func(io.Reader) error) error {
	s, err := t.source(ctx, &r)
	if err != nil {
		return err
	}
	return pipe(s, use)
}

// source takes a snapshot and records that in the audit log, because it contains all data.
func (t AuditedStore) source(ctx context.Context, r *archive.Request) (*archive.Source, error) {
	s, err := archive.NewSource(ctx, t.Store, r, t.Version)
	if err != nil {
		return nil, err
	}
	detail := "without the keys"
	if r.Keys {
		detail = "with the keys, encrypted"
	}
	if err := t.audit(ctx, webhook.ActionBackupCreate, "", detail); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// sender is an [archive.Source] or an [archive.ProgramSource].
type sender interface {
	Send(io.Writer) error
	Close() error
}

// pipe calls use with what s sends, and closes s.
func pipe(s sender, use func(io.Reader) error) error {
	in, out := io.Pipe()
	var g errgroup.Group
	g.Go(func() error { return out.CloseWithError(s.Send(out)) })
	err := use(in)
	in.CloseWithError(context.Canceled) // stops Send if use has not read everything
	return errors.Join(err, g.Wait(), s.Close())
}
