package list

import (
	"math"
	"regexp"
	"service/store/sqlite"
	"service/webhook"
	"slices"
	"strconv"
	"strings"
)

// Statement is a query with named parameters, such as :status.
type Statement struct {
	Text  string
	Names []string // of ?1, ?2 and so on
}

// Binds are the values of parameters by name. A missing name is NULL, which means no filter.
type Binds map[string]any

var parameterName = regexp.MustCompile(`:[a-z_]+`)

// With returns the statement with text appended.
func (s Statement) With(text string) Statement {
	s.Names = slices.Clone(s.Names)
	s.Text += parameterName.ReplaceAllStringFunc(text, func(name string) string {
		i := slices.Index(s.Names, name[1:])
		if i < 0 {
			i = len(s.Names)
			s.Names = append(s.Names, name[1:])
		}
		return "?" + strconv.Itoa(i+1)
	})
	return s
}

// Args returns the arguments of the statement. If several layers contain a name, the first
// one wins.
func (s Statement) Args(layers ...Binds) []any {
	args := make([]any, len(s.Names))
	for i, name := range s.Names {
		for _, b := range layers {
			if value, ok := b[name]; ok {
				args[i] = value
				break
			}
		}
	}
	return args
}

// AllOf combines conditions with AND.
func AllOf(conditions ...string) string {
	return "(" + strings.Join(conditions, ")\n\t\tAND (") + ")"
}

// TruthOf returns the expression of a condition that SQLite stops evaluating at the first part
// that decides it.
func TruthOf(condition string) string { return "iif(" + condition + ", 1, 0)" }

// IsIn is the condition of a filter by a column, whose values are an array bound to the
// column's name.
func IsIn(column string) string {
	name := column[strings.LastIndexByte(column, '.')+1:]
	return ":" + name + " IS NULL OR " + column + " IN (SELECT value FROM json_each(:" + name + "))"
}

// IsWithin is the condition of a filter by a time range.
func IsWithin(name, column string) string {
	return "(:" + name + "_from IS NULL OR " + column + " >= :" + name + "_from)" +
		" AND (:" + name + "_to IS NULL OR " + column + " < :" + name + "_to)"
}

// BindsOf binds the filters of a query to their names, and both ends of each time range.
func BindsOf(q *webhook.ListQuery) Binds {
	b := make(Binds, 16)
	for name, values := range q.Filters {
		b[name] = sqlite.JSON(values)
	}
	for name, r := range q.Ranges {
		b[name+"_from"], b[name+"_to"] = sqlite.Millis(r.From), sqlite.Millis(r.To)
	}
	return b
}

// Truths converts the words of a boolean filter to SQLite's values.
func Truths(words []string) (all []int) {
	for _, word := range words {
		all = append(all, map[string]int{"false": 0, "true": 1}[word])
	}
	return all
}

// Column returns the results of a query with one column.
func Column[T any](v *sqlite.View, s Statement, layers ...Binds) (all []T, err error) {
	err = v.Each(s.Text, s.Args(layers...), sqlite.Into(&all))
	return all, err
}

// Start returns the position before all others, a key that no row has.
func Start(descending bool) int64 {
	if descending {
		return math.MaxInt64
	}
	return 0
}

// Down reverses a comparison if the order descends.
func Down(descending bool, c int) int {
	if descending {
		return -c
	}
	return c
}

// Access reads rows through an index in ascending or descending order of a key. Its statements
// select the key, and whether the row matches the filters.
type Access struct {
	Up, Down Statement
}

// Along returns the access to the rows of a FROM and WHERE clause whose key is between :low and
// :high, both exclusive. The index is ordered by a column that rises with the key.
func Along(key, order, matches, from string) *Access {
	s := Statement{}.With("SELECT " + key + ", " + TruthOf(matches) + " " + from +
		" AND " + key + " > :low AND " + key + " < :high ORDER BY " + order)
	return &Access{Up: s.With(" LIMIT :limit"), Down: s.With(" DESC LIMIT :limit")}
}

// Ordered returns the query of a page in an order. IDs, which rise in the order of creation unless
// they are chosen, are the last criterion.
func (s Statement) Ordered(order []webhook.SortField) Statement {
	var terms []string
	for _, f := range append(slices.Clone(order), webhook.SortField{Name: "id", Descending: order[0].Descending}) {
		if f.Descending {
			f.Name += " DESC"
		}
		terms = append(terms, f.Name)
	}
	return s.With(" ORDER BY " + strings.Join(terms, ", ") + " LIMIT :size OFFSET :offset")
}

// CanBeUsed is the condition that a program can be used. It follows a column with the program's ID.
const CanBeUsed = " NOT IN (SELECT program_id FROM program_states)"
