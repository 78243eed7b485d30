package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/term"

	"service/internal/terminal"
)

type programDeleteCmd struct {
	dataFlag
	keyFlag
	Yes bool   `help:"Do not ask for confirmation on a terminal."`
	ID  string `arg:"" help:"Program to erase."`
}

func (c *programDeleteCmd) Run(ctx context.Context, std Streams) error {
	if err := c.confirm(std); err != nil {
		return err
	}
	d, err := openData(ctx, c.dataFlag, c.keyFlag, std, false)
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

// confirm asks for the id of the program if stdin is a terminal.
func (c *programDeleteCmd) confirm(std Streams) error {
	tty, ok := std.In.(*os.File)
	if c.Yes || !ok || !term.IsTerminal(int(tty.Fd())) {
		return nil
	}
	fmt.Fprintf(std.Err, "This erases everything in program %s and cannot be undone. Type its ID to confirm: ", terminal.Escape(c.ID))
	line, err := bufio.NewReader(tty).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != c.ID {
		return errors.New("not confirmed: nothing was changed")
	}
	return nil
}
