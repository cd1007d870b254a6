package gateway

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// idFile keeps the ID of a gateway that was given none. It stands beside the spool, because the ID names the spool's offsets to
// the world (the header forebay.id): who copies the directory copies the name, and who starts an empty one gets a new name.
const idFile = "gateway_id"

var madeID = regexp.MustCompile(`^forebay-[a-z2-7]{10}$`)

// identity is the ID that the directory dir has, made at its first start.
func identity(dir string) (string, error) {
	name := filepath.Join(dir, idFile)
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return makeIdentity(dir, name)
	}
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(b))
	if !madeID.MatchString(id) {
		return "", fmt.Errorf("%s: %q is not an ID that this file can hold: set gateway.id to the ID that this gateway had", name, id)
	}
	return id, nil
}

// makeIdentity is durable on return: an ID that a crash could change would name the same offsets twice.
func makeIdentity(dir, name string) (string, error) {
	id := "forebay-" + strings.ToLower(rand.Text()[:10]) // 50 bits: fleets of a million gateways may meet once
	f, err := os.CreateTemp(dir, idFile+".*")
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(id + "\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return id, syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
