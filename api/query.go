package api

import (
	"net/url"

	"service/webhook"
)

// queryRules are the query parameters that a route supports. The zero value supports
// none.
type queryRules struct {
	list    *webhook.List // whose parameters it supports
	ignored bool          // the query is ignored
}

// parse reads a query. An unsupported parameter is an error.
func (q queryRules) parse(raw string) (webhook.ListQuery, *webhook.Error) {
	if q.ignored || raw == "" && q.list == nil {
		return webhook.ListQuery{}, nil
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return webhook.ListQuery{}, webhook.NewError(webhook.CodeInvalid,
			"The query of the URL is invalid: it has an invalid escape, a semicolon, or too many parameters.")
	}
	return q.list.Parse(values)
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

// newPageMeta returns the meta of a page of total records.
func newPageMeta(q *webhook.ListQuery, total int) pageMeta {
	var m pageMeta
	m.Pagination.PageNumber, m.Pagination.PageSize = q.Number, q.Size
	m.Pagination.TotalCount, m.Pagination.TotalPages = total, (total+q.Size-1)/q.Size
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

// newFeedMeta returns the meta of a page of a feed. next is "" on the last page.
func newFeedMeta(q *webhook.ListQuery, next string) feedMeta {
	var m feedMeta
	m.Pagination.Cursor, m.Pagination.Next, m.Pagination.PageSize = webhook.OrNull(q.Cursor), webhook.OrNull(next), q.Size
	return m
}
