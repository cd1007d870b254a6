// Package configs holds the configuration files that come with Forebay, and hands two of them to the program.
package configs

import _ "embed"

// Example is forebay.yaml: every key with its meaning and its default, commented out. `make generate` writes it.
//
//go:embed forebay.yaml
var Example []byte

// Schema is the JSON Schema of the configuration. `make generate` writes it.
//
//go:embed forebay.schema.json
var Schema []byte
