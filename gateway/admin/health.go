package admin

// Health is what a gateway says about itself at one moment.
type Health struct {
	// Status is ok, degraded (a part needs help, see Parts), starting or stopping.
	Status string `json:"status"`

	// Ready says whether a publisher can be acknowledged now; NotReady says why not.
	Ready    bool     `json:"ready"`
	NotReady []string `json:"not_ready,omitempty"`

	Gateway       string  `json:"gateway,omitempty"` // its ID, once it is known
	Version       string  `json:"version"`
	UptimeSeconds float64 `json:"uptime_seconds"`
	Parts         []Part  `json:"parts"`
}

// Part is one part of a gateway.
type Part struct {
	Name  string `json:"name"`
	State string `json:"state"` // waiting, starting, running, failed, stopping, stopped

	// Problem is what is wrong and what to do about it, empty when nothing is.
	Problem string `json:"problem,omitempty"`
}
