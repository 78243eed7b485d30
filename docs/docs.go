// Package docs embeds the documents that the binary needs.
package docs

import _ "embed"

// ApplySchema is the JSON Schema of the file of service apply.
//
//go:embed apply.schema.json
var ApplySchema []byte
