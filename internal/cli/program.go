package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"service/internal/control"
	"service/internal/terminal"
	"service/webhook"
)

type programCmd struct {
	List   programListCmd   `cmd:"" help:"List the programs with their limits and health, ordered by ID."`
	Export programExportCmd `cmd:"" help:"Export a program with everything in it to an encrypted file. The server may be running."`
	Import programImportCmd `cmd:"" help:"Import a program from a file that program export wrote. The program must not exist here."`
	Move   programMoveCmd   `cmd:"" help:"Move a program to another installation while both run. It is frozen for seconds."`
	Delete programDeleteCmd `cmd:"" help:"Erase a program with everything in it. This cannot be undone."`
}

type programListCmd struct {
	dataFlag
	keyFlag
	JSON bool `name:"json" help:"Print a JSON array."`
}

func (c *programListCmd) Run(ctx context.Context, std Streams) error {
	t, err := openData(ctx, c.dataFlag, c.keyFlag, std)
	if err != nil {
		return err
	}
	defer t.Close()
	all, err := t.Programs(ctx)
	if err != nil {
		return err
	}
	if !c.JSON {
		return printPrograms(std.Out, all)
	}
	records := make([]programRecord, len(all))
	for i := range all {
		records[i] = newProgramRecord(&all[i])
	}
	return printJSON(std.Out, records)
}

// printPrograms prints the programs as a table.
func printPrograms(w io.Writer, all []control.Program) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "No programs yet.")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tSUBSCRIPTIONS\tFAILING\tTOKENS\tEVENTS\tATTEMPTS 24H\tFAILED 24H\tRATE LIMIT\tIN FLIGHT\tCREATED\tNAME")
	for i := range all {
		p, s := &all[i], &all[i].Statistics
		subscriptions := strconv.Itoa(s.Subscriptions)
		if p.Limits.MaxSubscriptions != nil {
			subscriptions += " of " + programLimit(p.Limits.MaxSubscriptions)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\n", p.ID, subscriptions, s.FailingSubscriptions, s.Tokens, s.Events,
			s.Attempts.Total(), s.Attempts.FailedAttempts(), programLimit(p.Limits.RateLimit), programLimit(p.Limits.MaxInFlight),
			day(p.CreatedAt), terminal.Escape(programName(p)))
	}
	return t.Flush()
}

// programName returns the name of a program, with its status unless it is active.
func programName(p *control.Program) string {
	switch {
	case p.Status() == "active":
		return p.Name
	case p.Move != nil && p.Move.Status != webhook.ProgramArriving:
		return strings.TrimSpace(p.Name + " (" + p.Status() + " to " + p.Move.URL + ")")
	}
	return strings.TrimSpace(p.Name + " (" + p.Status() + ")")
}

// programLimit formats a limit of a program.
func programLimit(limit *int) string {
	switch {
	case limit == nil:
		return "default"
	case *limit == 0:
		return "none"
	}
	return strconv.Itoa(*limit)
}

// programRecord is a program in JSON, like in the API.
type programRecord struct {
	ID         string                `json:"id"`
	Status     string                `json:"status"` // active, erasing, moving, moved or arriving
	Name       string                `json:"name"`
	Limits     webhook.ProgramLimits `json:"limits"`
	Origins    []string              `json:"portal_origins"`
	CreatedAt  time.Time             `json:"created_at"`
	UpdatedAt  time.Time             `json:"updated_at"`
	Statistics programStatistics     `json:"statistics"`
}

type programStatistics struct {
	Subscriptions         int              `json:"subscriptions"`
	ActiveSubscriptions   int              `json:"active_subscriptions"`
	FailingSubscriptions  int              `json:"failing_subscriptions"`
	DisabledSubscriptions int              `json:"disabled_subscriptions"`
	OpenIncidents         int              `json:"open_incidents"`
	Tokens                int              `json:"tokens"`
	Events                int64            `json:"events"`
	LastEventAt           *time.Time       `json:"last_event_at"`
	Attempts24h           map[string]int64 `json:"attempts_24h"`
}

func newProgramRecord(p *control.Program) programRecord {
	s := &p.Statistics
	r := programRecord{p.ID, p.Status(), p.Name, p.Limits, p.PortalOrigins, p.CreatedAt, p.UpdatedAt, programStatistics{
		Subscriptions: s.Subscriptions, ActiveSubscriptions: s.ActiveSubscriptions, FailingSubscriptions: s.FailingSubscriptions,
		DisabledSubscriptions: s.DisabledSubscriptions, OpenIncidents: s.OpenIncidents, Tokens: s.Tokens, Events: s.Events,
		Attempts24h: map[string]int64{"success": s.Attempts.Success, "failed": s.Attempts.Failed, "retryable": s.Attempts.Retryable},
	}}
	if !s.LastEventAt.IsZero() {
		r.Statistics.LastEventAt = &s.LastEventAt
	}
	return r
}
