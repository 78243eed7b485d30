package web

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"service/webhook"
)

// export is a file with all records that match a list, one record per line, as NDJSON or CSV.
type export struct {
	noun    string // plural noun in the file name: tokens
	action  webhook.Action
	columns []string
	// page reads a page of rows and advances the query to the next page, if any. A row contains a
	// value for each column: a string, a number, a boolean, several strings, a time, or nil.
	page func(q *webhook.ListQuery) (rows [][]any, more bool, err error)
	only map[string]string // the format of columns that one format has, by name; not of the first column

	// lines writes a page as lines of NDJSON, nil to derive them from page. Without page, NDJSON is the only format.
	lines   func(q *webhook.ListQuery, to io.Writer) (more bool, err error)
	check   func(q *webhook.ListQuery) error // of a query that the list may reject, before the file begins; nil for none
	program string                           // of the entry in the audit log; "" for the one that is selected
	subject string                           // of the entry in the audit log, "" for none
}

// exportTypes are the formats of exports and their content types.
var exportTypes = map[string]string{"ndjson": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}

// exportList sends a list as a file. It reads page by page to keep each read of the store short.
// It records the export in the audit log.
func (h *site) exportList(r *request, l *webhook.List, e *export) (response, error) {
	v, err := r.listing(l, "format")
	if err != nil {
		return response{}, err
	}
	bad := func(text string) (response, error) {
		return response{}, &problem{status: http.StatusBadRequest, title: "The export failed", text: text}
	}
	if v.Error != nil {
		return bad(v.Error.Error())
	}
	format := r.URL.Query().Get("format")
	if e.page == nil {
		format = cmp.Or(format, "ndjson")
	}
	switch {
	case e.page == nil && format != "ndjson":
		return bad("The parameter format must be ndjson.")
	case exportTypes[format] == "":
		return bad("The parameter format must be ndjson or csv.")
	}
	if e.check != nil {
		if err := e.check(&v.Query); errors.As(err, &v.Error) {
			return bad(v.Error.Error())
		} else if err != nil {
			return response{}, err
		}
	}
	f := e.file(e.noun+"-"+r.clock.Now.UTC().Format("20060102-150405"), format, v.Query)
	if r.Method == http.MethodHead {
		return response{file: f}, nil
	}
	what := fmt.Sprintf("%s of %s", format, strings.TrimPrefix(v.Selection(v.Path), v.Path))
	if err := h.audit(r, e.action, cmp.Or(e.program, r.program), e.subject, what); err != nil {
		return response{}, err
	}
	return response{file: f}, nil
}

// file returns the file with all records that match a query.
func (e *export) file(name, format string, q webhook.ListQuery) *file {
	q.Size, q.Cursor = webhook.MaxPageSize, ""
	return &file{name: name + "." + format, contentType: exportTypes[format], write: func(to io.Writer) error {
		write := e.writer(format, to)
		for {
			more, err := write(&q)
			if err != nil || !more {
				return err
			}
		}
	}}
}

// has reports whether a format has the i-th column.
func (e *export) has(i int, format string) bool {
	only := e.only[e.columns[i]]
	return only == "" || only == format
}

// writer returns a function that writes a page and advances the query to the next one, if any.
func (e *export) writer(format string, to io.Writer) func(q *webhook.ListQuery) (more bool, err error) {
	if format == "ndjson" && e.lines != nil {
		return func(q *webhook.ListQuery) (bool, error) { return e.lines(q, to) }
	}
	write := e.ndjson(to)
	if format == "csv" {
		write = e.csv(to)
	}
	return func(q *webhook.ListQuery) (bool, error) {
		rows, more, err := e.page(q)
		if err == nil {
			err = write(rows)
		}
		return more, err
	}
}

// ndjson writes rows as JSON objects, with the columns in order.
func (e *export) ndjson(to io.Writer) func([][]any) error {
	return func(rows [][]any) error {
		var b bytes.Buffer
		for _, row := range rows {
			for i, v := range row {
				if !e.has(i, "ndjson") {
					continue
				}
				if t, ok := v.(time.Time); ok {
					v = nil
					if !t.IsZero() {
						v = webhook.FormatTime(t)
					}
				}
				value, err := json.Marshal(v)
				if err != nil {
					return err
				}
				b.WriteByte(map[bool]byte{true: '{', false: ','}[i == 0])
				b.WriteString(strconv.Quote(e.columns[i]) + ":")
				b.Write(value)
			}
			b.WriteString("}\n")
		}
		_, err := to.Write(b.Bytes())
		return err
	}
}

// csv writes rows after a line with the column names.
func (e *export) csv(to io.Writer) func([][]any) error {
	c := csv.NewWriter(to)
	var head []string
	for i, name := range e.columns {
		if e.has(i, "csv") {
			head = append(head, name)
		}
	}
	return func(rows [][]any) error {
		if head != nil {
			if err := c.Write(head); err != nil {
				return err
			}
			head = nil
		}
		for _, row := range rows {
			var cells []string
			for i, v := range row {
				if e.has(i, "csv") {
					cells = append(cells, cellText(v))
				}
			}
			if err := c.Write(cells); err != nil {
				return err
			}
		}
		c.Flush()
		return c.Error()
	}
}

// cellText formats a value of a row for CSV.
func cellText(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case time.Time:
		if v.IsZero() {
			return ""
		}
		return webhook.FormatTime(v)
	case []string:
		return escapeFormula(strings.Join(v, " "))
	}
	return escapeFormula(fmt.Sprint(v))
}

// escapeFormula prefixes a text that a spreadsheet would evaluate as a formula with an
// apostrophe.
func escapeFormula(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r\n", rune(s[0])) {
		return "'" + s
	}
	return s
}

// orNull returns nil for the zero value.
func orNull[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}
