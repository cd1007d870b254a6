package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"strings"
)

// Files looks at every file that the configuration names, and says which are missing or cannot be read by who asks: certificates, keys,
// CAs, lists, passwords, rules, secrets. What stands in them is for the parts that use them. Nothing is changed.
func (l *Loaded) Files() Faults {
	var faults Faults
	eachFile(reflect.ValueOf(l.Config), "", func(key, name string) {
		if err := readable(name); err != nil {
			faults = append(faults, l.locate(fmt.Errorf("%s: %w", key, err)))
		}
	})
	faults.sort()
	return faults
}

// eachFile calls fn for each key that names a file: file, or something that ends in _file. A new one is found by its name.
func eachFile(v reflect.Value, key string, fn func(key, name string)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			eachFile(v.Elem(), key, fn)
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachFile(v.Index(i), fmt.Sprintf("%s[%d]", key, i), fn)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			tag := keyOf(v.Type().Field(i))
			if tag == "" {
				continue
			}
			path := tag
			if key != "" {
				path = key + "." + tag
			}
			value := v.Field(i)
			if value.Kind() == reflect.String && (tag == "file" || strings.HasSuffix(tag, "_file")) {
				if value.String() != "" {
					fn(path, value.String())
				}
				continue
			}
			eachFile(value, path, fn)
		}
	}
}

// readable reports what keeps a file from being read. It opens nothing that may wait, such as a pipe.
func readable(name string) error {
	info, err := os.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s: is no file", name)
	}
	var f *os.File
	if err == nil {
		f, err = os.Open(name)
	}
	if err != nil {
		var pe *fs.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return fmt.Errorf("%s: %w", name, err)
	}
	defer f.Close()
	if _, err := f.Read(make([]byte, 1)); err != nil && err != io.EOF { // an empty list is a list
		return err
	}
	return nil
}
