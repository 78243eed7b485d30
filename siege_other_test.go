//go:build !linux

package main

import "testing"

func TestSiege(t *testing.T) {
	t.Skip("NOT TESTED: only Linux has network namespaces")
}
