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
