package store_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/forebay-gateway/forebay/tiering/store"
	"github.com/forebay-gateway/forebay/tiering/store/storetest"
)

func open(t *testing.T, url string, o store.Options) store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	return s
}

func TestStoresS3KeepsTheContract(t *testing.T) {
	server := storetest.StartS3(t)
	storetest.Run(t, open(t, server.At(server.Addr), store.Options{}), "")
}

func TestStoresGCSKeepsTheContract(t *testing.T) {
	server := storetest.StartGCS(t)
	storetest.Run(t, open(t, server.At(server.Addr), store.Options{}), "")
}

func TestStoresAzureKeepsTheContract(t *testing.T) {
	server := storetest.StartAzure(t)
	cred, err := container.NewSharedKeyCredential(server.Env["AZURE_STORAGE_ACCOUNT"], server.Env["AZURE_STORAGE_KEY"])
	if err != nil {
		t.Fatal(err)
	}
	c, err := container.NewClientWithSharedKeyCredential("http://"+server.Addr+"/devstoreaccount1/forebay", cred, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	storetest.Run(t, open(t, server.At(server.Addr), store.Options{}), "")

	file := filepath.Join(t.TempDir(), "azure")
	write(t, file, "# of the site\nAZURE_STORAGE_ACCOUNT=devstoreaccount1\nAZURE_STORAGE_KEY=\""+server.Env["AZURE_STORAGE_KEY"]+"\"\n")
	t.Setenv("AZURE_STORAGE_KEY", "")
	storetest.Run(t, open(t, server.At(server.Addr), store.Options{CredentialsFile: file}), "file/")
}

// Keys are rotated while the gateway runs: what the file says counts, without a restart.
func TestStoresS3ReadsCredentialsAgain(t *testing.T) {
	server := storetest.StartS3(t)
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	file := filepath.Join(t.TempDir(), "credentials")
	write(t, file, "[default]\naws_access_key_id = forebay\naws_secret_access_key = of-last-year\n")
	s := open(t, server.At(server.Addr), store.Options{CredentialsFile: file})
	if err := store.PutBytes(t.Context(), s, "a", []byte("x"), false); !denied(err) {
		t.Fatalf("with a wrong key: %v", err)
	}
	write(t, file, "[default]\naws_access_key_id = forebay\naws_secret_access_key = forebay-secret\n")
	if err := store.PutBytes(t.Context(), s, "a", []byte("x"), false); err != nil {
		t.Errorf("with the new key: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
}

func TestStoresS3TellsAMissingBucket(t *testing.T) {
	server := storetest.StartS3(t)
	s := open(t, strings.Replace(server.At(server.Addr), "s3://forebay/", "s3://nothing-here/", 1), store.Options{})
	for what, err := range map[string]error{
		"put":  store.PutBytes(t.Context(), s, "a", []byte("x"), false),
		"list": s.List(context.Background(), "", func(store.Object) error { return nil }),
	} {
		if !noBucket(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func denied(err error) bool   { return errors.Is(err, store.ErrDenied) }
func noBucket(err error) bool { return errors.Is(err, store.ErrNoBucket) }
