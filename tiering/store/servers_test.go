package store_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/sas"

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
	storetest.Run(t, open(t, server.At(server.Addr), store.Options{}), "")

	file := filepath.Join(t.TempDir(), "azure")
	write(t, file, "# of the site\nAZURE_STORAGE_ACCOUNT=devstoreaccount1\nAZURE_STORAGE_KEY=\""+server.Env["AZURE_STORAGE_KEY"]+"\"\n")
	t.Setenv("AZURE_STORAGE_KEY", "")
	storetest.Run(t, open(t, server.At(server.Addr), store.Options{CredentialsFile: file}), "file/")
}

// A token that has expired is told for what it is, and the next one taken from the file.
func TestStoresAzureTokenExpires(t *testing.T) {
	server := storetest.StartAzure(t)
	t.Setenv("AZURE_STORAGE_KEY", "")
	file := filepath.Join(t.TempDir(), "azure")
	token := func(until time.Time) {
		url, err := storetest.AzureContainer(t, server).GetSASURL(sas.ContainerPermissions{Read: true, Create: true, Write: true, List: true, Delete: true}, until, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, query, _ := strings.Cut(url, "?")
		write(t, file, "AZURE_STORAGE_ACCOUNT=devstoreaccount1\nAZURE_STORAGE_SAS_TOKEN="+query+"\n")
	}
	token(time.Now().Add(-time.Hour))
	s := open(t, server.At(server.Addr), store.Options{CredentialsFile: file})
	if err := store.PutBytes(t.Context(), s, "a", []byte("x"), false); !denied(err) {
		t.Fatalf("with a token of yesterday: %v", err)
	}
	token(time.Now().Add(time.Hour))
	if err := store.PutBytes(t.Context(), s, "a", []byte("x"), false); err != nil {
		t.Errorf("with a new token: %v", err)
	}
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

func TestStoresS3TellsAMissingBucket(t *testing.T)    { missingBucket(t, storetest.StartS3(t)) }
func TestStoresGCSTellsAMissingBucket(t *testing.T)   { missingBucket(t, storetest.StartGCS(t)) }
func TestStoresAzureTellsAMissingBucket(t *testing.T) { missingBucket(t, storetest.StartAzure(t)) }

func missingBucket(t *testing.T, server storetest.Server) {
	s := open(t, strings.Replace(server.At(server.Addr), "://forebay/", "://nothing-here/", 1), store.Options{})
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
