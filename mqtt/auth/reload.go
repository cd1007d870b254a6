package auth

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/audit"
)

// file is one file that can be read again.
type file struct {
	what    string
	name    string
	reload  func() error
	changed func() bool
}

func (a *Auth) sources() []file {
	var list []file
	if s := a.users; s != nil {
		list = append(list, file{"passwords", s.name, s.reload, s.changed})
	}
	if s := a.acl; s != nil {
		list = append(list, file{"acl", s.name, s.reload, s.changed})
	}
	if s := a.bans.file; s != nil {
		list = append(list, file{"bans", s.name, s.reload, s.changed})
	}
	if s := a.jwks; s != nil {
		list = append(list, file{"jwks", s.name, s.reload, s.changed})
	}
	return append(list, a.others...)
}

// Reload reads all files again. Each that has a fault keeps its old content; the error names them all, with their lines.
func (a *Auth) Reload() error {
	var errs []error
	for _, f := range a.sources() {
		errs = append(errs, a.reloadOne(f))
	}
	return errors.Join(errs...)
}

// ReloadPasswords reads the password file again.
func (a *Auth) ReloadPasswords() error { return a.reloadNamed("passwords") }

// ReloadACL reads the ACL again.
func (a *Auth) ReloadACL() error { return a.reloadNamed("acl") }

// ReloadBans reads the ban list again.
func (a *Auth) ReloadBans() error { return a.reloadNamed("bans") }

// ReloadJWKS reads the file with the keys again.
func (a *Auth) ReloadJWKS() error { return a.reloadNamed("jwks") }

func (a *Auth) reloadNamed(what string) error {
	for _, f := range a.sources() {
		if f.what == what {
			return a.reloadOne(f)
		}
	}
	return nil
}

func (a *Auth) reloadOne(f file) error {
	err := f.reload()
	a.faults.note(f.what, f.name, err, a.now())
	if err != nil {
		a.metrics.reloads.WithLabelValues("failed").Inc()
		a.audit.Record(audit.Event{Name: audit.ReloadFailed, Action: f.what, What: f.name, Detail: err.Error()})
		return err
	}
	a.metrics.reloads.WithLabelValues("ok").Inc()
	a.audit.Record(audit.Event{Name: audit.Reloaded, Action: f.what, What: f.name})
	a.generation.Add(1)
	return nil
}

// Watch reads files again when they change, until ctx ends, and calls changed after that.
func (a *Auth) Watch(ctx context.Context, changed func()) {
	list := a.sources()
	if a.cfg.ReloadInterval == 0 || len(list) == 0 {
		return
	}
	tick := time.NewTicker(a.cfg.ReloadInterval.Std())
	defer tick.Stop()
	told := map[string]string{} // what the log has said of a file that cannot be used
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		before := a.Generation()
		for _, f := range a.settled(ctx, list) {
			if err := a.reloadOne(f); err != nil {
				if told[f.name] != err.Error() {
					told[f.name] = err.Error()
					a.log.Error("changed file is not used, the old content stays in force", "file", f.name, "err", err)
				}
				continue
			}
			delete(told, f.name)
			a.log.Info("file read again", "file", f.name)
		}
		if a.Generation() != before {
			changed()
		}
	}
}

// settleTime is how long a changed file has to look the same before it is read.
const settleTime = 200 * time.Millisecond

// settled returns the files that have changed and that nobody is writing: half of a list of users is a list without the others, whose
// connections would be ended.
func (a *Auth) settled(ctx context.Context, list []file) []file {
	looks := map[string]string{}
	for _, f := range list {
		if f.changed() {
			looks[f.name] = look(f.name)
		}
	}
	if len(looks) == 0 {
		return nil
	}
	t := time.NewTimer(min(settleTime, a.cfg.ReloadInterval.Std()/2))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return nil
	}
	return slices.DeleteFunc(slices.Clone(list), func(f file) bool {
		first, changed := looks[f.name]
		return !changed || look(f.name) != first || !f.changed()
	})
}
