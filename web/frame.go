package web

import (
	"strings"

	"service/web/ui"
)

// frame is of a page that was asked for. Its section is the one that the
// path is in; a handler whose path says otherwise sets it.
func (w *Web) frame(r *request, title string) ui.Frame {
	f := ui.Frame{
		Title: title, Stylesheet: w.assets.Path("style.css"), Script: w.assets.Path("app.js"), Icon: w.assets.Path("favicon.svg"),
		Version: w.cfg.Version, Theme: r.theme, Clock: r.clock, Keys: r.keys, Admin: r.admin, Note: r.note,
		Program: r.program, Programs: r.programs,
	}
	if r.Method == "GET" || r.Method == "HEAD" {
		f.Address = r.URL.RequestURI()
	}
	for _, s := range sections {
		if w.built[s.Path] {
			f.Nav = append(f.Nav, s)
		}
		if r.URL.Path == s.Path || s.Path != "/" && strings.HasPrefix(r.URL.Path, s.Path+"/") {
			f.Section = s.Path
		}
	}
	if f.Section == r.URL.Path {
		f.Switching = r.URL.Query()
		for _, name := range []string{ui.ProgramParameter, "page[cursor]", "page[number]"} {
			f.Switching.Del(name)
		}
	}
	return f
}
