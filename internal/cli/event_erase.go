package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"service/internal/terminal"
	"service/webhook"
)

type eventCmd struct {
	Erase eventEraseCmd `cmd:"" help:"Erase the payloads of the events that match. Their IDs, names and times stay. This cannot be undone."`
}

type eventEraseCmd struct {
	storeFlags
	confirmFlag
	Program string `placeholder:"ID" help:"Program whose events are searched."`
	Where   string `placeholder:"FIELD=VALUE" help:"Field of the payload and its value, such as user_id=4711. Names joined by dots select fields of objects; of an array, one element that matches is enough. A number matches by its value."`
	DryRun  bool   `help:"Count the events that match, and change nothing."`
}

// Run searches the log of the program from its beginning, over the API: the server does not
// learn the value, so no log has it. It can be repeated after an interruption.
func (c *eventEraseCmd) Run(ctx context.Context, std Streams) error {
	var f configErrors
	if c.Program == "" {
		f.add("program", "is required: the program whose events are searched")
	}
	field, value, ok := strings.Cut(c.Where, "=")
	if !ok || field == "" {
		f.add("where", "is required, as FIELD=VALUE such as user_id=4711")
	}
	if err := f.err(); err != nil {
		return err
	}
	if !c.DryRun {
		if err := c.confirm(ctx, std, "erases payloads of events in program "+c.Program, c.Program); err != nil {
			return err
		}
	}
	d, err := c.open(ctx, std)
	if err != nil {
		return err
	}
	defer d.Close()
	e := &eventErasure{ctx: ctx, api: apiConn{send: d.API, program: c.Program}, path: strings.Split(field, "."),
		value: value, dryRun: c.DryRun, progress: terminal.NewProgress(std.Err)}
	err = e.run()
	e.progress.End()
	if err == nil && d.store != nil && !c.DryRun {
		err = d.store.Events().ClearErased(ctx)
	}
	if err != nil && e.erased > 0 {
		return fmt.Errorf("%w; %s erased before, run the command again for the rest", err, webhook.Count(e.erased, "event"))
	}
	if err != nil {
		return err
	}
	copies := "Copies are removed in the background"
	if d.store != nil {
		copies = "Copies are removed" // but for those of attempts in flight, by the next start
	}
	text := "Erased " + webhook.Count(e.erased, "event") + " of " + webhook.Count(e.read, "event") + ". " + copies +
		"; backups, exports and the replica keep theirs for a while."
	if c.DryRun {
		text = webhook.Count(e.matched, "event") + " of " + webhook.Count(e.read, "event") + " would be erased."
	}
	_, err = fmt.Fprintln(std.Out, text)
	return err
}

// eventErasure erases the matching events of a program.
type eventErasure struct {
	ctx      context.Context
	api      apiConn
	path     []string
	value    string
	dryRun   bool
	progress *terminal.Progress

	read, matched, erased int
}

func (e *eventErasure) run() error {
	for cursor, again := "", true; again; {
		query := url.Values{"sort": {"received_at"}, "page[size]": {"100"}}
		if cursor != "" {
			query.Set("page[cursor]", cursor)
		}
		var page struct {
			Data []json.RawMessage
			Meta struct{ Pagination struct{ Next string } }
		}
		answer, err := e.api.call(e.ctx, http.MethodGet, "/v2/events?"+query.Encode(), "", nil, http.StatusOK)
		if err == nil {
			err = json.Unmarshal(answer, &page)
		}
		if err != nil {
			return err
		}
		for _, event := range page.Data {
			if err := e.examine(event); err != nil {
				return err
			}
		}
		// At the end of the log the cursor stays.
		next := page.Meta.Pagination.Next
		again, cursor = next != "" && next != cursor, next
		e.progress.Show("%s read, %s matched", webhook.Count(e.read, "event"), webhook.Count(e.matched, "event"))
	}
	return nil
}

func (e *eventErasure) examine(event []byte) error {
	e.read++
	d := json.NewDecoder(bytes.NewReader(event))
	d.UseNumber()
	var fields any
	if err := d.Decode(&fields); err != nil {
		return err
	}
	if !fieldIs(fields, e.path, e.value) {
		return nil
	}
	if e.matched++; e.dryRun {
		return nil
	}
	id, _ := fields.(map[string]any)["id"].(string)
	_, err := e.api.call(e.ctx, http.MethodDelete, "/v2/events/"+url.PathEscape(id), "", nil, http.StatusAccepted)
	if err == nil {
		e.erased++
	}
	return err
}

// fieldIs reports whether a field has a value: as a string, as a number of the same value, such as
// 4711 for 4711.0, or as true or false.
func fieldIs(v any, path []string, value string) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(path) > 0 && fieldIs(v[path[0]], path[1:], value)
	case []any:
		for _, element := range v {
			if fieldIs(element, path, value) {
				return true
			}
		}
		return false
	case string:
		return len(path) == 0 && v == value
	case json.Number:
		return len(path) == 0 && webhook.SameNumber(v.String(), value)
	case bool:
		return len(path) == 0 && fmt.Sprint(v) == value
	}
	return false
}
