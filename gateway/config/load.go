package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"regexp"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/viper"
)

// Loaded is a configuration that passed every check, and where its values came from.
type Loaded struct {
	Config Config

	file   string
	places map[string]place
	env    map[string]string // variable by key path
	flags  map[string]string // flag by key path
	zeros  []error           // of merge
}

// Path is the file to read: of the flags, else of the environment, else DefaultFile.
func (f *Flags) Path() string {
	if f != nil && f.File != "" {
		return f.File
	}
	if name := os.Getenv(EnvFile); name != "" {
		return name
	}
	return DefaultFile
}

// Load reads the file, the environment and the flags. An error that is Faults lists everything that is wrong with them; any
// other error is about reading the file. flags may be nil.
func Load(flags *Flags) (*Loaded, error) {
	name := flags.Path()
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("config: %w (name a file with --config or %s; forebay config init writes one)", err, EnvFile)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return Parse(name, data, os.Environ(), flags)
}

// Parse is Load with the file's bytes and the environment in hand; name is what faults call the file.
func Parse(name string, data []byte, environ []string, flags *Flags) (*Loaded, error) {
	l := &Loaded{file: name, places: map[string]place{}, env: map[string]string{}}
	s := &strict{file: name, places: l.places}
	inFile := s.check(data)
	inEnv, faults := environment(environ)
	inFlags, from, flagFaults := flags.values()
	l.flags = from
	found := append(append(s.faults, faults...), flagFaults...)
	if s.nodes >= maxNodes { // half of it is missing
		return nil, found.told(name)
	}

	if err := l.merge(inFile, inEnv, inFlags); err != nil {
		return nil, err
	}
	for _, err := range l.zeros {
		if f := l.locate(err); !found.covers(f.Key) {
			found = append(found, f)
		}
	}
	for _, err := range each(l.Config.Validate()) {
		if len(found) > MaxFaults {
			break
		}
		if flags != nil && flags.WithoutFiles && absent(err) {
			continue
		}
		if f := l.locate(err); !found.covers(f.Key) {
			found = append(found, f)
		}
	}
	if flags != nil && flags.LookForFiles {
		for _, f := range l.Files() {
			if !found.covers(f.Key) {
				found = append(found, f)
			}
		}
	}
	if len(found) > 0 {
		return nil, found.told(name)
	}
	l.Config = l.Config.Resolved()
	return l, nil
}

// absent reports whether a file that is named is not here, or not for who asks.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)
}

// merge is the second pass: viper lays defaults, file, environment and flags on top of each other. All of them have been
// checked against the same tree of keys, so that an error here is our own mistake.
func (l *Loaded) merge(file, env, flags map[string]any) error {
	v := viper.New()
	for name, value := range plain(reflect.ValueOf(DefaultConfig())).(map[string]any) {
		v.SetDefault(name, value)
	}
	if err := v.MergeConfigMap(file); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	Keys().settable(func(k *Key) {
		if value, ok := env[EnvName(k.Path)]; ok {
			v.Set(k.Path, value)
			l.env[k.Path] = EnvName(k.Path)
		}
	})
	for path, value := range flags {
		v.Set(path, value)
	}
	err := v.Unmarshal(&l.Config, viper.DecodeHook(mapstructure.TextUnmarshallerHookFunc()), func(dc *mapstructure.DecoderConfig) {
		dc.TagName = "yaml"
		dc.ErrorUnused = true
		dc.WeaklyTypedInput = false
		dc.DecodeNil = false
	})
	if err != nil {
		return fmt.Errorf("config: BUG: checked values do not fit: %w", err)
	}
	l.fillEntries("", reflect.ValueOf(&l.Config).Elem())
	return nil
}

// fillEntries gives the items of lists their defaults: viper cannot, as it knows defaults only by key.
func (l *Loaded) fillEntries(path string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if name := keyOf(v.Type().Field(i)); name != "" {
				l.fillEntries(join(path, name), v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			item, itemPath := v.Index(i), fmt.Sprintf("%s[%d]", path, i)
			filled := withDefaults(item)
			l.findZeros(itemPath, item, filled)
			item.Set(filled)
			l.fillEntries(itemPath, item)
		}
	}
}

// findZeros notes the numbers of an item that the file gives as 0 and that its defaults have replaced: an item cannot tell a 0 from what is
// left out, and who writes one means something else than the default.
func (l *Loaded) findZeros(path string, given, filled reflect.Value) {
	switch given.Kind() {
	case reflect.Struct:
		for i := range given.NumField() {
			if name := keyOf(given.Type().Field(i)); name != "" {
				l.findZeros(join(path, name), given.Field(i), filled.Field(i))
			}
		}
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float64:
		if _, inFile := l.places[path]; inFile && given.IsZero() && !filled.IsZero() {
			l.zeros = append(l.zeros, fmt.Errorf("%s: %v would be taken for the default, %v: give another value, or leave the key out", path, given, filled))
		}
	}
}

// keyOf is the key of a field in the file, "" when it has none.
func keyOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	if !f.IsExported() || name == "-" {
		return ""
	}
	return name
}

// keyPath is how the errors of Validate start.
var keyPath = regexp.MustCompile(`^([a-z][a-z0-9_]*(?:\[\d+\])?(?:\.[a-z][a-z0-9_]*(?:\[\d+\])?)*): `)

// locate is the third pass: it leads an error of Validate back to where its value came from.
func (l *Loaded) locate(err error) Fault {
	f := Fault{Problem: err.Error()}
	m := keyPath.FindStringSubmatch(f.Problem)
	if m == nil {
		return Fault{File: l.file, Problem: f.Problem}
	}
	f.Key, f.Problem = m[1], strings.TrimPrefix(f.Problem, m[0])
	if flag, ok := l.flags[f.Key]; ok {
		f.From = flag
		return f
	}
	if name, ok := l.env[f.Key]; ok {
		f.From = "environment " + name
		return f
	}
	f.File = l.file
	for path := f.Key; path != ""; path = parent(path) {
		if p, ok := l.places[path]; ok {
			f.Line, f.Column = p.line, p.column
			break
		}
	}
	return f
}

// Source says where the value of the key at path came from: "flag --log-level", "environment FOREBAY_LOG_LEVEL",
// "forebay.yaml:12" or "default".
func (l *Loaded) Source(path string) string {
	if flag, ok := l.flags[path]; ok {
		return flag
	}
	if name, ok := l.env[path]; ok {
		return "environment " + name
	}
	if p, ok := l.places[path]; ok {
		return fmt.Sprintf("%s:%d", l.file, p.line)
	}
	return "default"
}
