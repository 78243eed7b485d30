package cli

import (
	"context"
	"errors"
	"fmt"

	"service/internal/terminal"
)

type programDeleteCmd struct {
	dataFlag
	keyFlag
	confirmFlag
	ID string `arg:"" help:"Program to erase."`
}

func (c *programDeleteCmd) Run(ctx context.Context, std Streams) error {
	if err := c.confirm(ctx, std, "erases everything in program "+c.ID, c.ID); err != nil {
		return err
	}
	d, err := openData(ctx, c.dataFlag, c.keyFlag, std)
	if err != nil {
		return err
	}
	defer d.Close()
	e, err := d.DeleteProgram(ctx, c.ID)
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.New("interrupted: the next start of the service continues to erase the program")
	case err != nil:
		return err
	}
	format := "Erasing program %s: its tokens are invalid, and nothing more is sent. The id can be used again when that has finished.\n%s\n"
	if e.Finished {
		format = "Erased program %s.\n%s\n"
	}
	_, err = fmt.Fprintf(std.Out, format, terminal.Escape(c.ID), e.Notice())
	return err
}
