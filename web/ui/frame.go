package ui

import (
	"net/url"
	"time"
)

// Frame is what a page has around its content.
type Frame struct {
	Title      string
	Section    string // the path of its section, "" outside of the navigation
	Stylesheet string
	Script     string
	Icon       string
	Version    string

	Theme     Theme
	Clock     Clock // formats the times of the page
	Keys      bool
	Admin     string // email of the signed-in admin, "" for none
	Role      string // of that admin
	Note      *Note
	Address   string // the address of this page, for forms that lead back to it
	Nav       []Section
	Program   string     // that is looked at, "" for all
	Programs  []string   // to choose from; no switch when there are none
	Switching url.Values // what of this page's query a change of the program keeps
	Live      *Live      // nil when the page has none
	NewRows   *NewRows   // of its list; nil when the page has none
	Find      string     // what was searched for
	Status    *Status    // of the service; nil when it is not known
	Portal    *Portal    // nil on pages of the admin UI
}

// Portal is what a page of the portal has around its content, in place of what admins have.
type Portal struct {
	Name       string // of the operator
	Logo       string // path of the logo, "" for none
	Stylesheet string // path of the style sheet with the operator's colors, "" for none
	Program    string // what the partner's program is called; "" without a session
	Role       string
	EndsAt     time.Time // of the session
}

// site is what the pages are called.
func (f *Frame) site() string {
	if f.Portal != nil {
		return f.Portal.Name
	}
	return "service"
}

// withProgram is the address of this page's section with another program, "" for
// all.
func (f *Frame) withProgram(id string) string {
	values := make(url.Values)
	for name, given := range f.Switching {
		values[name] = given
	}
	if id != "" {
		values.Set(ProgramParameter, id)
	}
	path := f.Section
	if path == "" {
		path = "/"
	}
	return Address(path, values)
}

// signedInAs names the admin and the role.
func (f *Frame) signedInAs() string {
	if f.Role == "" {
		return Visible(f.Admin)
	}
	return Visible(f.Admin) + " · " + f.Role
}

func (f *Frame) colorScheme() string {
	if f.Theme == ThemeSystem {
		return "light dark"
	}
	return string(f.Theme)
}

// MaxProgramChoices is the number of programs from which on a program is typed
// instead of chosen.
const MaxProgramChoices = 100

// Section is a link of the navigation.
type Section struct{ Path, Icon, Label string }

// Theme is the color scheme of the pages.
type Theme string

const (
	ThemeSystem Theme = ""
	ThemeLight  Theme = "light"
	ThemeDark   Theme = "dark"
)
