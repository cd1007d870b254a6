// Command gendoc writes what is said about the configuration in other places than the code: the reference, the JSON Schema and
// the example file. All of it comes from the Config structs and the doc comments of their fields.
//
//	go run ./gateway/config/internal/gendoc ROOT
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// files are the generated files, by path below the root of the repository.
var files = map[string]func(*source) ([]byte, error){
	"docs/CONFIG.md":              markdown,
	"configs/forebay.schema.json": schema,
	"configs/forebay.yaml":        example,
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gendoc ROOT")
		os.Exit(2)
	}
	if err := generate(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "gendoc:", err)
		os.Exit(1)
	}
}

func generate(root string) error {
	s := newSource(root)
	for name, write := range files {
		data, err := write(s)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(root, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
