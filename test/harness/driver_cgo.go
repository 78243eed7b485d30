//go:build cgo

package harness

import _ "github.com/mattn/go-sqlite3"
