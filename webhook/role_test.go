package webhook

import "testing"

func TestRoleAllows(t *testing.T) {
	want := map[Role]map[Role]bool{
		RoleViewer:   {RoleViewer: true},
		RoleOperator: {RoleViewer: true, RoleOperator: true},
		RoleOwner:    {RoleViewer: true, RoleOperator: true, RoleOwner: true},
		"":           {}, "root": {},
	}
	for has, needs := range want {
		for _, need := range []Role{RoleViewer, RoleOperator, RoleOwner, "", "root"} {
			if got := has.Allows(need); got != needs[need] {
				t.Errorf("%q for what needs %q: got %v", has, need, got)
			}
		}
	}
}

func TestCheckRole(t *testing.T) {
	for role, want := range map[Role]string{RoleViewer: "", RoleOperator: "", RoleOwner: "", "": InvalidRequired, "Owner": InvalidValue,
		"root": InvalidValue} {
		got := CheckRole("role", role)
		if want == "" && got != nil || want != "" && (len(got) != 1 || got[0].Code != want || got[0].Parameter != "role") {
			t.Errorf("%q: got %v, want %q", role, got, want)
		}
	}
}
