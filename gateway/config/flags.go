package config

import (
	"strings"

	"github.com/spf13/pflag"
)

// Flags are the command line's part of a configuration. They win over everything else.
type Flags struct {
	File string // --config
	set  *pflag.FlagSet
	keys map[string]string // flag by key path
	Set  []string          // --set key=value

	// WithoutFiles checks a configuration where the files that it names are not: those that cannot be opened are no fault.
	WithoutFiles bool

	// LookForFiles has what Files finds among the faults.
	LookForFiles bool
}

// DefaultFile is read when neither the command line nor EnvFile names one.
const DefaultFile = "/etc/forebay/forebay.yaml"

// AddFlags defines the flags on fs.
func AddFlags(fs *pflag.FlagSet) *Flags {
	f := &Flags{set: fs, keys: map[string]string{}}
	fs.StringVarP(&f.File, "config", "c", "", "configuration file (default $"+EnvFile+", then "+DefaultFile+")")
	f.key("gateway.data_dir", "data-dir", "directory of everything that must survive a restart")
	f.key("log.level", "log-level", "debug, info, warn or error")
	f.key("log.format", "log-format", "text or json")
	fs.StringArrayVar(&f.Set, "set", nil, "set one key, such as spool.max_size=10GiB; may be repeated")
	return f
}

// key defines a flag that sets the key at path.
func (f *Flags) key(path, name, usage string) {
	f.set.String(name, "", usage)
	f.keys[path] = name
}

// values checks what the flags set. It returns the values to merge and where each came from, by key path.
func (f *Flags) values() (values map[string]any, from map[string]string, faults Faults) {
	values, from = map[string]any{}, map[string]string{}
	put := func(flag, path, text string) {
		k := Keys().find(path)
		switch {
		case k == nil || strings.Contains(path, "["):
			faults = append(faults, Fault{From: flag, Key: path, Problem: unknownSetting(path)})
		case k.Kind == Section || k.Kind == Entries:
			faults = append(faults, Fault{From: flag, Key: path, Problem: "sections and lists of objects can only be set in the file"})
		default:
			v, err := fromText(k, text)
			if err != nil {
				faults = append(faults, Fault{From: flag, Key: path, Problem: err.Error()})
				return
			}
			values[path], from[path] = v, flag
		}
	}
	if f == nil {
		return values, from, nil
	}
	for _, setting := range f.Set {
		path, text, ok := strings.Cut(setting, "=")
		if !ok {
			faults = append(faults, Fault{From: "flag --set", Problem: "want key=value, got " + setting})
			continue
		}
		put("flag --set", strings.TrimSpace(path), text)
	}
	for path, name := range f.keys {
		if f.set.Changed(name) {
			put("flag --"+name, path, f.set.Lookup(name).Value.String())
		}
	}
	return values, from, faults
}

func unknownSetting(path string) string {
	var paths []string
	Keys().settable(func(k *Key) { paths = append(paths, k.Path) })
	if near := Nearest(path, paths); near != "" {
		return unknownKey + " (did you mean " + near + "?)"
	}
	return unknownKey
}
