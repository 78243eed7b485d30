package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	strictjson "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"service/internal/durable"
	"service/internal/terminal"
	"service/webhook"
)

type auditCmd struct {
	List   auditListCmd   `cmd:"" help:"List entries of the audit log, newest first."`
	Export auditExportCmd `cmd:"" help:"Write the whole audit log as NDJSON, oldest first, with what is necessary to verify it."`
	Verify auditVerifyCmd `cmd:"" help:"Verify the hashes of the audit log, or of an exported file. Exits with status 1 and names the first entry that does not match."`
}

type auditListCmd struct {
	storeFlags
	Admin   []string `placeholder:"EMAIL" help:"Only changes by these admins, or by terminal."`
	TokenID []string `name:"token-id" placeholder:"ID" help:"Only changes by these tokens."`
	Program []string `placeholder:"ID" help:"Only changes in these programs."`
	Action  []string `placeholder:"A" help:"Only these actions, such as subscription.delete."`
	Subject []string `placeholder:"ID" help:"Only changes of these records."`
	From    string   `placeholder:"TIME" help:"Only entries from this time or date on, such as 2026-03-14."`
	To      string   `placeholder:"TIME" help:"Only entries up to this time or date."`
	Limit   string   `default:"50" placeholder:"N" help:"Maximum number of entries; 0 lists all."`
	JSON    bool     `name:"json" help:"Print one JSON object per line."`
}

// values returns the query of the list.
func (c *auditListCmd) values() url.Values {
	v := url.Values{}
	for name, values := range map[string][]string{
		"admin": c.Admin, "token_id": c.TokenID, "program_id": c.Program, "action": c.Action, "subject_id": c.Subject,
	} {
		if len(values) > 0 {
			v.Set("filter["+name+"]", strings.Join(values, ","))
		}
	}
	if c.From != "" {
		v.Set("filter[at.from]", c.From)
	}
	if c.To != "" {
		v.Set("filter[at.to]", c.To)
	}
	return v
}

func (c *auditListCmd) Run(ctx context.Context, std Streams) error {
	var f configErrors
	limit, err := strconv.Atoi(c.Limit)
	if err != nil || limit < 0 {
		f.add("limit", "must be a number, 0 or more, not %q", c.Limit)
	}
	values := c.values()
	if _, invalid := webhook.AuditList.Parse(values); invalid != nil {
		f.addInvalid(invalid)
	}
	if err := f.err(); err != nil {
		return err
	}
	t, err := c.open(ctx, std)
	if err != nil {
		return err
	}
	defer t.Close()
	print, end := auditPrinter(std.Out, c.JSON)
	listed := 0
	err = pages(ctx, t, "/v2/audit", values, func(page []webhook.AuditRecord) error {
		for i := range page {
			if limit > 0 && listed == limit {
				return io.EOF
			}
			if err := print(&page[i]); err != nil {
				return err
			}
			listed++
		}
		return nil
	})
	if err != nil && err != io.EOF {
		return err
	}
	return end()
}

// addInvalid adds the errors in a query of the audit log, with the names of the flags.
func (f *configErrors) addInvalid(invalid *webhook.Error) {
	flags := map[string]string{"filter[action]": "action", "filter[at.from]": "from", "filter[at.to]": "to", "filter[admin]": "admin",
		"filter[token_id]": "token-id", "filter[program_id]": "program", "filter[subject_id]": "subject"}
	for _, v := range invalid.Validations {
		f.add(cmp.Or(flags[v.Parameter], v.Parameter), "%s", v.Detail)
	}
}

// auditPrinter returns a function that prints an entry, and a function that ends the list.
func auditPrinter(w io.Writer, lines bool) (print func(*webhook.AuditRecord) error, end func() error) {
	if lines {
		b := bufio.NewWriter(w)
		encoder := json.NewEncoder(b)
		return func(r *webhook.AuditRecord) error { return encoder.Encode(r) }, b.Flush
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	any := false
	text := func(s *string) string {
		if s == nil || *s == "" {
			return "-"
		}
		return terminal.Escape(*s)
	}
	print = func(r *webhook.AuditRecord) error {
		if !any {
			fmt.Fprintln(t, "NUMBER\tTIME\tWHO\tFROM\tACTION\tPROGRAM\tRECORD\tREQUEST\tDETAILS")
		}
		any = true
		who := &r.Actor
		if r.Admin != nil {
			who = r.Admin
		}
		_, err := fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Number, r.At, text(who), text(r.Address), r.Action,
			text(r.ProgramID), text(r.SubjectID), text(r.RequestID), text(r.Detail))
		return err
	}
	end = func() error {
		if !any {
			fmt.Fprintln(t, "No entries match.")
		}
		return t.Flush()
	}
	return print, end
}

type auditExportCmd struct {
	storeFlags
	File string `arg:"" optional:"" placeholder:"FILE" help:"New file to write. Default: standard output."`
}

func (c *auditExportCmd) Run(ctx context.Context, std Streams) error {
	if c.File != "" {
		if _, err := os.Lstat(c.File); err == nil {
			return fmt.Errorf("%s exists already; name a new file", c.File)
		}
	}
	t, err := c.open(ctx, std)
	if err != nil {
		return err
	}
	defer t.Close()
	write := func(w io.Writer) error {
		print, end := auditPrinter(w, true)
		return errors.Join(lines(ctx, t.Client, http.MethodPost, "/v2/owner/audit/export", nil, print), end())
	}
	if c.File == "" {
		return write(std.Out)
	}
	f, err := durable.CreateTemp(c.File)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := errors.Join(write(f), f.Sync(), f.Close()); err != nil {
		return err
	}
	return durable.Rename(f.Name(), c.File)
}

type auditVerifyCmd struct {
	storeFlags
	Expect string `placeholder:"HASH" help:"Hash that was noted elsewhere, such as in the server's log. An entry must have it."`
	File   string `arg:"" optional:"" placeholder:"FILE" help:"File that audit export wrote, - for standard input. Default: the audit log itself."`
}

func (c *auditVerifyCmd) Run(ctx context.Context, std Streams) error {
	var v webhook.AuditVerifier
	if c.Expect != "" {
		expect, err := webhook.ParseAuditHash(c.Expect)
		if err != nil {
			var f configErrors
			f.add("expect", "%s", err)
			return f.err()
		}
		v.Expect = expect
	}
	add := func(r *webhook.AuditRecord) error {
		e, err := r.Entry()
		if err != nil {
			return fmt.Errorf("entry %d does not match: %w", r.Number, err)
		}
		return v.Add(&e)
	}
	if err := c.each(ctx, std, &v, add); err != nil {
		return err
	}
	s, err := v.End()
	if err != nil {
		return err
	}
	return printVerified(std.Out, &s, c.Expect != "")
}

// each calls add, which adds to v, with every entry. It fails if the log is empty although it must
// not be.
func (c *auditVerifyCmd) each(ctx context.Context, std Streams, v *webhook.AuditVerifier, add func(*webhook.AuditRecord) error) error {
	switch c.File {
	case "":
		t, err := c.open(ctx, std)
		if err != nil {
			return err
		}
		err = lines(ctx, t.Client, http.MethodGet, "/v2/owner/audit", nil, add)
		if s, _ := v.End(); err == nil && s.Entries == 0 {
			err = emptyAudit(ctx, t)
		}
		return errors.Join(err, t.Close())
	case "-":
		return readAudit(std.In, add)
	}
	f, err := os.Open(c.File)
	if err != nil {
		return err
	}
	defer f.Close()
	return readAudit(f, add)
}

// emptyAudit returns an error if the audit log must not be empty: creating an admin or a token adds
// an entry, and retention never removes the newest entry.
func emptyAudit(ctx context.Context, t data) error {
	var admins []webhook.Admin
	var tokens []webhook.Token
	err := t.Call(ctx, http.MethodGet, "/v2/owner/admins", nil, &admins)
	err2 := t.Call(ctx, http.MethodGet, "/v2/owner/tokens", nil, &tokens)
	if err := errors.Join(err, err2); err != nil || len(admins)+len(tokens) == 0 {
		return err
	}
	return fmt.Errorf("the audit log is empty, although there are %s and %s: its entries were removed outside of the service",
		webhook.Count(len(admins), "admin"), webhook.Count(len(tokens), "token"))
}

// readAudit calls add with the entries of an exported file.
func readAudit(r io.Reader, add func(*webhook.AuditRecord) error) error {
	lines := jsontext.NewDecoder(r)
	for n := 1; ; n++ {
		var record webhook.AuditRecord
		// Decode strictly, with each name once and in its own case: of two values, other programs
		// may read the one that was not verified.
		switch err := strictjson.UnmarshalDecode(lines, &record, strictjson.RejectUnknownMembers(true)); {
		case errors.Is(err, io.EOF) && n == 1:
			return errors.New("the file has no entries; an export has at least the one about itself")
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("line %d is no entry of an audit log: %w", n, err)
		}
		if err := add(&record); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
}

// printVerified reports what was verified.
func printVerified(w io.Writer, s *webhook.AuditSummary, expected bool) error {
	if s.Entries == 0 {
		_, err := fmt.Fprintln(w, "The audit log is empty.")
		return err
	}
	fmt.Fprintf(w, "All %s match: %d to %d, from %s to %s.\n", webhook.Count(int(s.Entries), "entry"), s.First, s.Last,
		webhook.FormatTime(s.FirstAt), webhook.FormatTime(s.LastAt))
	if s.First > 1 {
		fmt.Fprintf(w, "Earlier entries were removed by retention. Hash of the last one: %s\n", s.Anchor)
	}
	for _, g := range s.Gaps {
		fmt.Fprintf(w, "Entry %d continues the log after a restore at %s from %s. Entries after %d that existed before the "+
			"restore are not in it. Hash of entry %[4]d: %s\n", g.Num+1, webhook.FormatTime(g.At), terminal.Escape(g.From), g.Num, g.Hash)
	}
	if s.Erased > 0 {
		fmt.Fprintf(w, "The details of %s were erased with their program.\n", webhook.Count(int(s.Erased), "entry"))
	}
	if expected {
		fmt.Fprintln(w, "The expected hash was found.")
	}
	_, err := fmt.Fprintf(w, "Newest hash: %s\n", s.Newest)
	return err
}
