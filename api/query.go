package api

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"service/store"
	"service/webhook"
)

// The sizes of pages.
const (
	defaultPageSize = 25
	maxPageSize     = 100
	maxPageNumber   = 1<<31 - 1
)

// paging is how a list is divided into pages.
type paging int

const (
	notPaged paging = iota
	byNumber        // page[number]
	byCursor        // page[cursor]: rows that arrive later never shift a page
)

// queryRules says which query parameters a route supports. The zero value
// supports none.
type queryRules struct {
	paging  paging
	ignored bool // the query does not matter
}

// query is what the parameters of a request say.
type query struct {
	page store.Page // with byNumber
	feed store.Feed // with byCursor
}

// supported returns the names of the parameters.
func (q queryRules) supported() []string {
	switch q.paging {
	case byNumber:
		return []string{"page[size]", "page[number]"}
	case byCursor:
		return []string{"page[size]", "page[cursor]"}
	}
	return nil
}

// maxFaults bounds how many parameters an answer names as wrong.
const maxFaults = 50

// parse reads a query. Whatever is not supported is an error: a misspelt
// parameter must not silently change what a list shows.
func (q queryRules) parse(raw string) (query, *webhook.Error) {
	found := query{page: store.Page{Number: 1, Size: defaultPageSize}, feed: store.Feed{Size: defaultPageSize}}
	if raw == "" || q.ignored {
		return found, nil
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return found, webhook.NewError(webhook.CodeInvalid, "The query of the URL cannot be read: it has an escape that is not valid, a semicolon, or too many parameters.")
	}
	var faults []webhook.Validation
	fail := func(code, parameter, detail string) {
		faults = append(faults, webhook.Validation{Code: code, Parameter: parameter, Detail: detail})
	}
	supported := q.supported()
	seen := make(map[string]bool)
	for _, spelling := range slices.Sorted(maps.Keys(values)) {
		name := parameter(spelling)
		switch given := values[spelling]; {
		case !slices.Contains(supported, name):
			fail(webhook.InvalidUnknownField, quoted(spelling), "is not supported here; "+describe(supported))
		case len(given) > 1 || seen[name]:
			fail(webhook.InvalidDuplicate, name, "is given twice")
		default:
			if code, detail := found.set(name, given[0]); code != "" {
				fail(code, name, detail)
			}
		}
		seen[name] = true
	}
	if len(faults) == 0 {
		return found, nil
	}
	return found, webhook.Invalid(faults[:min(len(faults), maxFaults)]...)
}

// set takes the value of one supported parameter, or says what is wrong with it.
func (q *query) set(name, value string) (code, detail string) {
	switch name {
	case "page[size]":
		n, code, detail := integer(value, maxPageSize)
		q.page.Size, q.feed.Size = n, n
		return code, detail
	case "page[number]":
		q.page.Number, code, detail = integer(value, maxPageNumber)
		return code, detail
	case "page[cursor]":
		if value == "" { // which would begin again from the start
			return webhook.InvalidFormat, "must be the next value of an earlier answer of this list"
		}
		q.feed.Cursor = value
	}
	return "", ""
}

// integer reads a number from 1 to most.
func integer(value string, most int) (n int, code, detail string) {
	n, err := strconv.Atoi(value)
	if err != nil && !isDigits(value) {
		return 0, webhook.InvalidType, fmt.Sprintf("must be an integer from 1 to %d", most)
	}
	if err != nil || n < 1 || n > most {
		return 0, webhook.InvalidValue, fmt.Sprintf("must be from 1 to %d", most)
	}
	return n, "", ""
}

func isDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// parameter returns a name in the one spelling that answers use: page.size and
// page[size] are the same.
func parameter(name string) string {
	if object, property, ok := strings.Cut(name, "."); ok && object == "page" {
		return object + "[" + property + "]"
	}
	return name
}

func describe(supported []string) string {
	if len(supported) == 0 {
		return "this request has no query parameters"
	}
	return "supported: " + strings.Join(supported, ", ")
}

// quoted bounds a name of the caller's that an answer repeats.
func quoted(name string) string {
	const most = 64
	if name == "" {
		return `""`
	}
	n := 0
	for i := range name {
		if n++; n > most {
			return name[:i] + "…"
		}
	}
	return name
}

// pageMeta is the meta of a list in numbered pages.
type pageMeta struct {
	Pagination struct {
		PageNumber int `json:"page_number"`
		PageSize   int `json:"page_size"`
		TotalCount int `json:"total_count"`
		TotalPages int `json:"total_pages"`
	} `json:"pagination"`
}

func newPageMeta(p store.Page, total int) pageMeta {
	var m pageMeta
	m.Pagination.PageNumber, m.Pagination.PageSize = p.Number, p.Size
	m.Pagination.TotalCount, m.Pagination.TotalPages = total, (total+p.Size-1)/p.Size
	return m
}

// feedMeta is the meta of a feed.
type feedMeta struct {
	Pagination struct {
		Cursor   *string `json:"cursor"`
		Next     *string `json:"next"`
		PageSize int     `json:"page_size"`
	} `json:"pagination"`
}

func newFeedMeta(f store.Feed, next string) feedMeta {
	var m feedMeta
	m.Pagination.Cursor, m.Pagination.Next, m.Pagination.PageSize = orNull(f.Cursor), orNull(next), f.Size
	return m
}
