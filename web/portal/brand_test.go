package portal

import (
	"fmt"
	"strings"
	"testing"
)

func TestColor(t *testing.T) {
	for color, fault := range map[string]string{
		"#5140c9": "", "#000000": "", "#0b57d0": "", "red": "must be a color", "#fff": "must be a color", "#ffffff": "contrast of 1.",
		"#ffaa00": "as with #", "#12345g": "must be a color", "": "must be a color",
	} {
		err := checkColor(color)
		if (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("%q: got %v", color, err)
		}
		if err != nil && strings.Contains(err.Error(), "#") {
			if _, proposed, ok := strings.Cut(err.Error(), "as with "); ok && checkColor(proposed) != nil {
				t.Errorf("%q: the proposed %s is refused", color, proposed)
			}
		}
	}
	var light, dark string
	got := string(colors("#000000"))
	if n, err := fmt.Sscanf(got, ":root{--accent:light-dark(%7s,%7s)", &light, &dark); n != 2 || light != "#000000" {
		t.Fatalf("got %s, %v", got, err)
	}
	if c, ok := parseColor(dark); !ok || c.contrast(darkGround) < minContrast || c.contrast(darkText) < minContrast {
		t.Errorf("on dark pages black is %s", dark)
	}
}
