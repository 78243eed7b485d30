//go:build !cgo

package harness

import _ "github.com/ncruces/go-sqlite3/driver"
