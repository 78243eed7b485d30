package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"service/internal/terminal"
	"service/store/rekey"
	"service/webhook"
)

type keyCmd struct {
	Rotate keyRotateCmd `cmd:"" help:"Replace the key and re-encrypt all secrets. The server may be running. Older copies of the database need the old key: keep it with them."`
}

type keyRotateCmd struct {
	storeFlags
	confirmFlag
}

func (c *keyRotateCmd) Run(ctx context.Context, std Streams) error {
	if err := c.confirm(ctx, std, "removes the key that existing copies of the database need", "yes"); err != nil {
		return err
	}
	d, err := c.open(ctx, std)
	if err != nil {
		return err
	}
	defer d.Close()
	var r rekey.Rotation
	err = d.CallSlow(ctx, http.MethodPost, "/v2/owner/key/rotate", nil, &r)
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.New("interrupted: the file has both the new key and the old one; to finish, run this again or restart the service")
	case err != nil:
		return err
	}
	return printRotation(std.Out, &r)
}

// printRotation prints what was re-encrypted and what remains to be done.
func printRotation(w io.Writer, r *rekey.Rotation) error {
	count := []string{
		webhook.Count(r.AuthorizationHeaders, "authorization header"),
		webhook.Count(r.Headers, "header set"),
		webhook.Count(r.SigningSecrets, "signing secret"),
		webhook.Count(r.Answers, "stored response"),
		webhook.Count(r.CertificateFiles, "certificate file"),
	}
	if r.AlertChannels > 0 {
		count = append(count, webhook.Count(r.AlertChannels, "alert channel"))
	}
	_, err := fmt.Fprintf(w, "Replaced the key in %s; re-encrypted %s with it: %s.\n",
		terminal.Escape(r.File), webhook.Count(r.Secrets(), "secret"), strings.Join(count, ", "))
	if err == nil && r.OldKeyKept {
		_, err = fmt.Fprintln(w, "The service cannot write this file. Remove every line but the first: the old key is no longer needed.")
	}
	if err == nil && r.WALKept {
		_, err = fmt.Fprintln(w, "A read, such as that of a backup, kept the write-ahead log (service.db-wal) from being emptied, "+
			"so it may still contain data that the old key encrypted. Run this again later.")
	}
	for _, host := range r.Standbys {
		if err == nil {
			_, err = fmt.Fprintf(w, "The standby %s cannot take over until it has this file too: copy it there; no restart is needed.\n",
				terminal.Escape(host))
		}
	}
	return err
}
