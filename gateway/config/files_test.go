package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestFilesThatAreNotThereAreNamed(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`mqtt:
  auth:
    methods: [password, jwt]
    password: {file: %[2]s/users}
    acl: {file: %[1]s}
    jwt: {issuer: i, audience: [a], jwks_file: %[2]s}
bridge:
  upstreams:
    - {name: other, brokers: ["127.0.0.1:1"]}
    - name: kafka
      brokers: ["127.0.0.1:2"]
      tls:
        enabled: true
        ca_file: %[2]s/ca
`, there, dir)
	l, err := Parse("forebay.yaml", []byte(text), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range l.Files() {
		got = append(got, f.Error())
	}
	want := []string{
		"forebay.yaml:4:22: mqtt.auth.password.file: " + dir + "/users: no such file or directory",
		"forebay.yaml:6:48: mqtt.auth.jwt.jwks_file: " + dir + ": is no file",
		"forebay.yaml:14:18: bridge.upstreams[1].tls.ca_file: " + dir + "/ca: no such file or directory",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestFileThatCannotBeReadIsNamed(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root reads everything")
	}
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := readable(name); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Error(err)
	}
}

// Both files of a pair, and those of other parts that Validate does not look at.
func TestCheckNamesEveryMissingFileAtOnce(t *testing.T) {
	dir := t.TempDir()
	text := fmt.Sprintf(`mqtt:
  listeners:
    - name: tls
      type: tls
      address: 127.0.0.1:0
      tls: {cert_file: %[1]s/tls.crt, key_file: %[1]s/tls.key}
  auth:
    methods: [password]
    password: {file: %[1]s/users}
`, dir)
	keys := func(flags *Flags) (keys []string) {
		t.Helper()
		_, err := Parse("forebay.yaml", []byte(text), nil, flags)
		faults, _ := err.(Faults)
		for _, f := range faults {
			keys = append(keys, f.Key)
		}
		return keys
	}
	flags := flagsOf(t)
	flags.LookForFiles = true
	if got, want := keys(flags), []string{"mqtt.listeners[0].tls.cert_file", "mqtt.listeners[0].tls.key_file", "mqtt.auth.password.file"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, want := keys(nil), []string{"mqtt.listeners[0].tls.cert_file"}; !slices.Equal(got, want) { // the parts find the others themselves
		t.Errorf("a start names %v, want %v", got, want)
	}
	flags = flagsOf(t)
	flags.WithoutFiles = true
	if got := keys(flags); got != nil {
		t.Errorf("without files: %v", got)
	}
}
