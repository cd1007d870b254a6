package mqtt

import (
	"errors"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/audit"
	"github.com/forebay-gateway/forebay/mqtt/transport"
	"github.com/forebay-gateway/forebay/mqtt/wire"
)

// The limits that a client can reach, by their keys. Each time counts in forebay_mqtt_limits_reached_total.
const (
	limitConnections        = "max_connections"
	limitAddressConnections = "max_connections_per_address"
	limitPending            = "max_pending_per_address"
	limitAddressRate        = "connection_rate_per_address"
	limitHandshakes         = "max_handshakes"
	limitConnectSize        = "max_connect_size"
	limitPacketSize         = "max_packet_size"
	limitReceiveMaximum     = "receive_maximum"
	limitTopicAlias         = "topic_alias_maximum"
	limitTopicLevels        = "max_topic_levels"
	limitTopicLength        = "max_topic_length"
	limitUserProperties     = "max_user_properties"
	limitSubscriptions      = "max_subscriptions"
	limitSessions           = "max_sessions"
	limitSessionsSize       = "max_sessions_size"
	limitRetained           = "max_retained"
	limitRetainedSize       = "max_retained_size"
	limitQoS                = "max_qos"
	limitRetain             = "retain_available"
	limitClientRate         = "client_rate"
	limitListenerRate       = "listener_rate"
	limitRate               = "rate"
)

var limitNames = []string{
	limitConnections, limitAddressConnections, limitPending, limitAddressRate, limitHandshakes, limitConnectSize, limitPacketSize, limitReceiveMaximum, limitTopicAlias,
	limitTopicLevels, limitTopicLength, limitUserProperties, limitSubscriptions, limitSessions, limitSessionsSize, limitRetained, limitRetainedSize, limitQoS,
	limitRetain, limitClientRate, limitListenerRate, limitRate,
}

// pacedLimits are those that slow their clients.
var pacedLimits = []string{limitClientRate, limitListenerRate, limitRate}

// limitOf names the limit that an error is about; empty when it is about none.
func limitOf(err error) string {
	switch {
	case errors.Is(err, errTooManyConnections):
		return limitConnections
	case errors.Is(err, errTooManyFromAddress):
		return limitAddressConnections
	case errors.Is(err, errTooManyPending):
		return limitPending
	case errors.Is(err, errTooFastFromAddress):
		return limitAddressRate
	case errors.Is(err, errTooManyHandshakes), errors.Is(err, transport.ErrSlow):
		return limitHandshakes
	case errors.Is(err, errTooManySessions):
		return limitSessions
	case errors.Is(err, errSessionsSize):
		return limitSessionsSize
	case errors.Is(err, errTopicDepth):
		return limitTopicLevels
	case errors.Is(err, errTopicLong):
		return limitTopicLength
	case errors.Is(err, errUserProperties):
		return limitUserProperties
	case errors.Is(err, errRetainedCount):
		return limitRetained
	case errors.Is(err, errRetainedSize):
		return limitRetainedSize
	case errors.Is(err, errMaxQoS):
		return limitQoS
	case errors.Is(err, errNoRetain):
		return limitRetain
	case errors.Is(err, errMessageRate), errors.Is(err, errByteRate):
		return limitClientRate
	}
	var we *wire.Error
	if !errors.As(err, &we) {
		return ""
	}
	switch we.Code.Code {
	case packets.ErrPacketTooLarge.Code:
		return limitPacketSize
	case packets.ErrReceiveMaximum.Code:
		return limitReceiveMaximum
	case packets.ErrTopicAliasInvalid.Code:
		return limitTopicAlias
	case reasonQuotaExceeded:
		if we.Detail == wire.DetailUserProperties {
			return limitUserProperties
		}
		return limitSubscriptions
	}
	return ""
}

// tellLimit counts and records an error when it is about a limit.
func (c *conn) tellLimit(err error) {
	limit := limitOf(err)
	if limit == "" {
		return
	}
	if limit == limitPacketSize && !c.bound.Load() {
		limit = limitConnectSize
	}
	c.limitReached(limit, err)
}

// limitReached counts and records that the client has met a limit.
func (c *conn) limitReached(limit string, err error) {
	c.srv.metrics.limits.WithLabelValues(limit).Inc()
	e := c.event(audit.LimitReached)
	e.Limit = limit
	if err != nil {
		e.Reason, e.Detail = code(reasonOf(err)), err.Error()
	}
	c.srv.audit.Record(e)
}
