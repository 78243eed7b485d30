package web

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"service/store"
	"service/store/list"
	"service/store/record"
	"service/web/ui"
	"service/webhook"
)

// eventPages are the pages of events.
type eventPages struct{ *site }

// eventRecords is a page of the log of one program, or of all programs.
type eventRecords struct {
	list    *ui.Listing
	events  []webhook.Event
	results []record.EventResult // of the events
	pager   ui.Pager
	newRows *ui.NewRows
	api     string // reads the same over the API
	failed  string // the ID of this request if the rows could not be loaded, "" if they could
}

func (h *eventPages) list(r *request) (response, error) {
	v, err := r.listing(webhook.EventList)
	if err != nil {
		return response{}, err
	}
	v.Events = h.eventNames()
	e := eventRecords{list: v}
	failed, status, err := h.loaded(r, v, func() error { return h.readList(r, &e) })
	if err != nil {
		return response{}, err
	}
	e.failed = failed
	f := h.frame(r, "Events")
	f.NewRows = e.newRows
	return response{page: eventsPage(f, &e), status: status}, nil
}

// readList reads the rows of a page.
func (h *eventPages) readList(r *request, e *eventRecords) (err error) {
	q := &e.list.Query
	e.api = h.curl.Command("GET", ui.Address("/v2/events", webhook.EventList.Values(q)), "")
	var next string
	if e.newRows, err = h.newRows(r, e.list, h.arrived); err != nil {
		return err
	}
	if e.events, next, err = h.readPage(r, q); err != nil {
		return err
	}
	e.pager, err = feedPager(e.list, next, func() (string, error) { return h.store.Events().Newer(r.Context(), r.program, q) })
	if err != nil {
		return err
	}
	e.results, err = h.store.Events().Results(r.Context(), e.events)
	return err
}

// arrived counts the events of a list that were stored after a mark.
func (h *eventPages) arrived(r *request, q *webhook.ListQuery, mark string) (list.Arrived, error) {
	return h.store.Events().Arrived(r.Context(), r.program, q, mark)
}

// resultOf returns the result of an event: the state that sets its color and symbol, its word, and
// the details.
func resultOf(r *record.EventResult) (state, word, more string) {
	total := r.Total()
	switch {
	case total == 0 && r.More:
		return "pending", "unknown", "too many subscriptions to check"
	case total == 0:
		return "", "no subscriber", ""
	case r.Failed > 0:
		state, word = "failed", "failed"
	case r.Retrying > 0:
		state, word = "retryable", "retrying"
	case r.Sending+r.Waiting > 0:
		state, word = "pending", "pending"
	default:
		state, word = "success", "delivered"
	}
	if r.Delivered == total && !r.More {
		return state, word, "to " + webhook.Count(total, "subscription")
	}
	of := ui.Number(int64(total))
	if r.More {
		of = "at least " + of
	}
	parts := []string{ui.Number(int64(r.Delivered)) + " of " + of + " delivered"}
	for _, p := range []struct {
		n    int
		word string
	}{{r.Failed, "failed"}, {r.Retrying, "retrying"}, {r.Sending, "sending"}, {r.Waiting, "waiting"}} {
		if p.n > 0 {
			parts = append(parts, ui.Number(int64(p.n))+" "+p.word)
		}
	}
	return state, word, strings.Join(parts, ", ")
}

// payloadText returns the beginning of an event's payload fields as JSON.
func payloadText(e *webhook.Event) string {
	// Every event begins with id, timestamp, name and version, in this order.
	_, own, found := bytes.Cut(e.JSON, []byte(`,"version":"`+e.Version+`",`))
	if !found {
		return ""
	}
	text := ui.TrimPartialRune(own[:min(len(own), 160)])
	return "{" + string(text)
}

// readPage reads a page of the selected program's log.
func (h *eventPages) readPage(r *request, q *webhook.ListQuery) ([]webhook.Event, string, error) {
	if r.program == "" {
		return h.store.Events().PageAll(r.Context(), q)
	}
	return h.store.Events().Page(r.Context(), r.program, q)
}

// export sends all events that match the filters of a list: as NDJSON that can be published, or as
// CSV with the columns of the list. It reads page by page, at the pace of the client.
func (h *eventPages) export(r *request) (response, error) {
	v, err := r.listing(webhook.EventList, "format")
	if err != nil {
		return response{}, err
	}
	format := r.URL.Query().Get("format")
	if v.Error != nil || exportTypes[format] == "" {
		return response{}, &problem{
			status: http.StatusBadRequest, title: "The export failed",
			text: "The address must have format=ndjson or format=csv, and filters that the list supports.",
		}
	}
	detail := "as " + format + ": " + cmp.Or(webhook.EventList.Selection(&v.Query), "everything")
	if err := h.audit(r, webhook.ActionEventExport, r.program, "", detail); err != nil {
		return response{}, err
	}
	e := export{
		columns: []string{"program_id", "seq", "id", "name", "timestamp", "received_at", "bytes"},
		page: func(q *webhook.ListQuery) (rows [][]any, more bool, err error) {
			events, next, err := h.readPage(r, q)
			for i := range events {
				e := &events[i]
				rows = append(rows, []any{e.ProgramID, e.Seq, e.ID, e.Name, e.Timestamp, e.ReceivedAt, len(e.JSON)})
			}
			q.Cursor = next
			return rows, next != "", err
		},
		lines: func(q *webhook.ListQuery, to io.Writer) (more bool, err error) {
			events, next, err := h.readPage(r, q)
			if err != nil {
				return false, err
			}
			out := bufio.NewWriterSize(to, 64<<10)
			for i := range events {
				if events[i].ErasedAt.IsZero() { // an erased event cannot be published
					out.Write(events[i].JSON)
					out.WriteByte('\n')
				}
			}
			q.Cursor = next
			return next != "", out.Flush()
		},
	}
	return response{file: e.file("events", format, v.Query)}, nil
}

// eventRecord is one event with its deliveries.
type eventRecord struct {
	record.EventView
	outcomes []eventOutcome // of the subscriptions with deliveries on this page
	newest   string         // address of the first page of its deliveries, "" if this is the first
	older    string         // of the next page
	api      string
}

// eventOutcome is the outcome of an event at a subscription: the newest successful delivery, or
// else the newest delivery.
type eventOutcome struct{ record.EventDelivery }

// outcomesOf returns the outcome of each subscription, given its deliveries, newest first.
func outcomesOf(deliveries []record.EventDelivery) (all []eventOutcome) {
	for _, d := range deliveries {
		i := slices.IndexFunc(all, func(o eventOutcome) bool { return o.SubscriptionID == d.SubscriptionID })
		if i < 0 {
			all = append(all, eventOutcome{d})
		} else if d.Status == webhook.StatusSuccess && all[i].Status != webhook.StatusSuccess {
			all[i] = eventOutcome{d}
		}
	}
	return all
}

// verb begins the sentence about a subscription.
func (o *eventOutcome) verb() string {
	switch {
	case o.Splitting || o.Status == webhook.StatusRetryable:
		return "Retrying for "
	case o.Status == webhook.StatusSuccess:
		return "Delivered to "
	case o.FailureReason == webhook.FailureCancelled:
		return "Cancelled for "
	case o.Status == webhook.StatusFailed:
		return "Failed for "
	}
	return "Being sent to "
}

// result ends the sentence: 200 (attempt 2), or 502 (2 of 5 attempts).
func (o *eventOutcome) result() string {
	text := strconv.Itoa(o.ResponseStatus)
	if o.Error != webhook.ErrorNone {
		text = errorName(o.Error)
	}
	attempts := " (" + strconv.Itoa(o.AttemptsMade) + " of " + strconv.Itoa(webhook.MaxAttempts) + " attempts)"
	switch note, _ := deliveryNoteOf(&o.Delivery, false); {
	case o.Status == webhook.StatusSuccess:
		return text + " (attempt " + strconv.Itoa(o.AttemptsMade) + ")"
	case o.Splitting, o.Status == webhook.StatusPending:
		return note
	case o.ResponseStatus == 0 && o.Error == webhook.ErrorNone:
		return note + attempts
	}
	return text + attempts
}

// waitReason says why a subscription has not reached an event.
func waitReason(w *record.EventWait) string {
	switch {
	case w.Subscription.Status == webhook.HealthDisabled:
		return "disabled"
	case !w.Subscription.Active:
		return "paused"
	case w.Behind > 1:
		return webhook.Count(int(w.Behind)-1, "earlier event") + " first"
	}
	return "next in the event log"
}

func (h *eventPages) show(r *request) (response, error) {
	program, id := r.PathValue("program"), r.PathValue("id")
	if !r.mine(program) {
		return response{}, asProblem(webhook.NotFound("event"))
	}
	cursor := r.URL.Query().Get("page[cursor]")
	view, err := h.store.Events().View(r.Context(), program, id, cursor)
	var invalid *webhook.Error
	if errors.As(err, &invalid) && invalid.Code == webhook.CodeInvalid {
		return response{}, &problem{status: http.StatusBadRequest, title: "Invalid address", text: invalid.Error()}
	}
	if err != nil {
		return response{}, asProblem(err)
	}
	e := &eventRecord{EventView: view, outcomes: outcomesOf(view.Deliveries), api: h.curl.Command("GET", "/v2/events/"+id, "")}
	if cursor != "" {
		e.newest = ui.At(r.Context(), eventPath(program, id))
	}
	if view.Older != "" {
		e.older = ui.Address(ui.At(r.Context(), eventPath(program, id)), url.Values{"page[cursor]": {view.Older}})
	}
	return response{page: eventPage(h.frame(r, "Event "+ui.Visible(e.Name)), e)}, nil
}

// outcome describes the result of the event in a sentence.
func (e *eventRecord) outcome() string {
	removed := ""
	if e.Removed > 0 {
		stored := "; that delivery is no longer stored."
		if e.Removed > 1 {
			stored = "; those deliveries are no longer stored."
		}
		removed = "Delivered to " + webhook.Count(e.Removed, "subscription") + stored
	}
	switch {
	case len(e.outcomes) > 0 || len(e.Waiting) > 0:
	case !e.ErasedAt.IsZero() && removed == "":
		return "Erased before it was sent."
	case removed != "":
		return removed
	default:
		return "No active subscription included its type when it was published."
	}
	counts := make(map[webhook.Status]int)
	for i := range e.outcomes {
		counts[webhook.Status(stateOf(&e.outcomes[i].Delivery))]++
	}
	var parts []string
	for _, s := range []struct {
		status webhook.Status
		text   string
	}{
		{webhook.StatusSuccess, "delivered to %d"}, {webhook.StatusFailed, "failed for %d"},
		{webhook.StatusRetryable, "retrying for %d"}, {webhook.StatusPending, "being sent to %d"},
	} {
		if n := counts[s.status]; n > 0 {
			parts = append(parts, fmt.Sprintf(s.text, n))
		}
	}
	if n := len(e.Waiting); n > 0 {
		parts = append(parts, fmt.Sprintf("waiting for %d", n))
	}
	text := webhook.Count(len(e.outcomes)+len(e.Waiting), "subscription") + ": " + strings.Join(parts, ", ") + "."
	if e.older != "" || e.newest != "" {
		text = "On this page: " + text
	}
	if removed != "" {
		text += " " + removed
	}
	return text
}

// body is the JSON of the event for display.
func (e *eventRecord) body() *ui.Body {
	return &ui.Body{ID: "event", Name: "JSON", Data: e.JSON, Size: -1, Download: eventPath(e.ProgramID, e.ID) + "/body.json.txt"}
}

// body sends the JSON of an event as a file.
func (h *eventPages) body(r *request) (response, error) {
	if !r.mine(r.PathValue("program")) {
		return response{}, asProblem(webhook.NotFound("event"))
	}
	e, err := h.store.Events().Get(r.Context(), r.PathValue("program"), r.PathValue("id"))
	if err != nil {
		return response{}, asProblem(err)
	}
	return textFile("event-"+e.ID+".json.txt", e.JSON), nil
}

// confirmErase asks before an event is erased.
func (h *eventPages) confirmErase(r *request) (response, error) {
	e, err := h.store.Events().Get(r.Context(), r.PathValue("program"), r.PathValue("id"))
	if err != nil {
		return response{}, asProblem(err)
	}
	return response{page: eraseEventPage(h.frame(r, "Erase event"), &e)}, nil
}

func (h *eventPages) erase(r *request) (response, error) {
	var e webhook.Event
	err := h.store.Write(r, func(sw store.Write) (err error) {
		e, err = sw.EraseEvent(r.PathValue("program"), r.PathValue("id"), r.actor())
		return err
	})
	return saved(err, eventPath(e.ProgramID, e.ID),
		"Payload erased. Copies in responses and in free space are removed in the background.")
}

// maxPublishForm bounds the publish form: an event whose bytes may each be encoded as three.
const maxPublishForm = 3*webhook.MaxEventBytes + maxForm

// publishForm is an event that is being published.
type publishForm struct {
	program string
	text    string // the JSON
	names   []string
	errors  []ui.FieldError
	asking  map[string]record.EventSubscribers // of the program, by event type
	name    string                             // of the event, "" if it cannot be read
	curl    string
}

// newForm shows the form with the example of an event type, or with an earlier event.
func (h *eventPages) newForm(r *request) (response, error) {
	f := publishForm{program: r.program}
	values := r.URL.Query()
	if id := values.Get("like"); id != "" {
		e, err := h.store.Events().Get(r.Context(), r.program, id)
		if err != nil {
			return response{}, asProblem(err)
		}
		f.text = draft(e.JSON)
	} else {
		name := values.Get("name")
		if name == "" {
			name = h.publishableNames()[0]
		}
		t, ok := h.cfg.Rules.Catalog.Type(name)
		if !ok || name == webhook.EventPing {
			return response{}, &problem{
				status: http.StatusNotFound, title: "Unknown event type",
				text: "The catalog has no event type of this name that can be published.",
			}
		}
		f.text = draft(t.Example)
	}
	return h.renderForm(r, http.StatusOK, &f)
}

// publishableNames returns the event types that can be published.
func (h *eventPages) publishableNames() []string {
	var names []string
	for _, t := range h.cfg.Rules.Catalog.Types() {
		if t.Name != webhook.EventPing {
			names = append(names, t.Name)
		}
	}
	return names
}

func (h *eventPages) renderForm(r *request, status int, f *publishForm) (response, error) {
	var err error
	if r.programs == nil {
		if r.programs, err = h.store.Programs().IDs(r.Context(), ui.MaxProgramChoices); err != nil {
			return response{}, err
		}
	}
	if f.program == "" && len(r.programs) == 1 {
		f.program = r.programs[0]
	}
	f.names, f.text = h.publishableNames(), ui.EscapeJSONText(f.text)
	var named struct{ Name string }
	if json.Unmarshal([]byte(f.text), &named) == nil {
		f.name = named.Name
	}
	if f.program != "" {
		if f.asking, err = h.store.Events().CountSubscribers(r.Context(), f.program); err != nil {
			return response{}, err
		}
	}
	if compact := new(bytes.Buffer); json.Compact(compact, []byte(f.text)) == nil && compact.Len() <= maxCurlBody {
		f.curl = h.curl.CommandText("POST", "/v2/events", compact.String())
	}
	return response{page: publishPage(h.frame(r, "Publish event"), f), status: status}, nil
}

// draft renders an event as text to publish, without a timestamp. A new ID ensures that the event
// is published once, however often the form is sent.
func draft(event []byte) string {
	var fields map[string]json.RawMessage
	d := json.NewDecoder(bytes.NewReader(event))
	if json.Unmarshal(event, &fields) != nil {
		return string(event)
	}
	out := []byte(`{"id":` + strconv.Quote(webhook.NewID()))
	d.Token() // the opening brace
	for d.More() {
		key, err := d.Token()
		var value json.RawMessage
		if err != nil || d.Decode(&value) != nil {
			return string(event)
		}
		name, _ := key.(string)
		if name == "id" || name == "timestamp" {
			continue
		}
		quoted, err := json.Marshal(name)
		if err != nil {
			return string(event)
		}
		out = append(append(append(append(out, ','), quoted...), ':'), value...)
	}
	var b bytes.Buffer
	if json.Indent(&b, append(out, '}'), "", "  ") != nil {
		return string(event)
	}
	return ui.EscapeJSONText(b.String())
}

// publish publishes an event with the same checks as the API.
func (h *eventPages) publish(r *request) (response, error) {
	form := r.PostForm
	f := publishForm{program: strings.TrimSpace(form.Get("program")), text: form.Get("event")}
	fields := map[string][2]string{"program": {"publish-program", "Program"}}
	wrong := ui.FieldErrors(validationError(webhook.CheckIdentifier("program", f.program)), fields)
	if wrong == nil {
		there, err := h.store.Programs().Exists(r.Context(), f.program)
		if err != nil {
			return response{}, err
		}
		if !there {
			wrong = []ui.FieldError{{ID: "publish-program", Label: "Program", Text: "does not exist; the first token of a program creates it"}}
		}
	}
	event, refused := h.cfg.Rules.Catalog.NewEvent([]byte(f.text), "", time.Now())
	if refused != nil {
		wrong = append(wrong, eventErrors(refused)...)
	}
	if f.errors = wrong; wrong != nil {
		return h.renderForm(r, http.StatusUnprocessableEntity, &f)
	}
	added := 0
	events := []webhook.Event{event}
	err := h.store.Write(r, func(sw store.Write) (err error) {
		if added, err = sw.Publish(f.program, events); err != nil || added == 0 {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionEventPublish, f.program, event.ID, event.Name))
	})
	if errors.As(err, &refused) && refused.Code == webhook.CodeConflict {
		f.errors = eventErrors(refused)
		return h.renderForm(r, http.StatusUnprocessableEntity, &f)
	}
	if errors.As(err, &refused) && refused.Code == webhook.CodeUnavailable {
		return response{}, &problem{
			status: http.StatusServiceUnavailable, title: "The event cannot be stored",
			text: refused.Detail, retryAfter: 10 * time.Second,
		}
	}
	if err != nil {
		return response{}, err
	}
	said := ui.Note{Kind: ui.NoteSuccess, Text: "Event published. It is sent to all active subscriptions to " + event.Name + "."}
	if added == 0 {
		said = ui.Note{Kind: ui.NoteWarning, Text: "This event was already published. Nothing was added."}
	}
	return response{location: eventPath(f.program, event.ID), note: &said}, nil
}

// eventErrors assigns all validations of an event's JSON to the form's single field.
func eventErrors(e *webhook.Error) []ui.FieldError {
	if len(e.Validations) == 0 {
		return []ui.FieldError{{ID: "publish-event", Label: "Event:", Text: e.Detail}}
	}
	var all []ui.FieldError
	for _, v := range e.Validations {
		label := ui.Visible(v.Parameter)
		if label == "" {
			label = "Event"
		}
		all = append(all, ui.FieldError{ID: "publish-event", Label: label, Text: v.Detail})
	}
	return all
}

// errorTexts joins all validations of a field, for the line below it.
func errorTexts(all []ui.FieldError, id string) string {
	var texts []string
	for _, f := range all {
		if f.ID == id {
			texts = append(texts, f.Label+" "+f.Text)
		}
	}
	return strings.Join(texts, "; ")
}

// readTimestamp returns the timestamp of an event.
func readTimestamp(s string) (time.Time, bool) {
	t, err := time.Parse(time.RFC3339Nano, s)
	return t, err == nil
}
