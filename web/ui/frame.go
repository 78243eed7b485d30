package ui

import (
	"cmp"
	"maps"
	"net/url"
	"time"
)

// Frame is the data that every page shows around its content.
type Frame struct {
	Title      string
	Section    string // path of its section, "" outside the navigation
	Stylesheet string
	Script     string
	Icon       string
	Version    string
	Binary     string // what to type to run a command of the service

	Theme     Theme
	Clock     Clock // formats the times of the page
	Keys      bool
	Admin     string // email of the signed-in admin, "" for none
	Role      string // of that admin
	Note      *Note
	Address   string // address of this page, for forms that redirect back
	Nav       []Group
	Program   string     // selected program, "" for all
	Programs  []string   // choices of the program switch, which is hidden without any
	Switching url.Values // query of this page that switching the program keeps
	Live      *Live      // nil if the page has none
	NewRows   *NewRows   // of the page's list; nil if the page has none
	Find      string     // search term
	Status    *Status    // of the service; nil if unknown
	Portal    *Portal    // nil on pages of the admin UI
}

// Portal is the part of a frame that portal pages have instead of the admin's.
type Portal struct {
	Name       string // of the operator
	Logo       string // path of the logo, "" for none
	Stylesheet string // path of the style sheet with the operator's colors, "" for none
	Program    string // display name of the partner's program; "" without a session
	Role       string
	EndsAt     time.Time // of the session
}

// SignedIn reports whether the visitor is a signed-in admin, or a partner with a session.
func (f *Frame) SignedIn() bool { return f.Admin != "" || f.Portal != nil && f.Portal.Program != "" }

// Typed returns a command of the service, such as doctor, as typed in a shell.
func (f *Frame) Typed(command string) string { return f.Binary + " " + command }

// site is the title of the pages.
func (f *Frame) site() string {
	if f.Portal != nil {
		return f.Portal.Name
	}
	return "service"
}

// withProgram is the address of this page's section for another program, "" for all.
func (f *Frame) withProgram(id string) string {
	values := url.Values{}
	maps.Copy(values, f.Switching)
	if id != "" {
		values.Set(ProgramParameter, id)
	}
	return Address(cmp.Or(f.Section, "/"), values)
}

// accountName is the label of the visitor's menu.
func (f *Frame) accountName() string {
	if f.Portal != nil {
		return "Menu"
	}
	return cmp.Or(Visible(f.Admin), "Account")
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

// MaxProgramChoices is the maximum number of programs in a select; if there are more, the visitor
// types the program.
const MaxProgramChoices = 100

// Group is a part of the navigation.
type Group struct {
	Name     string // "" for the only group
	Sections []Section
}

// Section is a link of the navigation.
type Section struct{ Path, Icon, Label string }

// Theme is the color scheme of the pages.
type Theme string

const (
	ThemeSystem Theme = ""
	ThemeLight  Theme = "light"
	ThemeDark   Theme = "dark"
)
