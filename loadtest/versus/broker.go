package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// broker is a server under test: how to start it on a free port with an empty directory, or how it measures itself.
type broker struct {
	name    string
	speaks  dialect
	start   func(dir string, port int) (*exec.Cmd, error)
	wrapped bool   // start's command starts the broker
	secure  bool   // TLS, with a certificate that nobody checks
	addr    string // of one that runs already, otherwise empty

	own func(l load) (result, error) // of what is no broker
}

// brokers are those that can be named on the command line.
func brokers(bin binaries) []broker {
	peer := func(name string) func(string, int) (*exec.Cmd, error) {
		return func(dir string, port int) (*exec.Cmd, error) {
			return exec.Command(bin.peers, name, dir, strconv.Itoa(port)), nil
		}
	}
	return []broker{
		// In memory, no sync, no limits that the others do not have.
		{name: "mosquitto", speaks: version5, start: func(dir string, port int) (*exec.Cmd, error) {
			conf := filepath.Join(dir, "mosquitto.conf")
			text := fmt.Sprintf("listener %d 127.0.0.1\nallow_anonymous true\npersistence false\nlog_type error\n"+
				"max_inflight_messages 0\nmax_queued_messages 0\nset_tcp_nodelay true\n", port)
			return exec.Command("mosquitto", "-c", conf), os.WriteFile(conf, []byte(text), 0o644)
		}},
		// Every PUBACK and PUBREC after its sync.
		{name: "forebay", speaks: version5, start: func(dir string, port int) (*exec.Cmd, error) {
			conf, err := forebayConfig(dir, port)
			return exec.Command(bin.forebay, "serve", "--config", conf), err
		}},
		// The same on a disk that takes 5 ms for a sync. Only the syncs stop for strace (seccomp), all else runs at its speed.
		{name: "forebay-slow", speaks: version5, wrapped: true, start: func(dir string, port int) (*exec.Cmd, error) {
			conf, err := forebayConfig(dir, port)
			return exec.Command("strace", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync",
				"-e", "inject=fdatasync,fsync:delay_enter=5000", bin.forebay, "serve", "--config", conf), err
		}},
		// The same behind TLS.
		{name: "forebay-tls", speaks: version5, secure: true, start: func(dir string, port int) (*exec.Cmd, error) {
			conf, err := secureConfig(dir, port)
			return exec.Command(bin.forebay, "serve", "--config", conf), err
		}},
		// JetStream with sync_interval: always.
		{name: "nats", speaks: version311, start: peer("nats")},
		// mochi-mqtt's own Server, in memory.
		{name: "mochi", speaks: version5, start: peer("mochi")},
		{name: "disk", own: measureDisk},
		{name: "spool", own: func(l load) (result, error) { return measureSpool(bin.spool, l) }},
	}
}

func forebayConfig(dir string, port int) (string, error) {
	conf := filepath.Join(dir, "forebay.yaml")
	text := fmt.Sprintf("gateway:\n  id: bench\n  data_dir: %s\nlog:\n  level: warn\nadmin:\n  address: 127.0.0.1:0\n"+
		"mqtt:\n  listeners:\n    - name: tcp\n      type: tcp\n      address: 127.0.0.1:%d\n", filepath.Join(dir, "data"), port)
	return conf, os.WriteFile(conf, []byte(text), 0o644)
}

// secureConfig is forebayConfig with a TLS listener and a certificate of its own.
func secureConfig(dir string, port int) (string, error) {
	conf, err := forebayConfig(dir, port)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(conf)
	if err != nil {
		return "", err
	}
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	text = append(bytes.Replace(text, []byte("type: tcp"), []byte("type: tls"), 1), fmt.Sprintf("      tls: {cert_file: %s, key_file: %s}\n", cert, key)...)
	return conf, errors.Join(selfSigned(cert, key), os.WriteFile(conf, text, 0o644))
}

// selfSigned writes a P-256 key and a certificate.
func selfSigned(certFile, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600),
	)
}

// choose finds the broker of a name on the command line. name@host:port is one that runs already, name=path another build of
// the gateway.
func choose(name string, bin binaries) (broker, error) {
	if name, path, build := strings.Cut(name, "="); build {
		b, err := choose("forebay", binaries{forebay: path})
		b.name = name
		return b, err
	}
	all := brokers(bin)
	i := slices.IndexFunc(all, func(b broker) bool { return b.name == plainName(name) })
	_, addr, running := strings.Cut(name, "@")
	switch {
	case i < 0 && !running:
		return broker{}, fmt.Errorf("unknown broker %q", name)
	case i < 0:
		return broker{name: plainName(name), speaks: version5, addr: addr}, nil
	}
	all[i].addr = addr
	return all[i], nil
}

func plainName(name string) string {
	return name[:strings.IndexAny(name+"@", "@=")]
}
