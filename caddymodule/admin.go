package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
)

func init() { caddy.RegisterModule(new(Admin)) }

// Admin is the admin endpoint `GET /shield/`: a Status of the running config.
type Admin struct{}

// CaddyModule implements caddy.Module.
func (*Admin) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "admin.api.shield", New: func() caddy.Module { return new(Admin) }}
}

// Status is what shield is doing right now, in the order in which Caddy has
// provisioned the handlers.
type Status struct {
	Shields []ShieldStatus `json:"shields"`
	Zones   []ZoneStatus   `json:"zones"`
}

// ShieldStatus is the status of one protected backend. Counts are since its
// state was made, which reloads do not touch.
type ShieldStatus struct {
	Name        string            `json:"name"`
	Mode        string            `json:"mode"`
	Capacity    *RateStatus       `json:"capacity,omitempty"`
	Concurrency int               `json:"concurrency,omitempty"`
	InFlight    int               `json:"in_flight"`
	Overloaded  bool              `json:"overloaded"`
	Admitted    uint64            `json:"admitted"`
	Refused     map[string]uint64 `json:"refused"`  // by reason
	Observed    map[string]uint64 `json:"observed"` // by reason
}

// RateStatus is a token bucket in the words of the config.
type RateStatus struct {
	Rate  float64 `json:"rate"`
	Per   string  `json:"per"`
	Burst int     `json:"burst"`
}

// ZoneStatus is the status of one zone.
type ZoneStatus struct {
	Name string `json:"name"`
	Key  string `json:"key"`
	RateStatus
	Keys     int    `json:"keys"`
	MaxKeys  int    `json:"max_keys"`
	Admitted uint64 `json:"admitted"`
	Refused  uint64 `json:"refused"`
	Observed uint64 `json:"observed"`
	Evicted  uint64 `json:"evicted"`
	Shared   uint64 `json:"shared"`
}

// Routes implements caddy.AdminRouter.
func (*Admin) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{{Pattern: "/shield/", Handler: caddy.AdminHandlerFunc(serveStatus)}}
}

func serveStatus(w http.ResponseWriter, r *http.Request) error {
	if r.URL.Path != "/shield/" {
		return caddy.APIError{HTTPStatus: http.StatusNotFound, Err: fmt.Errorf("there is no %s; want /shield/", r.URL.Path)}
	}
	if r.Method != http.MethodGet {
		return caddy.APIError{HTTPStatus: http.StatusMethodNotAllowed, Err: fmt.Errorf("method is %s; want GET", r.Method)}
	}
	status := Status{Shields: []ShieldStatus{}, Zones: []ZoneStatus{}}
	module, err := caddy.ActiveContext().AppIfConfigured("shield")
	switch {
	case err == nil:
		module.(*App).fill(&status)
	case !errors.Is(err, caddy.ErrNotConfigured):
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(status)
}

func (a *App) fill(status *Status) {
	for _, b := range a.backends {
		s := b.state.Stats(shield.Now())
		out := ShieldStatus{
			Name: b.name, Mode: modeEnforce,
			InFlight: s.InFlight, Overloaded: b.state.overload.active(),
			Admitted: s.Admitted, Refused: map[string]uint64{}, Observed: map[string]uint64{},
		}
		if b.observing {
			out.Mode = modeObserve
		}
		if b.capacity != nil {
			rate := b.capacity.status()
			out.Capacity = &rate
		}
		if b.concurrency != nil {
			out.Concurrency = b.concurrency.Limit
		}
		for _, reason := range shield.Reasons {
			out.Refused[reason.String()], out.Observed[reason.String()] = s.Refused[reason], s.Observed[reason]
		}
		status.Shields = append(status.Shields, out)
	}
	for _, z := range a.zones {
		s := z.state.Stats(shield.Now())
		status.Zones = append(status.Zones, ZoneStatus{
			Name: z.Name, Key: z.key(), RateStatus: z.Rate.status(),
			Keys: s.Keys, MaxKeys: z.maxKeys(),
			Admitted: s.Admitted, Refused: s.Refused, Observed: s.Observed, Evicted: s.Evicted, Shared: s.Shared,
		})
	}
}

func (r Rate) status() RateStatus {
	c := r.config(new([]error)) // it has been checked
	if c.Per == 0 {
		c.Per = time.Second
	}
	s := RateStatus{Rate: c.Rate, Per: c.Per.String(), Burst: c.Burst}
	if l, err := limiter.New(c); err == nil {
		s.Burst = l.Burst()
	}
	return s
}
