package web

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
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

	// In place of columns and page, lines reads a page as lines of NDJSON, the only format then.
	lines   func(q *webhook.ListQuery) (text []byte, more bool, err error)
	program string // of the entry in the audit log; "" for the one that is selected
	subject string // of the entry in the audit log, "" for none
}

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
	if e.lines != nil {
		format = cmp.Or(format, "ndjson")
	}
	types := map[string]string{"ndjson": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
	switch {
	case e.lines != nil && format != "ndjson":
		return bad("The parameter format must be ndjson.")
	case types[format] == "":
		return bad("The parameter format must be ndjson or csv.")
	}
	q := v.Query
	q.Size, q.Cursor = webhook.MaxPageSize, ""
	f := &file{
		name: e.noun + "-" + r.clock.Now.UTC().Format("20060102-150405") + "." + format, contentType: types[format],
		write: func(to io.Writer) error {
			write := e.writer(format, to)
			for {
				more, err := write(&q)
				if err != nil || !more {
					return err
				}
			}
		},
	}
	if r.Method == http.MethodHead {
		return response{file: f}, nil
	}
	what := fmt.Sprintf("%s of %s", format, strings.TrimPrefix(v.Selection(v.Path), v.Path))
	if err := h.audit(r, e.action, cmp.Or(e.program, r.program), e.subject, what); err != nil {
		return response{}, unavailable(err)
	}
	return response{file: f}, nil
}

// writer returns a function that writes a page and advances the query to the next one, if any.
func (e *export) writer(format string, to io.Writer) func(q *webhook.ListQuery) (more bool, err error) {
	if e.lines != nil {
		return func(q *webhook.ListQuery) (bool, error) {
			text, more, err := e.lines(q)
			if err == nil {
				_, err = to.Write(text)
			}
			return more, err
		}
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
	head := e.columns
	return func(rows [][]any) error {
		if head != nil {
			if err := c.Write(head); err != nil {
				return err
			}
			head = nil
		}
		for _, row := range rows {
			cells := make([]string, len(row))
			for i, v := range row {
				switch v := v.(type) {
				case nil:
				case time.Time:
					if !v.IsZero() {
						cells[i] = webhook.FormatTime(v)
					}
				case []string:
					cells[i] = escapeFormula(strings.Join(v, " "))
				default:
					cells[i] = escapeFormula(fmt.Sprint(v))
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
