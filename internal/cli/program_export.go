package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"service/api"
	"service/internal/archive"
	"service/internal/terminal"
	"service/store"
	"service/webhook"
)

// exportPassphrase says where to read the passphrase of an export.
type exportPassphrase struct {
	PassphraseFile string `env:"SERVICE_EXPORT_PASSPHRASE_FILE" placeholder:"FILE" help:"File with the passphrase of the export. Default: a prompt on a terminal, otherwise stdin."`
}

func (c exportPassphrase) read(ctx context.Context, std Streams, fresh bool) (string, error) {
	return passphraseFlag(c).read(ctx, std, fresh)
}

type programExportCmd struct {
	storeFlags
	exportPassphrase
	Force bool   `help:"Replace an existing file."`
	ID    string `arg:"" help:"Program to export."`
	File  string `arg:"" help:"File to create, encrypted with the passphrase."`
}

func (c *programExportCmd) Run(ctx context.Context, std Streams) error {
	file := newFile{c.File, c.Force}
	if err := file.check(); err != nil {
		return err
	}
	d, err := c.open(ctx, std)
	if err != nil {
		return err
	}
	defer d.Close()
	r := archive.ProgramRequest{ProgramID: c.ID}
	if onOneDisk(filepath.Dir(c.File), c.Data) {
		r.Copies = 1 // the file
	}
	var space api.ExportSpace
	if err := d.Call(ctx, http.MethodPost, "/v2/owner/programs/space", r, &space); err != nil {
		return err
	}
	fmt.Fprintf(std.Err, "The export needs up to %s on the disk of %s while it is made; %s are free.\n", webhook.ByteSize(space.Need),
		terminal.Escape(c.Data), webhook.ByteSize(space.Free))
	if space.Need > space.Free {
		return errors.New("not enough disk space: nothing was exported")
	}
	passphrase, err := c.exportPassphrase.read(ctx, std, true)
	if err != nil {
		return err
	}
	var h *archive.ProgramHeader
	size, err := file.write(ctx, "export", func(f *os.File) error {
		return d.Stream(ctx, http.MethodPost, "/v2/owner/programs/export", r, func(from io.Reader) (err error) {
			h, err = archive.WriteProgram(f, from, passphrase, file.room)
			return err
		})
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.Out, "Created %s: program %s as of %s, %d bytes, encrypted with the passphrase.\n"+
		"It has everything of the program, and with the passphrase also its secrets. Store the passphrase separately.\n",
		terminal.Escape(c.File), h.ProgramID, webhook.FormatTime(h.CreatedAt), size)
	return err
}

type programImportCmd struct {
	storeFlags
	exportPassphrase
	File string `arg:"" help:"File from program export."`
}

func (c *programImportCmd) Run(ctx context.Context, std Streams) (err error) {
	f, err := openBackup(c.File)
	if err != nil {
		return err
	}
	defer f.Close()
	p, err := archive.VerifyProgram(ctx, f)
	if err != nil {
		return c.explain(ctx, err)
	}
	passphrase, err := c.exportPassphrase.read(ctx, std, false)
	if err != nil {
		return err
	}
	from, err := p.Open(ctx, passphrase)
	if err != nil {
		return c.explain(ctx, err)
	}
	d, err := c.open(ctx, std)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	var y store.Imported
	if err := d.CallSlow(ctx, http.MethodPost, "/v2/owner/programs/import", from, &y); err != nil {
		return c.explain(ctx, err)
	}
	_, err = fmt.Fprintf(std.Out, "Imported program %s as of %s: %s, %s, %s.\n", y.ProgramID, webhook.FormatTime(p.Header.CreatedAt),
		webhook.Count(y.Subscriptions, "subscription"), webhook.Count(y.Events, "event"), webhook.Count(y.Deliveries, "delivery"))
	for _, text := range y.Named {
		if err == nil {
			_, err = fmt.Fprintf(std.Out, "  %s\n", text)
		}
	}
	if err == nil && y.Interrupted > 0 {
		_, err = fmt.Fprintf(std.Out, "%s in flight, which may be sent again.\n", wasOrWere(y.Interrupted))
	}
	return err
}

func wasOrWere(n int) string {
	if n == 1 {
		return "1 delivery was"
	}
	return webhook.Count(n, "delivery") + " were"
}

// explain adds to an error that nothing was changed.
func (c *programImportCmd) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted: nothing of the program is visible, and what was added is removed")
	}
	return fmt.Errorf("%s: %s; nothing was changed", c.File, strings.TrimSuffix(err.Error(), "."))
}
