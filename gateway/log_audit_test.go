package gateway

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// Events have their own bound, mqtt.audit.rate, and no other: strangers must not hide others' by making their own.
func TestAuditIsNotThrottled(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(newThrottle(slog.NewTextHandler(&out, nil))).With("part", "mqtt")
	for range 10 * throttleBurst {
		log.Info("audit")
		log.With("component", "audit").Warn("audit", "event", "admin.refused")
	}
	log.With("component", "audit").Info("audit", "event", "admin.action")
	if n := strings.Count(out.String(), "event="); n != 10*throttleBurst+1 {
		t.Errorf("%d events", n)
	}
	if n := strings.Count(out.String(), "msg=audit"); n != 11*throttleBurst+1 {
		t.Errorf("%d lines: others are throttled", n)
	}
}
