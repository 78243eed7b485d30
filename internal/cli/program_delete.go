package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"service/internal/terminal"
)

type programDeleteCmd struct {
	storeFlags
	confirmFlag
	ID string `arg:"" help:"Program to erase."`
}

func (c *programDeleteCmd) Run(ctx context.Context, std Streams) error {
	if err := c.confirm(ctx, std, "erases everything in program "+c.ID, c.ID); err != nil {
		return err
	}
	d, err := c.open(ctx, std)
	if err != nil {
		return err
	}
	defer d.Close()
	var program struct{ Erasure struct{ Notice string } }
	err = d.Call(ctx, http.MethodDelete, "/v2/programs/"+url.PathEscape(c.ID), nil, &program)
	if err == nil && d.store != nil {
		err = d.store.Programs().Erase(ctx)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.New("interrupted: the next start of the service continues to erase the program")
	case err != nil:
		return err
	}
	format := "Erasing program %s: its tokens are invalid, and nothing more is sent. The id can be used again when that has finished.\n%s\n"
	if d.store != nil {
		format = "Erased program %s.\n%s\n"
	}
	_, err = fmt.Fprintf(std.Out, format, terminal.Escape(c.ID), program.Erasure.Notice)
	return err
}
