// Package monitoring tests the metrics, the alert rules, the dashboard and the log.
package monitoring

import (
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
