package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/forebay-gateway/forebay/gateway"
)

// version and commit are set by the linker where the go command does not know them: -X main.version=v1.2.3.
var version, commit string

// build names this program, from what the linker and the go command wrote into it.
func build() gateway.Build {
	b := gateway.Build{Version: cmp.Or(version, "unknown"), Commit: cmp.Or(commit, "unknown"), Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Version = cmp.Or(version, info.Main.Version)
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
	b.Commit = cmp.Or(commit, b.Commit)
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
