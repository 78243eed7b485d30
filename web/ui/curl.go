package ui

import "strings"

// Curl renders requests to the API as commands for a POSIX shell.
type Curl struct {
	BaseURL string // base URL of the API, without a final slash
	CAFile  string // certificate to trust, "" for the system's certificates
}

// Command returns a request as a curl command, which reads the token from $TOKEN. body may be "".
func (c Curl) Command(method, path, body string) string {
	var b strings.Builder
	b.WriteString("curl ")
	if c.CAFile != "" {
		b.WriteString("--cacert " + ShellQuote(c.CAFile) + " ")
	}
	if method != "GET" && (method != "POST" || body == "") {
		b.WriteString("-X " + method + " ")
	}
	if strings.ContainsAny(path, "[]{}") {
		b.WriteString("--globoff ")
	}
	b.WriteString(ShellQuote(c.BaseURL+path) + " \\\n  -H \"Authorization: Bearer $TOKEN\"")
	if body != "" {
		b.WriteString(" -H 'Content-Type: application/json' \\\n  -d " + ShellQuote(body))
	}
	return b.String()
}

// CommandText is Command with a body from outside.
func (c Curl) CommandText(method, path, body string) string {
	return strings.Replace(c.Command(method, path, "{}"), ShellQuote("{}"), ShellQuoteText(body), 1)
}
