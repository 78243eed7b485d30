package server

import "service/web"

// Portal is the appearance of the partners' portal. Empty fields are the defaults.
type Portal = web.PortalConfig

// MaxPortalLogo is the maximum size of the logo in bytes.
const MaxPortalLogo = web.MaxPortalLogo

// CheckPortal calls add for each invalid flag of the portal.
func CheckPortal(p *Portal, add func(flag, format string, args ...any)) {
	check := func(flag string, err error) {
		if err != nil {
			add(flag, "%v", err)
		}
	}
	check("portal-name", web.CheckPortalName(p.Name))
	if len(p.Logo) > 0 {
		check("portal-logo", web.CheckPortalLogo(p.Logo))
	}
	if p.Color != "" {
		check("portal-color", web.CheckPortalColor(p.Color))
	}
}
