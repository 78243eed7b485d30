//go:build !linux

package main

import "testing"

func testEgress(t *testing.T, _ string) { requireNamespaces(t, "only Linux has them") }
