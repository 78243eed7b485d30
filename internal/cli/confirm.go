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

// confirmFlag is the flag of commands that cannot be undone. Commands that lose data only with
// another flag, such as --force, need no second one.
type confirmFlag struct {
	Yes bool `help:"Do not ask for confirmation. Required without a terminal, since this cannot be undone."`
}

// confirm prompts on a terminal before the command does what cannot be undone; what is for example
// "erases everything", and the user must type answer. Without a terminal, only --yes confirms.
func (c confirmFlag) confirm(ctx context.Context, std Streams, what, answer string) error {
	if c.Yes {
		return nil
	}
	tty, ok := std.In.(*os.File)
	if !ok || !term.IsTerminal(int(tty.Fd())) {
		return usagef("--yes: is required without a terminal: this %s and cannot be undone", what)
	}
	fmt.Fprintf(std.Err, "This %s and cannot be undone. Type %s to confirm: ", terminal.Escape(what), terminal.Escape(answer))
	line, err := bufio.NewReader(interruptible(ctx, tty)).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != answer {
		return errors.New("not confirmed: nothing was changed")
	}
	return nil
}
