package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/gateway"
)

// version is set by the linker in releases: -X main.version=v1.2.3.
var version = ""

// build names this program, from what the linker and the go command wrote into it.
func build() gateway.Build {
	b := gateway.Build{Version: version, Commit: "unknown", Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	modified := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	if modified {
		b.Commit += "-dirty"
	}
	return b
}

func newVersion() *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Print version, commit and Go version", Args: cobra.NoArgs}
	out := addOutput(cmd)
	cmd.RunE = does(func(cmd *cobra.Command, _ []string) error {
		b := build()
		if out.json {
			return writeJSON(cmd.OutOrStdout(), b)
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "forebay %s\ncommit %s\n%s %s/%s\n", b.Version, b.Commit, b.Go, runtime.GOOS, runtime.GOARCH)
		return err
	})
	return cmd
}
