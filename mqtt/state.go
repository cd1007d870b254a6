package mqtt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// The spaces of durable state. Keys are built of client IDs and filters, which hold no U+0000.
//
//	space              key                       value
//	mqtt/session       client ID                 expiry, times
//	mqtt/subscription  client ID NUL filter      options, first offsets
//	mqtt/position      client ID                 next offset on each lane, QoS 1 deliveries in flight, last identifier
//	mqtt/outbound      client ID NUL identifier  QoS 2 delivery in flight
//	mqtt/inbound       client ID NUL identifier of the session, packet identifier
//	                                             nothing: the record is in the log, PUBREL has not come
//	mqtt/will          client ID                 will message, delay
//	mqtt/retained      topic                     message
//	mqtt/share         $share/{name}/{filter}    next offset on each lane, deliveries to hand out again
const (
	spaceSession      = "mqtt/session"
	spaceSubscription = "mqtt/subscription"
	spacePosition     = "mqtt/position"
	spaceOutbound     = "mqtt/outbound"
	spaceInbound      = "mqtt/inbound"
	spaceWill         = "mqtt/will"
	spaceRetained     = "mqtt/retained"
	spaceShare        = "mqtt/share"
)

// stateVersion is the first byte of every value. Another one is unsupported, not damage.
const stateVersion = 1

var errShortState = errors.New("value is cut off")

func pidKey(clientID string, pid uint16) string {
	return clientID + "\x00" + string([]byte{byte(pid >> 8), byte(pid)})
}

func splitPidKey(key string) (clientID string, pid uint16, err error) {
	i := len(key) - 3
	if i < 0 || key[i] != 0 {
		return "", 0, fmt.Errorf("key %q is no client ID and packet identifier", key)
	}
	return key[:i], uint16(key[i+1])<<8 | uint16(key[i+2]), nil
}

// inboundKey names the session too: a publish of a session that has ended may be written after the session's state was
// deleted, and must not become an identifier of the next session of its client.
func inboundKey(clientID string, epoch uint64, pid uint16) string {
	b := append([]byte(clientID), 0)
	b = binary.BigEndian.AppendUint64(b, epoch)
	return string(binary.BigEndian.AppendUint16(b, pid))
}

func splitInboundKey(key string) (clientID string, epoch uint64, pid uint16, err error) {
	i := len(key) - 11
	if i < 0 || key[i] != 0 {
		return "", 0, 0, fmt.Errorf("key %q is no client ID, session and packet identifier", key)
	}
	tail := []byte(key[i+1:])
	return key[:i], binary.BigEndian.Uint64(tail), binary.BigEndian.Uint16(tail[8:]), nil
}

func filterKey(clientID, filter string) string { return clientID + "\x00" + filter }

func splitFilterKey(key string) (clientID, filter string, err error) {
	clientID, filter, ok := strings.Cut(key, "\x00")
	if !ok {
		return "", "", fmt.Errorf("key %q is no client ID and filter", key)
	}
	return clientID, filter, nil
}
