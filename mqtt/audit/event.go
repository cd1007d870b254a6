package audit

import (
	"log/slog"
	"time"
	"unicode/utf8"
)

// The names of the events. They are part of what operators build on: a new one may come, none changes.
const (
	Connected    = "client.connected"    // a client has its session
	Disconnected = "client.disconnected" // and it is over
	Refused      = "client.refused"      // a CONNECT was answered with a refusal
	Unwelcome    = "connection.refused"  // a connection ended before MQTT: TLS, PROXY header, WebSocket, ban, limit
	Denied       = "acl.denied"          // the rules refused a publish, a subscription or a will
	Reloaded     = "files.reloaded"      // rules, users, bans, keys, certificates, CAs, lists were read again
	ReloadFailed = "files.refused"       // and had a fault: the old content is in force
	LimitReached = "limit.reached"       // a client was slowed or refused for a limit
	Banned       = "ban.added"           // somebody is kept out from now on
	Unbanned     = "ban.removed"         // and is not any more
	Admin        = "admin.action"        // somebody has changed something by the admin API
	AdminRefused = "admin.refused"       // somebody was refused by the admin API
	Suppressed   = "audit.suppressed"    // so many events of a name from one source were not recorded
)

// Names are all of them.
var Names = []string{
	Connected, Disconnected, Refused, Unwelcome, Denied, Reloaded, ReloadFailed, LimitReached, Banned, Unbanned, Admin, AdminRefused, Suppressed,
}

// Event is one event. What does not apply is empty.
type Event struct {
	Time     time.Time `json:"time"`
	Name     string    `json:"event"`
	Listener string    `json:"listener,omitempty"`
	Client   string    `json:"client,omitempty"` // client ID, as claimed when it was refused
	User     string    `json:"user,omitempty"`   // verified, or as claimed when it was refused
	Remote   string    `json:"remote,omitempty"` // address and port
	Method   string    `json:"method,omitempty"` // of authentication
	Action   string    `json:"action,omitempty"` // that was denied or done
	Topic    string    `json:"topic,omitempty"`  // topic name or topic filter
	Limit    string    `json:"limit,omitempty"`  // key of the configuration
	Reason   string    `json:"reason,omitempty"` // reason code of MQTT 5, 0x86
	What     string    `json:"what,omitempty"`   // files, a ban, a route
	Detail   string    `json:"detail,omitempty"` // in words

	// Missing, of audit.suppressed, is how many events of the name in What were not recorded since the last summary.
	Missing uint64 `json:"missing,omitempty"`
}

// maxText is the longest text of an event: a client ID may have 8 KiB, a user name 64, and neither is to fill the log.
const maxText = 256

// shorten bounds everything that a client may have chosen.
func (e *Event) shorten() {
	for _, s := range []*string{&e.Client, &e.User, &e.Topic, &e.What, &e.Detail, &e.Action, &e.Remote} {
		if len(*s) <= maxText {
			continue
		}
		n := maxText
		for n > 0 && !utf8.RuneStart((*s)[n]) {
			n--
		}
		*s = (*s)[:n] + "…"
	}
}

// level is how much a line is worth to somebody who reads the log at its default level.
func (e *Event) level() slog.Level {
	switch e.Name {
	case Refused, Unwelcome, Denied, LimitReached, ReloadFailed, AdminRefused, Suppressed:
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// attrs are the fields that say something, by the names that they have in the stream.
func (e *Event) attrs() []slog.Attr {
	list := []slog.Attr{slog.String("event", e.Name)}
	for _, f := range []struct{ key, value string }{
		{"listener", e.Listener},
		{"client", e.Client},
		{"user", e.User},
		{"remote", e.Remote},
		{"method", e.Method},
		{"action", e.Action},
		{"topic", e.Topic},
		{"limit", e.Limit},
		{"reason", e.Reason},
		{"what", e.What},
		{"detail", e.Detail},
	} {
		if f.value != "" {
			list = append(list, slog.String(f.key, f.value))
		}
	}
	if e.Missing > 0 {
		list = append(list, slog.Uint64("missing", e.Missing))
	}
	return list
}
