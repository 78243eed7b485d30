package ui

import (
	"net/url"
	"strings"
)

// Address returns path with values as its query, or after the query that it has. Brackets are not
// escaped, so that the address stays readable.
func Address(path string, values url.Values) string {
	if len(values) == 0 {
		return path
	}
	separator := "?"
	if strings.Contains(path, "?") {
		separator = "&"
	}
	return path + separator + strings.NewReplacer("%5B", "[", "%5D", "]").Replace(values.Encode())
}

// InProgram returns path with the program parameter set, or path unchanged for "".
func InProgram(path, program string) string {
	if program == "" {
		return path
	}
	return Address(path, url.Values{ProgramParameter: {program}})
}
