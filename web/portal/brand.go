// Package portal has what the partners' portal shows besides the pages of package web: the operator's
// name, logo and color, and the programs that verify a signature. It knows neither requests nor the
// store.
package portal

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	_ "image/jpeg" // a format of the logo
	_ "image/png"  // the same
	"math"
	"strconv"
	"unicode"
	"unicode/utf8"

	"service/assets"
)

// Config is the appearance of the portal. Zero fields are the defaults.
type Config struct {
	Name  string // of the operator, in place of "Webhooks"
	Logo  []byte // a PNG or JPEG file, in place of the name
	Color string // of links and buttons, as #rrggbb
}

// Bounds of the settings.
const (
	maxName     = 60        // characters
	MaxLogo     = 256 << 10 // bytes
	maxLogoSide = 2048      // pixels
	minContrast = 4.5       // of WCAG 2.2 AA for text
)

// Check calls add for each setting that is invalid, with its flag of the command line.
func (c *Config) Check(add func(flag, format string, args ...any)) {
	check := func(flag string, err error) {
		if err != nil {
			add(flag, "%v", err)
		}
	}
	check("portal-name", checkName(c.Name))
	if len(c.Logo) > 0 {
		check("portal-logo", checkLogo(c.Logo))
	}
	if c.Color != "" {
		check("portal-color", checkColor(c.Color))
	}
}

// checkName returns an error if a name cannot be shown in the portal.
func checkName(name string) error {
	if utf8.RuneCountInString(name) > maxName || !utf8.ValidString(name) {
		return fmt.Errorf("must be at most %d characters", maxName)
	}
	for _, c := range name {
		if unicode.IsControl(c) {
			return errors.New("must not contain control characters")
		}
	}
	return nil
}

// checkLogo returns an error if a file cannot be the logo. SVG files are refused, since they
// may contain scripts and links.
func checkLogo(file []byte) error {
	if len(file) > MaxLogo {
		return fmt.Errorf("must have at most %d KiB", MaxLogo>>10)
	}
	c, _, err := image.DecodeConfig(bytes.NewReader(file))
	if err != nil {
		return errors.New("must be a PNG or JPEG file")
	}
	if c.Width > maxLogoSide || c.Height > maxLogoSide {
		return fmt.Errorf("has %d by %d pixels; must have at most %d on each side", c.Width, c.Height, maxLogoSide)
	}
	return nil
}

// checkColor returns an error if a color is invalid, or text in it could not be read on the
// light pages. The color of the dark pages is derived from it.
func checkColor(color string) error {
	c, ok := parseColor(color)
	if !ok {
		return errors.New("must be a color such as #5140c9")
	}
	if got := c.contrast(lightGround); got < minContrast {
		darker := c
		for darker.contrast(lightGround) < minContrast {
			darker = darker.mix(black, 0.04)
		}
		return fmt.Errorf("has a contrast of %.1f with the background; text needs %.1f, as with %s", math.Floor(got*10)/10, minContrast, darker)
	}
	return nil
}

// rgb is a color in sRGB, each part from 0 to 1.
type rgb [3]float64

var (
	black       = rgb{}
	white       = rgb{1, 1, 1}
	lightGround = rgb{0xf1 / 255., 0xf1 / 255., 0xf5 / 255.} // --raised, the darkest that links stand on
	darkGround  = rgb{0x22 / 255., 0x24 / 255., 0x2b / 255.} // the lightest
	darkText    = rgb{0x15 / 255., 0x13 / 255., 0x1f / 255.} // on a button of the dark pages
)

func parseColor(s string) (c rgb, ok bool) {
	if len(s) != 7 || s[0] != '#' {
		return c, false
	}
	n, err := strconv.ParseUint(s[1:], 16, 32)
	if err != nil {
		return c, false
	}
	return rgb{float64(n>>16) / 255, float64(n>>8&0xff) / 255, float64(n&0xff) / 255}, true
}

func (c rgb) String() string {
	return fmt.Sprintf("#%02x%02x%02x", int(math.Round(c[0]*255)), int(math.Round(c[1]*255)), int(math.Round(c[2]*255)))
}

// mix returns the color mixed with a share of another, from 0 to 1.
func (c rgb) mix(o rgb, share float64) rgb {
	for i := range c {
		c[i] += (o[i] - c[i]) * share
	}
	return c
}

// luminance is the relative luminance of WCAG 2.2.
func (c rgb) luminance() float64 {
	for i, v := range c {
		if v <= 0.04045 {
			c[i] = v / 12.92
		} else {
			c[i] = math.Pow((v+0.055)/1.055, 2.4)
		}
	}
	return 0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2]
}

// contrast is the contrast ratio of WCAG 2.2.
func (c rgb) contrast(o rgb) float64 {
	a, b := c.luminance(), o.luminance()
	return (max(a, b) + 0.05) / (min(a, b) + 0.05)
}

// colors returns a style sheet with the colors of the portal.
func colors(color string) []byte {
	light, _ := parseColor(color)
	dark := light
	for dark.contrast(darkGround) < minContrast || dark.contrast(darkText) < minContrast {
		dark = dark.mix(white, 0.04)
	}
	return fmt.Appendf(nil, ":root{--accent:light-dark(%s,%s);--on-accent:light-dark(%s,%s)}\n", light, dark, white, darkText)
}

// Brand contains the paths of the operator's files, "" for none.
type Brand struct{ Logo, Stylesheet string }

// NewBrand adds the files to the assets. It omits invalid files: the settings were checked
// before.
func NewBrand(c *Config, a *assets.Assets) (b Brand) {
	if len(c.Logo) > 0 && checkLogo(c.Logo) == nil {
		name := "logo.png"
		if bytes.HasPrefix(c.Logo, []byte{0xff, 0xd8}) {
			name = "logo.jpg"
		}
		a.Add(name, c.Logo)
		b.Logo = a.Path(name)
	}
	if c.Color != "" && checkColor(c.Color) == nil {
		a.Add("portal.css", colors(c.Color))
		b.Stylesheet = a.Path("portal.css")
	}
	return b
}
