package storetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
)

// ServersEnv names the directory that make test-stores has put the servers into.
const ServersEnv = "FOREBAY_STORE_SERVERS"

// Server is a real server of an object store's API, with one empty bucket.
type Server struct {
	Name string // s3, gs, azblob
	Addr string // host:port
	URL  string // of a store in it; {addr} stands for where it is reached
	Dir  string // in which it keeps buckets and objects as directories and files; "" when it does not
	Env  map[string]string
}

// At is the store's URL by way of another address, such as that of a proxy.
func (s Server) At(addr string) string {
	return string(bytes.ReplaceAll([]byte(s.URL), []byte("{addr}"), []byte(addr)))
}

// StartS3 runs versitygw on a directory.
func StartS3(t *testing.T) Server {
	port := freePort(t)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "forebay"), 0o750); err != nil {
		t.Fatal(err)
	}
	run(t, port, nil, tool(t, "versitygw"), "--access", "forebay", "--secret", "forebay-secret", "--port", at(port), "--region", "us-east-1", "posix", dir)
	s := Server{
		Name: "s3", Addr: at(port), Dir: dir, URL: "s3://forebay/edge/one?endpoint=http://{addr}&use_path_style=true&region=us-east-1",
		Env: map[string]string{"AWS_ACCESS_KEY_ID": "forebay", "AWS_SECRET_ACCESS_KEY": "forebay-secret"},
	}
	return s.apply(t)
}

// StartGCS runs fake-gcs-server in memory.
func StartGCS(t *testing.T) Server {
	port := freePort(t)
	run(t, port, nil, tool(t, "fake-gcs-server"), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", fmt.Sprint(port),
		"-public-host", "127.0.0.1") // at any port: a proxy has another one
	post(t, http.MethodPost, "http://"+at(port)+"/storage/v1/b?project=forebay", `{"name":"forebay"}`)
	s := Server{Name: "gs", Addr: at(port), URL: "gs://forebay/edge/one?endpoint=http://{addr}/storage/v1/&anonymous=true"}
	return s.apply(t)
}

// StartAzure runs Azurite.
func StartAzure(t *testing.T) Server {
	port := freePort(t)
	run(t, port, nil, "node", tool(t, filepath.Join("node_modules", "azurite", "dist", "src", "blob", "main.js")), "--blobHost", "127.0.0.1", "--blobPort", fmt.Sprint(port),
		"--location", t.TempDir(), "--silent", "--skipApiVersionCheck", "--disableTelemetry")
	s := Server{
		Name: "azblob", Addr: at(port), URL: "azblob://forebay/edge/one?storage_account=devstoreaccount1&domain={addr}&protocol=http",
		Env: map[string]string{"AZURE_STORAGE_ACCOUNT": "devstoreaccount1", "AZURE_STORAGE_KEY": azuriteKey},
	}
	if _, err := AzureContainer(t, s).Create(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return s.apply(t)
}

// AzureContainer is the container of an Azurite, by its own client.
func AzureContainer(t *testing.T, s Server) *container.Client {
	t.Helper()
	cred, err := container.NewSharedKeyCredential(s.Env["AZURE_STORAGE_ACCOUNT"], s.Env["AZURE_STORAGE_KEY"])
	if err != nil {
		t.Fatal(err)
	}
	c, err := container.NewClientWithSharedKeyCredential("http://"+s.Addr+"/devstoreaccount1/forebay", cred, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// azuriteKey is the key of the account that every Azurite has; it is public.
const azuriteKey = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

func (s Server) apply(t *testing.T) Server {
	for k, v := range s.Env {
		t.Setenv(k, v)
	}
	return s
}

// tool is a server's program; without it the test is skipped.
func tool(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv(ServersEnv)
	if dir == "" {
		t.Skipf("%s is not set: make test-stores does", ServersEnv)
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	return path
}

func at(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// run starts a server and waits until it listens. It ends with the test.
func run(t *testing.T, port int, env []string, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	out := &output{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
		if t.Failed() {
			t.Logf("%s: %s", filepath.Base(name), out)
		}
	})
	for deadline := time.Now().Add(60 * time.Second); ; {
		c, err := net.DialTimeout("tcp", at(port), time.Second)
		if err == nil {
			_ = c.Close()
			return
		}
		select {
		case <-exited:
			t.Fatalf("%s has ended: %s", name, out)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen: %v\n%s", name, err, out)
		}
	}
}

// output keeps what a server says.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.b.Len() < 64<<10 {
		o.b.Write(p)
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func post(t *testing.T, method, url, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, _ := io.ReadAll(res.Body); res.StatusCode/100 != 2 {
		t.Fatalf("%s %s: %s: %s", method, url, res.Status, b)
	}
	http.DefaultClient.CloseIdleConnections()
}
