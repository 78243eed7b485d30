package ui

import "testing"

func TestAt(t *testing.T) {
	for _, tt := range []struct{ base, address, want string }{
		{"", "/deliveries", "/deliveries"},
		{"", "#x", "#x"},
		{"/portal", "/deliveries?a=b", "/portal/deliveries?a=b"},
		{"/portal", "/portal/deliveries", "/portal/deliveries"},
		{"/portal", "/portal?x", "/portal?x"},
		{"/portal", "/portals", "/portal/portals"},
		{"/portal", "#x", "#x"},
		{"/portal", "", ""},
	} {
		if got := At(WithBase(t.Context(), tt.base), tt.address); got != tt.want {
			t.Errorf("%q at %q: got %q, want %q", tt.address, tt.base, got, tt.want)
		}
	}
	if got := At(t.Context(), "/deliveries"); got != "/deliveries" {
		t.Errorf("without a base: got %q", got)
	}
}
