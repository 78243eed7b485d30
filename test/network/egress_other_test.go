//go:build !linux

package network

import (
	"testing"

	"service/test/harness"
)

func TestEgress(t *testing.T) { harness.Unavailable(t, "netns", "only Linux has network namespaces") }
