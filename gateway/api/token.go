package api

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// TokenFile is the name of the token's file in gateway.data_dir.
const TokenFile = "admin_token"

const tokenLen = 26 // of rand.Text: 130 bits

// MakeToken is the token of dir, made when there is none yet. It stays the same from run to run: a second gateway that is
// started on the directory by mistake, and ends again, must not lock out the first one's tools. Removing the file before a
// start gives a new one.
func MakeToken(dir string) (string, error) {
	token, err := ReadToken(dir, TokenFile)
	if !errors.Is(err, fs.ErrNotExist) {
		return token, err
	}
	f, err := os.CreateTemp(dir, TokenFile+".*") // mode 0600
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(rand.Text() + "\n")
	if err = errors.Join(err, f.Chmod(0o640), f.Sync(), f.Close()); err != nil {
		return "", err
	}
	// A link and not a rename: whoever was faster has made it.
	if err := os.Link(f.Name(), filepath.Join(dir, TokenFile)); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return ReadToken(dir, TokenFile)
}

// ReadToken reads a token from the file name in dir.
func ReadToken(dir, name string) (string, error) {
	name = filepath.Join(dir, name)
	b, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(b))
	if len(token) < tokenLen {
		return "", fmt.Errorf("%s: holds no token: remove it and start the gateway again", name)
	}
	return token, nil
}
