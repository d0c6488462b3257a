package redis

import "time"

// Status is what a Client knows of its store.
type Status struct {
	Mode  string        `json:"mode"`            // server, cluster or sentinel; "": not connected yet
	Up    bool          `json:"up"`              // the store answers in time
	For   time.Duration `json:"for"`             // how long it has been up, or not
	Alone time.Duration `json:"alone"`           // how long it was not up, since the Client was opened
	Trip  time.Duration `json:"trip"`            // of the last exchange that was answered
	Error string        `json:"error,omitempty"` // of the last exchange, if it failed

	Plans    Exchanges `json:"plans"` // about backends
	Takes    Exchanges `json:"takes"` // about zones
	Backends []Backend `json:"backends,omitempty"`
	Zones    []Zone    `json:"zones,omitempty"`
}

// Status returns the state of the store as this process sees it.
func (c *Client) Status() Status {
	now := c.shell.Now()
	s := Status{Plans: c.plans.read(), Takes: c.takes.read()}
	backends, zones := c.served()
	for _, b := range backends {
		s.Backends = append(s.Backends, b.status())
	}
	for _, z := range zones {
		s.Zones = append(s.Zones, z.status(now))
	}
	s.Mode = c.driver.mode()
	h := &c.health
	h.mu.Lock()
	defer h.mu.Unlock()
	s.Up, s.For, s.Alone, s.Trip = h.up, now-h.since, h.alone, h.trip
	if !h.up {
		s.Alone += s.For
	}
	if h.why != nil {
		s.Error = h.why.Error()
	}
	return s
}
