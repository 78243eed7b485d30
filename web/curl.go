package web

import "strings"

// curl is a request to the API as a command. Its token is the shell's $TOKEN. A
// body of "" is none.
func (w *Web) curl(method, path, body string) string {
	var b strings.Builder
	b.WriteString("curl ")
	if w.cfg.CAFile != "" {
		b.WriteString("--cacert " + shell(w.cfg.CAFile) + " ")
	}
	if method != "GET" && (method != "POST" || body == "") {
		b.WriteString("-X " + method + " ")
	}
	if strings.ContainsAny(path, "[]{}") {
		b.WriteString("--globoff ")
	}
	b.WriteString(shell(w.cfg.BaseURL+path) + " \\\n  -H \"Authorization: Bearer $TOKEN\"")
	if body != "" {
		b.WriteString(" -H 'Content-Type: application/json' \\\n  -d " + shell(body))
	}
	return b.String()
}
