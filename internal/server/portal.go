package server

import "service/web"

// Portal is how the portal of partners looks. Empty fields are the defaults.
type Portal struct {
	Name  string // of the operator
	Logo  []byte // a PNG or JPEG file
	Color string // of links and buttons, as #rrggbb
}

// MaxPortalLogo is the maximum size of the logo in bytes.
const MaxPortalLogo = web.MaxPortalLogo

// PortalProblem is what is wrong with a setting of the portal.
type PortalProblem struct{ Flag, Detail string }

// Check returns what is wrong with the settings.
func (p *Portal) Check() (all []PortalProblem) {
	add := func(flag string, err error) {
		if err != nil {
			all = append(all, PortalProblem{flag, err.Error()})
		}
	}
	add("portal-name", web.CheckPortalName(p.Name))
	if len(p.Logo) > 0 {
		add("portal-logo", web.CheckPortalLogo(p.Logo))
	}
	if p.Color != "" {
		add("portal-color", web.CheckPortalColor(p.Color))
	}
	return all
}
