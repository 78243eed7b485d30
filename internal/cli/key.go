package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"service/internal/control"
	"service/internal/terminal"
	"service/store"
	"service/webhook"
)

type keyCmd struct {
	Rotate keyRotateCmd `cmd:"" help:"Replace the key that secrets are sealed with, and seal them all anew, while the server runs or not. Copies of the database made before need the old key: keep one as long as those copies."`
}

type keyRotateCmd struct {
	dataFlag
	keyFlag
}

func (c *keyRotateCmd) Run(ctx context.Context, std Streams) error {
	d, err := openData(ctx, c.dataFlag, c.keyFlag, std, false)
	if err != nil {
		return err
	}
	defer d.Close()
	r, err := d.RotateKey(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.New("interrupted: nothing is lost, the file holds the new key and the old one; call this again, or restart the service")
	case err != nil:
		return err
	}
	return printRotation(std.Out, &r)
}

// printRotation tells what was done, and what is left to do.
func printRotation(w io.Writer, r *store.KeyRotation) error {
	count := []string{
		webhook.Count(r.AuthorizationHeaders, "authorization header"),
		webhook.Count(r.SigningSecrets, "signing secret"),
		webhook.Count(r.Answers, "kept answer"),
		webhook.Count(r.CertificateFiles, "certificate file"),
	}
	if r.AlertChannels > 0 {
		count = append(count, webhook.Count(r.AlertChannels, "alert channel"))
	}
	_, err := fmt.Fprintf(w, "The key in %s is new, and %s with it: %s.\n", terminal.Escape(r.File), control.CountEncrypted(r.Secrets()), strings.Join(count, ", "))
	if err == nil && r.OldKeyKept {
		_, err = fmt.Fprintln(w, "The service cannot write the file: remove all its lines but the first, which are of no more use.")
	}
	return err
}
