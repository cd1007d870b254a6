package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// output is how a command prints its result.
type output struct{ json bool }

// addOutput defines --output on cmd.
func addOutput(cmd *cobra.Command) *output {
	o := &output{}
	cmd.Flags().VarP(o, "output", "o", "text or json")
	return o
}

// String, Set and Type make output a flag that takes two words.
func (o *output) String() string {
	if o.json {
		return "json"
	}
	return "text"
}

// Set reads the flag.
func (o *output) Set(s string) error {
	switch s {
	case "json", "text":
		o.json = s == "json"
		return nil
	}
	return fmt.Errorf("want text or json")
}

// Type names the value in the help.
func (o *output) Type() string { return "format" }

// writeJSON prints v for programs, and indented for people.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
