package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

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
	storeFlags
	JSON bool `name:"json" help:"Print a JSON array."`
}

func (c *programListCmd) Run(ctx context.Context, std Streams) error {
	t, err := c.open(ctx, std)
	if err != nil {
		return err
	}
	defer t.Close()
	var all []programRecord
	records := []json.RawMessage{} // with every property
	err = pages(ctx, t, "/v2/programs", url.Values{}, func(page []json.RawMessage) error {
		for _, record := range page {
			var p programRecord
			if err := json.Unmarshal(record, &p); err != nil {
				return err
			}
			all, records = append(all, p), append(records, record)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case c.JSON:
		return printJSON(std.Out, records)
	}
	const header = "ID\tSUBSCRIPTIONS\tFAILING\tTOKENS\tEVENTS\tATTEMPTS 24H\tFAILED 24H\tRATE LIMIT\tIN FLIGHT\tCREATED\tNAME"
	return printList(std.Out, false, all, "No programs yet.", header, func(p *programRecord) string {
		s := &p.Statistics
		subscriptions := strconv.Itoa(s.Subscriptions)
		if p.Limits.MaxSubscriptions != nil {
			subscriptions += " of " + programLimit(p.Limits.MaxSubscriptions)
		}
		return fmt.Sprintf("%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s", p.ID, subscriptions, s.FailingSubscriptions, s.Tokens, s.Events,
			s.Attempts24h.Total(), s.Attempts24h.FailedAttempts(), programLimit(p.Limits.RateLimit), programLimit(p.Limits.MaxInFlight),
			day(p.CreatedAt), terminal.Escape(programName(p)))
	})
}

// programName returns the name of a program, with its status unless it is active.
func programName(p *programRecord) string {
	switch {
	case p.Status == "active":
		return p.Name
	case p.MovesTo != "":
		return strings.TrimSpace(p.Name + " (" + p.Status + " to " + p.MovesTo + ")")
	}
	return strings.TrimSpace(p.Name + " (" + p.Status + ")")
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

// programRecord is the part of a program's API record that is printed.
type programRecord struct {
	ID         string
	Status     string // active, erasing, importing, moving, moved or arriving
	MovesTo    string `json:"moves_to"`
	Name       string
	Limits     webhook.ProgramLimits
	CreatedAt  time.Time `json:"created_at"`
	Statistics struct {
		Subscriptions        int
		FailingSubscriptions int `json:"failing_subscriptions"`
		Tokens               int
		Events               int64
		Attempts24h          webhook.Stat `json:"attempts_24h"`
	}
}
