package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"service/api"
	"service/internal/control"
	"service/internal/terminal"
	"service/store"
	"service/store/datadir"
	"service/webhook"
)

type salvageCmd struct {
	dataFlag
	From   string `env:"-" placeholder:"DIR" help:"Data directory of the old primary, or a copy (required). It is not changed. No server may be running on it."`
	DryRun bool   `env:"-" help:"Print what would be published. Publishes nothing."`
}

// Limits of one request to the server, which accepts 1 MiB.
const (
	salvageIDs   = 1000
	salvageBytes = 500 << 10 // of events; base64 adds a third
)

// maxListed limits the number of printed events, and of printed records.
const maxListed = 100

// errNotSalvaged is the error of the command if events remain.
var errNotSalvaged = errors.New("not all missing events could be published; resolve the problems above and run the command again")

// Run publishes the missing events to the running server.
func (c *salvageCmd) Run(ctx context.Context, std Streams) (err error) {
	var f configErrors
	if c.From == "" {
		f.add("from", "is required: the data directory of the old primary")
		return f.err()
	}
	running, err := dialServer(ctx, c.Data, ": start the new primary first, and set --data to its data directory")
	if err != nil {
		return err
	}
	defer running.Close()
	old, err := datadir.OpenOldData(ctx, c.From)
	if errors.Is(err, store.ErrLocked) {
		return fmt.Errorf("--from: %w; stop it first", err)
	} else if err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	defer func() { err = errors.Join(err, old.Close()) }()
	s := &salvage{std: std, server: running, old: old, dryRun: c.DryRun, progress: terminal.NewProgress(std.Err)}
	if old.Warning != "" {
		s.progress.Note("%s; only the data before the damage is readable", old.Warning)
	}
	err = s.events(ctx)
	s.progress.End()
	s.summary()
	if err != nil {
		return fmt.Errorf("%w; you can run the command again: it publishes no event twice", err)
	}
	if err := s.records(ctx); err != nil {
		return err
	}
	if s.refused > 0 || s.unknown > 0 {
		return errNotSalvaged
	}
	return nil
}

// salvage compares the events of an old primary with those of the running server,
// and publishes what is missing.
type salvage struct {
	std      Streams
	server   *control.Client
	old      *datadir.OldData
	dryRun   bool
	progress *terminal.Progress

	compared  int
	missing   int
	added     int
	delivered int // missing events that a subscriber has already accepted
	expired   int // missing, and older than the retention
	unknown   int // in programs that the server does not have
	refused   int
	listed    int // events reported one by one
}

func (s *salvage) events(ctx context.Context) error {
	programs, err := s.old.Programs(ctx)
	if err != nil {
		return err
	}
	for _, program := range programs {
		if err := s.program(ctx, program); err != nil {
			return err
		}
	}
	return nil
}

// program compares the log of one program, in order.
func (s *salvage) program(ctx context.Context, program string) error {
	unknown := 0
	defer func() {
		if unknown > 0 {
			s.unknown += unknown
			s.printLine("%s of program %s not published: the new primary has no such program; create it with: %s token create --program %s",
				webhook.Count(unknown, "event"), program, commandName(), shellQuote(program))
		}
	}()
	for after := int64(0); ; {
		events, err := s.old.EventsAfter(ctx, program, after, salvageIDs)
		if err != nil || len(events) == 0 {
			return err
		}
		after = events[len(events)-1].Seq
		ids := make([]string, len(events))
		for i, e := range events {
			ids[i] = e.ID
		}
		var y api.MissingEvents
		err = s.server.Call(ctx, http.MethodPost, "/v2/owner/events/missing", api.SalvageRequest{ProgramID: program, IDs: ids}, &y)
		if err != nil {
			return err
		}
		s.compared += len(events)
		s.progress.Show("%s compared, %d missing", webhook.Count(s.compared, "event"), s.missing)
		if !y.Known {
			unknown += len(events)
			continue
		}
		if err := s.publish(ctx, program, s.choose(events, &y)); err != nil {
			return err
		}
	}
}

// choose returns the events to publish.
func (s *salvage) choose(events []datadir.OldEvent, y *api.MissingEvents) (missing []datadir.OldEvent) {
	absent := make(map[string]bool, len(y.Missing))
	for _, id := range y.Missing {
		absent[id] = true
	}
	for _, e := range events {
		switch {
		case !absent[e.ID]:
		case e.ReceivedAt.Before(y.KeptFrom):
			s.expired++ // the new primary may have removed it
		default:
			missing = append(missing, e)
		}
	}
	return missing
}

// publish publishes missing events in order.
func (s *salvage) publish(ctx context.Context, program string, missing []datadir.OldEvent) error {
	var batch []datadir.SalvagedEvent
	var ids []string
	bytes := 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		var y api.Salvaged
		err := s.server.Call(ctx, http.MethodPost, "/v2/owner/events/salvage",
			api.SalvageRequest{ProgramID: program, Events: batch, DryRun: s.dryRun}, &y)
		s.added += y.Added
		for _, r := range y.Refused {
			s.refused++
			s.event("event %s of program %s not published: %s", ids[r.Index], program, r.Why)
		}
		batch, ids, bytes = nil, nil, 0
		return err
	}
	for _, e := range missing {
		event, delivered, err := s.old.Event(ctx, program, e.Seq)
		if err != nil {
			return err
		}
		s.missing++
		if delivered {
			s.delivered++
		}
		if bytes+len(event.JSON) > salvageBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		batch, ids, bytes = append(batch, event), append(ids, e.ID), bytes+len(event.JSON)
	}
	return flush()
}

// printLine prints one line to stdout.
func (s *salvage) printLine(format string, args ...any) {
	s.progress.End()
	fmt.Fprintf(s.std.Out, "%s\n", terminal.Line(fmt.Sprintf(format, args...)))
}

// event prints a line about one event, for the first maxListed events.
func (s *salvage) event(format string, args ...any) {
	if s.listed++; s.listed <= maxListed {
		s.printLine(format, args...)
	}
}

func (s *salvage) summary() {
	if more := s.listed - maxListed; more > 0 {
		s.printLine("%d more events not published", more)
	}
	if s.expired > 0 {
		s.printLine("%s not published: older than the new primary's retention", webhook.Count(s.expired, "event"))
	}
	again := ""
	if s.delivered > 0 {
		again = fmt.Sprintf("; subscribers already got %d of them and get them again with the same event ids", s.delivered)
	}
	compared := webhook.Count(s.compared, "event") + " compared"
	switch {
	case s.missing == 0:
		s.printLine("%s: none to publish", compared)
	case s.dryRun:
		s.printLine("%s: %d missing, %d would be published%s", compared, s.missing, s.missing-s.refused, again)
	default:
		s.printLine("%s: %d missing, %d published%s", compared, s.missing, s.added, again)
	}
}

// records lists other records that exist only on the old primary.
func (s *salvage) records(ctx context.Context) error {
	old, err := s.old.Records(ctx)
	if err != nil {
		return err
	}
	var present []datadir.Record
	if err := s.server.Call(ctx, http.MethodGet, "/v2/owner/records", nil, &present); err != nil {
		return err
	}
	differences := datadir.CompareRecords(old, present)
	printDifferences(s.std.Out, differences)
	return nil
}

// printDifferences prints the changes of records that only the old primary has. Salvage does not
// copy them: secrets may have changed since, and only an admin should delete records.
func printDifferences(w io.Writer, all []datadir.Difference) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintln(w, "Only the old primary has these changes. They are not copied; repeat those that you still need:")
	for i, d := range all {
		if i == maxListed {
			fmt.Fprintf(w, "  and %d more\n", len(all)-i)
			break
		}
		of := ""
		if d.ProgramID != "" && d.Kind != "program" {
			of = " of program " + d.ProgramID
		}
		if d.Label != "" {
			of += " (" + d.Label + ")"
		}
		what := map[string]string{
			"created": "created at " + webhook.FormatTime(d.CreatedAt), "changed": "changed", "ended": "deleted",
		}[d.What]
		if d.What == "ended" && d.Kind == "token" {
			what = "revoked; still valid on the new primary"
		}
		fmt.Fprintf(w, "  %s\n", terminal.Line(fmt.Sprintf("%s %s%s: %s", d.Kind, d.ID, of, what)))
	}
}
