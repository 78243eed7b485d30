package ui

import (
	"slices"
	"strings"

	"service/webhook"
)

// given returns the values of a filter in the address, split as the list splits them.
func (v *Listing) given(fl *webhook.Filter) []string {
	if values, ok := v.Query.Filters[fl.Name]; ok {
		return values
	}
	var all []string
	for _, s := range v.Values["filter["+fl.Name+"]"] {
		all = append(all, strings.Split(s, ",")...)
	}
	return append(all, v.Values["filter["+fl.Name+"][]"]...)
}

// timeValues are the values of the two fields of a time range. They are empty for a preset, which
// moves with the clock.
func (v *Listing) timeValues(f Frame, fl *webhook.Filter, r webhook.TimeRange) (from, to string) {
	if fl.Name == v.TimeField() && v.Values.Has(SpanParameter) {
		return "", ""
	}
	from = f.Clock.FieldValue(r.From)
	if !r.To.IsZero() {
		to = f.Clock.FieldValue(r.To.Add(-1))
	}
	return from, to
}

// withSpan is the address of the list for the time range up to now.
func (v *Listing) withSpan(name string) string {
	typed := "filter[" + v.TimeField()
	return v.without(func(n string) bool { return n == typed+".from]" || n == typed+".to]" }).With(SpanParameter, name)
}

// hasRange reports whether the list has a time range that is not a preset.
func (v *Listing) hasRange() bool {
	_, ok := v.Query.Ranges[v.TimeField()]
	return ok
}

// countCustom returns 1 if the address has a time range that is not a preset, else 0.
func (v *Listing) countCustom() int {
	if v.hasTyped() {
		return 1
	}
	return 0
}

// filter returns a filter of the list, nil if it has none with this name.
func (v *Listing) filter(name string) *webhook.Filter {
	for i := range v.List.Filters {
		if v.List.Filters[i].Name == name {
			return &v.List.Filters[i]
		}
	}
	return nil
}

// countSet returns the number of active filters.
func (v *Listing) countSet() int {
	n := len(v.Query.Filters)
	for name := range v.Query.Ranges {
		if name != v.TimeField() || !v.Values.Has(SpanParameter) {
			n++
		}
	}
	return n
}

// foldedSet reports whether a folded filter is active.
func (v *Listing) foldedSet() bool {
	for _, fl := range v.List.Filters {
		if isBoxes(&fl) || isShown(&fl) || isSearch(&fl) || v.isResponse(fl.Name) || fl.Name == v.TimeField() {
			continue
		}
		if _, ok := v.Query.Ranges[fl.Name]; ok {
			return true
		}
		if len(v.Query.Filters[fl.Name]) > 0 {
			return true
		}
	}
	return false
}

func (v *Listing) filterField(fl *webhook.Filter) FieldProps {
	p := FieldProps{ID: "filter-" + fl.Name, Name: "filter[" + fl.Name + "]", Label: filterName(fl.Name), Value: strings.Join(v.given(fl),
		",")}
	if v.Error != nil {
		p.Error = FieldErrorText(v.fieldErrors(), p.ID)
	}
	switch fl.Kind {
	case webhook.FilterEvent:
		p.Hint = "Event types, separated by commas"
		if given := v.given(fl); len(v.Events) > 0 && (len(given) == 0 || len(given) == 1 && slices.Contains(v.Events, given[0])) {
			p.Hint, p.Kind, p.Options = "", "select", []Option{{"", "Any type"}}
			for _, name := range v.Events {
				p.Options = append(p.Options, Option{name, name})
			}
		}
	case webhook.FilterID:
		p.Hint = "Full IDs, separated by commas"
	case webhook.FilterURL:
		p.Hint = "The full URL"
		if values := v.given(fl); len(values) > 1 {
			p.Value = values[0]
		}
	case webhook.FilterResponseStatus:
		p.Hint = "For example 404 or 5xx, separated by commas"
	case webhook.FilterAtLeast:
		p.Kind, p.Options = "select", []Option{{"", "Any"}}
		for _, v := range fl.Values {
			p.Options = append(p.Options, Option{v, v + " or more"})
		}
	case webhook.FilterText, webhook.FilterSearch:
		p.Hint = "Exact match; separate several values with commas"
		if fl.Name == "url" || strings.HasSuffix(fl.Name, "_url") || fl.Name == "program_name" {
			p.Hint = "Partial match; separate several values with commas"
		}
	default:
		if len(v.given(fl)) > 1 {
			p.Hint = "Any of " + strings.Join(fl.Values, ", ")
			break
		}
		p.Kind, p.Options = "select", []Option{{"", "Any"}}
		for _, value := range fl.Values {
			p.Options = append(p.Options, Option{value, valueLabel(fl, value)})
		}
	}
	return p
}

// fieldErrors are the invalid parts of the query, by field of the form.
func (v *Listing) fieldErrors() []FieldError {
	ids := make(map[string][2]string)
	for _, fl := range v.List.Filters {
		ids["filter["+fl.Name+"]"] = [2]string{"filter-" + fl.Name, filterName(fl.Name)}
		ids["filter["+fl.Name+".from]"] = [2]string{"filter-" + fl.Name + "-from", filterName(fl.Name) + " from"}
		ids["filter["+fl.Name+".to]"] = [2]string{"filter-" + fl.Name + "-to", filterName(fl.Name) + " to"}
	}
	ids[SubscriptionParameter] = [2]string{"filter-subscription", "Subscription"}
	ids["sort"], ids["page[size]"] = [2]string{"sort", "Order"}, [2]string{"page-size", "Per page"}
	all := FieldErrors(v.Error, ids)
	for i, invalid := range v.Error.Validations {
		v.explain(&all[i], &invalid)
	}
	return all
}

// explain words an invalid part of the query for people who do not know the API's parameters.
func (v *Listing) explain(e *FieldError, invalid *webhook.Validation) {
	switch name := invalid.Parameter; {
	case invalid.Code == webhook.InvalidUnknownField:
		e.Text = "is not a filter of this list"
	case name == "page[cursor]" || name == "page[number]":
		e.Label, e.Text = "", "This page of the list does not exist. Clear the filters to see the first page."
	case name == SpanParameter:
		e.Label, e.Text = "", "The time range must be "+choices(v.presets(), func(s spanPreset) string { return s.label })+"."
	case invalid.Code == webhook.InvalidDuplicate:
		e.Text = "is given more than once"
	case name == SubscriptionParameter:
		e.Text = invalid.Detail
	case name == "sort":
		e.Text = "must be one of the choices below"
	case invalid.Code == webhook.InvalidFormat && (strings.HasSuffix(name, ".from]") || strings.HasSuffix(name, ".to]")):
		e.Text = "must be a time such as 2026-03-14T08:24:48Z, or a date such as 2026-03-14, which is read as UTC"
	}
	for i := range v.List.Filters {
		fl := &v.List.Filters[i]
		if e.ID != "filter-"+fl.Name || len(fl.Values) == 0 || invalid.Detail != "must be one of "+strings.Join(fl.Values, ", ") {
			continue
		}
		labels := make([]string, len(fl.Values))
		for j, value := range fl.Values {
			if labels[j] = valueLabel(fl, value); isBoxes(fl) {
				labels[j] = pillLabel(fl.Name, value)
			}
		}
		e.Text = "must be one of " + strings.Join(labels, ", ")
	}
}

// sorts are the orders that the list supports.
func (v *Listing) sorts() []Option {
	var all []Option
	for _, name := range v.List.Sort {
		for _, down := range []bool{true, false} {
			label := filterName(name)
			if name == "name" { // a record's name, not an event's
				label = "Name"
			}
			o := Option{Value: name, Label: label + ", " + orderLabel(name, down)}
			if down {
				o.Value = "-" + name
			}
			if len(v.List.Default) == 1 && v.List.Default[0] == (webhook.SortField{Name: name, Descending: down}) {
				o.Value = ""
				all = append([]Option{o}, all...)
				continue
			}
			all = append(all, o)
		}
	}
	return all
}

// pillLabel is the label of a value's checkbox.
func pillLabel(name, value string) string {
	switch {
	case name == "active" && value == "true":
		return "active"
	case name == "active":
		return "paused or disabled"
	case name == "failing" && value == "true":
		return "failing"
	case name == "failing":
		return "not failing"
	}
	switch value {
	case "true":
		return "yes"
	case "false":
		return "no"
	case string(webhook.FailingUnreachable):
		return FailingReason(webhook.FailingUnreachable)
	case string(webhook.BulkRedeliver):
		return "resend"
	case "quiet":
		return "no failures for an hour"
	case "changed":
		return "changed or resumed"
	}
	return StateWord(value)
}

// valueLabel is the label of a value in a list of choices and in a chip.
func valueLabel(fl *webhook.Filter, value string) string {
	if fl.Name == "action" {
		return ActionLabel(webhook.Action(value))
	}
	return Words(strings.ReplaceAll(value, ".", " "))
}

// orderLabel describes an order by what comes first.
func orderLabel(name string, down bool) string {
	switch isTime := name == "at" || strings.HasSuffix(name, "_at"); {
	case isTime && down:
		return "newest first"
	case isTime:
		return "oldest first"
	case name == "status" && down:
		return "healthy first"
	case name == "status":
		return "failing first"
	case (name == "success_rate" || name == "waiting") && down:
		return "highest first"
	case name == "success_rate" || name == "waiting":
		return "lowest first"
	case down:
		return "Z to A"
	default:
		return "A to Z"
	}
}
