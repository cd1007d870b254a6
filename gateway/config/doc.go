// Package config reads the one YAML file of a gateway, and what the environment and the command line change in it.
//
// Config is composed of the Config of each part. The structs are the only description there is: keys come from their yaml
// tags, allowed values from their types, and what a key means from its doc comment, out of which `make generate` writes
// docs/CONFIG.md, configs/forebay.schema.json and configs/forebay.yaml.
//
// Load takes three passes, and reports what all of them found at once, because an operator who repairs a file at three in
// the morning wants one list and not a game of one question after the other:
//
//  1. strict (strict.go): the YAML nodes against the structs. A key that is not known, given twice or of the wrong kind, a
//     value that does not read as its type, a second document: file, line, column, key, and what is allowed.
//  2. merge (load.go): viper puts defaults, file, environment and flags on top of each other, in this order, into Config.
//  3. Validate: every part looks at its own values. Errors start with the key path, which leads back to the line.
//
// viper folds keys to lower case and splits them at dots. Therefore nothing that a user names (a topic, a stream, a route) is
// ever a key: those are values in lists, and no Config has a map. Keys() refuses one.
package config
