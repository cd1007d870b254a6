package auth

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrNoUser is wrapped when a user is not in a password file.
var ErrNoUser = errors.New("no such user")

// PasswordChange is what SetPassword does for a user.
type PasswordChange struct {
	User       string
	Password   []byte
	Params     HashParams // the zero value is DefaultHashParams
	Hash       bool       // store an argon2id hash, for CONNECT with a password
	Scram      bool       // store a SCRAM-SHA-256 credential
	Iterations int        // of SCRAM; 0 is DefaultScramIterations
	Groups     []string   // nil keeps those that the user has
}

// SetPassword creates a user or replaces its credentials; created says which. Everything else in the file stays as it is. The
// file is replaced as a whole, with mode 0600, so that a gateway that reads it at that moment sees the old or the new one.
func SetPassword(file string, ch PasswordChange) (created bool, err error) {
	if err := CheckUserName(ch.User); err != nil {
		return false, err
	}
	if len(ch.Password) == 0 {
		return false, errors.New("password is empty")
	}
	if ch.Params == (HashParams{}) {
		ch.Params = DefaultHashParams
	}
	if err := ch.Params.Validate(); err != nil {
		return false, err
	}
	fresh := &credential{user: ch.User, groups: ch.Groups}
	if ch.Hash {
		fresh.hash = newHash(ch.Password, ch.Params)
	}
	if ch.Scram {
		if fresh.scram, err = newScramKeys(string(ch.Password), ch.Iterations); err != nil {
			return false, err
		}
	}
	err = edit(file, true, func(p *Passwords, lines []string) ([]string, error) {
		old := p.users[ch.User]
		created = old == nil
		if created {
			return append(lines, fresh.String()), nil
		}
		if ch.Groups == nil {
			fresh.groups = old.groups
		}
		lines[old.line-1] = fresh.String()
		return lines, nil
	})
	return created, err
}

// DeleteUser takes a user out of a password file.
func DeleteUser(file, user string) error {
	return edit(file, false, func(p *Passwords, lines []string) ([]string, error) {
		old := p.users[user]
		if old == nil {
			return nil, fmt.Errorf("%s: %w: %s", file, ErrNoUser, user)
		}
		return append(lines[:old.line-1], lines[old.line:]...), nil
	})
}

// VerifyPassword reports whether a password is the one in the file, by its hash or, when there is none, its SCRAM credential.
func VerifyPassword(file, user string, password []byte) (bool, error) {
	data, err := readFile(file)
	if err != nil {
		return false, err
	}
	p, err := ParsePasswords(file, data, 0)
	if err != nil {
		return false, err
	}
	c := p.users[user]
	switch {
	case c == nil:
		return false, fmt.Errorf("%s: %w: %s", file, ErrNoUser, user)
	case c.hash != nil:
		return newGate(c.hash.Memory, 1, 1, hashForever).verify(noContext, c.hash, password)
	case c.scram != nil:
		return c.scram.verify(string(password)), nil
	}
	return false, nil
}

// edit changes the lines of a password file under a lock. create allows that there is none yet.
func edit(file string, create bool, change func(p *Passwords, lines []string) ([]string, error)) error {
	if target, err := filepath.EvalSymlinks(file); err == nil {
		file = target // the link stays one
	}
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	defer dir.Close()
	// Two commands at once would each write what the other has not seen. The directory is locked, because the file is
	// another one afterwards.
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", dir.Name(), err)
	}
	data, err := readFile(file)
	if err != nil && !(create && errors.Is(err, fs.ErrNotExist)) {
		return err
	}
	p, err := ParsePasswords(file, data, 0)
	if err != nil {
		return err
	}
	var lines []string
	if text := strings.TrimSuffix(string(data), "\n"); text != "" {
		lines = strings.Split(text, "\n")
	}
	if lines, err = change(p, lines); err != nil {
		return err
	}
	out := strings.Join(lines, "\n")
	if out != "" {
		out += "\n"
	}
	return replaceFile(file, []byte(out), dir)
}

// replaceFile writes, syncs, renames and syncs the directory. The owner of an old file keeps the new one: the gateway reads
// it, and whoever runs the command may be root.
func replaceFile(file string, data []byte, dir *os.File) (err error) {
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*") // with mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if info, statErr := os.Stat(file); statErr == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok && (int(st.Uid) != os.Geteuid() || int(st.Gid) != os.Getegid()) {
			if err := f.Chown(int(st.Uid), int(st.Gid)); err != nil {
				return errors.Join(fmt.Errorf("keep the owner of %s: %w", file, err), f.Close())
			}
		}
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), file); err != nil {
		return err
	}
	return dir.Sync()
}
