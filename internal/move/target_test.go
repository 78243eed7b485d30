package move_test

import (
	"bytes"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"

	"service/internal/archive"
	"service/internal/move"
	"service/store"
	"service/webhook"
)

// TestAbortDuringRest aborts a move while its last part is being received; a proxy in between keeps
// that request alive. The program must not stay at the target.
func TestAbortDuringRest(t *testing.T) {
	catalog, err := webhook.LoadCatalog()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		from, to := openStore(t, false), openStore(t, false)
		target := &move.Target{Store: to, Catalog: catalog, Logger: slog.New(slog.DiscardHandler)}
		defer target.Close()
		newToken(t, from, webhook.NewToken{ProgramID: "acme", UserID: "ada", Scopes: webhook.Scopes()})
		id := webhook.NewID()
		pack := func(x *store.ProgramExport, err error) *bytes.Buffer {
			t.Helper()
			var b bytes.Buffer
			if err == nil {
				var part *archive.ProgramSource
				if part, err = archive.NewSourceOf(x, catalog, "v"); err == nil {
					defer part.Close()
					err = part.Send(&b)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			return &b
		}
		x, first, err := from.Programs().ExportMove(t.Context(), "acme", 0)
		if err := target.First(t.Context(), "acme", id, pack(first, err), webhook.AuditEntry{Admin: webhook.Terminal}); err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		rest := pack(x.Rest(t.Context()))
		in, out := io.Pipe()
		received, aborted := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := target.Rest(t.Context(), "acme", id, in, webhook.AuditEntry{Admin: webhook.Terminal})
			in.CloseWithError(io.ErrClosedPipe)
			received <- err
		}()
		if _, err := out.Write(rest.Next(1000)); err != nil {
			t.Fatal(err)
		}
		go func() { aborted <- target.Abort(t.Context(), "acme", id, webhook.AuditEntry{Admin: webhook.Terminal}) }()
		synctest.Wait()
		_, _ = io.Copy(out, rest) // fails once the reception has ended
		out.Close()
		if err := <-received; err == nil {
			t.Error("the last part was received after the abort")
		}
		if err := <-aborted; err != nil {
			t.Error(err)
		}
		if m := to.Programs().Move("acme"); m != nil {
			t.Errorf("the target has the program: %+v", m)
		}
	})
}
