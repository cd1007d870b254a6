package mqtt

import (
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/wire"
)

// offer is what of MQTT a listener serves: the highest QoS of publishes, and whether there are retained messages. MQTT 5 clients
// are told in CONNACK; who goes beyond it loses its connection, as the standard has it (MQTT 5, 3.2.2.3.4 and 3.2.2.3.5).
type offer struct {
	maxQoS byte
	retain bool
}

func newOffer(cfg *Config, lst *ListenerConfig) offer {
	o := offer{maxQoS: byte(cfg.MaxQoS), retain: cfg.RetainAvailable}
	if lst.MaxQoS != nil {
		o.maxQoS = byte(*lst.MaxQoS)
	}
	if lst.RetainAvailable != nil {
		o.retain = *lst.RetainAvailable
	}
	return o
}

var (
	errMaxQoS   = &wire.Error{Code: packets.ErrQosNotSupported, Detail: "QoS is above the maximum", Version: wire.Version5}
	errNoRetain = &wire.Error{Code: packets.ErrRetainNotSupported, Detail: "retained messages are not available", Version: wire.Version5}
)

// allows decides about a PUBLISH or a will.
func (o offer) allows(qos byte, retain bool) error {
	switch {
	case qos > o.maxQoS:
		return errMaxQoS
	case retain && !o.retain:
		return errNoRetain
	}
	return nil
}

// tell sets the properties of CONNACK. That everything is offered needs no words, but costs none either.
func (o offer) tell(pr *packets.Properties) {
	pr.MaximumQos, pr.MaximumQosFlag = o.maxQoS, o.maxQoS < 2
	pr.RetainAvailable, pr.RetainAvailableFlag = byte(b2i(o.retain)), true
}
