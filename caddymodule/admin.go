package caddymodule

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

func init() { caddy.RegisterModule(new(Admin)) }

// Admin is the admin endpoints: `GET /shield/` is a Status of the running config, or for browsers
// a page that shows what happens, `GET /shield/live` is a Watch, and `GET /shield/who` names clients.
type Admin struct{}

// CaddyModule implements caddy.Module.
func (*Admin) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "admin.api.shield", New: func() caddy.Module { return new(Admin) }}
}

// Status is the state of all shields and zones, in the order in which Caddy provisioned them.
type Status struct {
	Shields []ShieldStatus `json:"shields"`
	Zones   []ZoneStatus   `json:"zones"`

	// Operators' changes that are in force for a while.
	Overrides []Override `json:"overrides,omitempty"`

	// The store that replicas share, if there is one.
	Store *StoreStatus `json:"store,omitempty"`
}

// ShieldStatus is the status of one protected backend. Its counts survive reloads.
type ShieldStatus struct {
	Name        string            `json:"name"`
	Mode        string            `json:"mode"`
	Capacity    *RateStatus       `json:"capacity,omitempty"`
	Concurrency int               `json:"concurrency,omitempty"` // the limit now
	InFlight    int               `json:"in_flight"`
	Overloaded  bool              `json:"overloaded"`
	Admitted    uint64            `json:"admitted"`
	Refused     map[string]uint64 `json:"refused"`  // by reason
	Observed    map[string]uint64 `json:"observed"` // by reason
	Held        int               `json:"held"`     // refusals that are held now
	ToldNever   uint64            `json:"told_never"`

	// Refusals that the listener wrapper shield has answered, by protocol, if there are any.
	Door map[string]uint64 `json:"door,omitempty"`

	// For a limit in flight that is adaptive or has a target.
	Search *SearchStatus `json:"search,omitempty"`

	// For a queue and for classes, the highest class first.
	Queue   *QueueStatus        `json:"queue,omitempty"`
	Classes []shield.ClassStats `json:"classes,omitempty"`

	// How long the pause lasts that the backend has asked for, and how many there have
	// been. Requests that it refused or that did not reach it.
	PausedSeconds float64 `json:"paused_seconds,omitempty"`
	Pauses        uint64  `json:"pauses,omitempty"`
	Failures      uint64  `json:"failures,omitempty"`

	// The appointments of refused clients, for a backend with a limit.
	Calendar *CalendarStatus `json:"calendar,omitempty"`

	// Remembered clients by how they retry, and how many can be remembered; and the
	// returns of clients by their software.
	Clients    map[string]int                  `json:"clients"`
	MaxClients int                             `json:"max_clients"`
	Families   map[string]pushback.FamilyStats `json:"families,omitempty"`

	// The present herd, if any.
	Herd *HerdStatus `json:"herd,omitempty"`

	// With tickets on.
	Tickets *TicketStatus `json:"tickets,omitempty"`

	// If replicas share it.
	Sharing *SharingStatus `json:"sharing,omitempty"`
}

// SearchStatus is the state of an adaptive limit in flight.
type SearchStatus struct {
	By            string  `json:"by"`                       // adaptive or slo
	TargetSeconds float64 `json:"target_seconds,omitempty"` // of slo
	Ghosts        int     `json:"ghosts,omitempty"`         // orphaned requests, which still count as in flight

	// The last change, if any.
	Last *ChangeStatus `json:"last_change,omitempty"`
}

// ChangeStatus is a change of the limit in flight.
type ChangeStatus struct {
	SecondsAgo      float64 `json:"seconds_ago"`
	Reason          string  `json:"reason"`
	From            int     `json:"from"`
	To              int     `json:"to"`
	LatencySeconds  float64 `json:"latency_seconds"`            // mean, of the requests that caused the change
	BaselineSeconds float64 `json:"baseline_seconds,omitempty"` // the same without queueing in the backend
}

// QueueStatus counts the requests that have left the queue, by how.
type QueueStatus struct {
	Length      int     `json:"length"`
	Size        int     `json:"size"`
	Admitted    uint64  `json:"admitted"`
	Timeout     uint64  `json:"timeout"`
	Dropped     uint64  `json:"dropped"` // for one of a higher class
	Gone        uint64  `json:"gone"`    // the client
	WaitSeconds float64 `json:"wait_seconds"`
}

// CalendarStatus counts the appointments of clients refused at the backend's limit.
type CalendarStatus struct {
	BacklogSeconds float64 `json:"backlog_seconds"`  // time until the last appointment
	Deferred       int     `json:"deferred"`         // clients that wait for an appointment
	Spare          float64 `json:"spare_per_second"` // refused clients that the backend can serve
	Promises       uint64  `json:"promises"`
	Deferrals      uint64  `json:"deferrals"` // times that clients were told to come back for an appointment

	Kept   uint64 `json:"kept"`
	NoShow uint64 `json:"no_show"` // the client did not come in time
	Late   uint64 `json:"late"`    // it came after that; counted as no-show, too
	Early  uint64 `json:"early"`   // it was admitted before
	Broken uint64 `json:"broken"`  // it came in time and was refused

	// KeptRatio is the share of appointments for which clients are expected to come: see the
	// metric caddy_shield_kept_ratio.
	KeptRatio float64 `json:"kept_ratio"`
}

// HerdStatus describes a herd.
type HerdStatus struct {
	Kind   string  `json:"kind"`             // backlog, periodic or echo
	Size   float64 `json:"size"`             // clients of a backlog; requests in one pulse of the others
	Period float64 `json:"period,omitempty"` // seconds
	Phase  float64 `json:"phase,omitempty"`  // seconds within the period, since the detector began
}

// TicketStatus counts the tickets of unknown clients.
type TicketStatus struct {
	Honoured  uint64 `json:"honoured"`
	Worthless uint64 `json:"worthless"`
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
	MaxKeys int `json:"max_keys"`
	shield.ZoneStats

	// If replicas share it.
	Sharing *SharingStatus `json:"sharing,omitempty"`
}

// Routes implements caddy.AdminRouter.
func (*Admin) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{
		{Pattern: "/shield/", Handler: caddy.AdminHandlerFunc(serveStatus)},
		{Pattern: "/shield/explain", Handler: caddy.AdminHandlerFunc(serveExplain)},
		{Pattern: "/shield/live", Handler: caddy.AdminHandlerFunc(serveLive)},
		{Pattern: "/shield/forgive", Handler: caddy.AdminHandlerFunc(serveForgive)},
		{Pattern: "/shield/overrides", Handler: caddy.AdminHandlerFunc(serveOverrides)},
		{Pattern: "/shield/overrides/", Handler: caddy.AdminHandlerFunc(serveOverride)},
		{Pattern: "/shield/who", Handler: caddy.AdminHandlerFunc(serveWho)},
	}
}

func serveStatus(w http.ResponseWriter, r *http.Request) error {
	if r.URL.Path != "/shield/" {
		return caddy.APIError{HTTPStatus: http.StatusNotFound, Err: fmt.Errorf("path is %s; want /shield/", r.URL.Path)}
	}
	if r.Method != http.MethodGet {
		return caddy.APIError{HTTPStatus: http.StatusMethodNotAllowed, Err: fmt.Errorf("method is %s; want GET", r.Method)}
	}
	w.Header().Set("Vary", "Accept")
	if wantsPage(r) {
		return servePage(w)
	}
	status := Status{Shields: []ShieldStatus{}, Zones: []ZoneStatus{}}
	app, err := runningApp()
	if err != nil {
		return err
	}
	if app != nil {
		app.fill(&status)
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(status)
}

// runningApp returns the app of the running config, nil if it has no shield.
func runningApp() (*App, error) {
	module, err := caddy.ActiveContext().AppIfConfigured("shield")
	if errors.Is(err, caddy.ErrNotConfigured) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return module.(*App), nil
}

func (a *App) fill(status *Status) {
	now, all, store := shield.Now(), a.roster(), a.storeReading()
	for _, s := range all.shields {
		one := s.reading(now).status()
		one.Sharing = s.sharingStatus(now, store)
		status.Shields = append(status.Shields, one)
	}
	for _, z := range all.zones {
		status.Zones = append(status.Zones, ZoneStatus{
			z.record.shown, z.key, rateStatus(z.config().Limit, limiter.New), z.maxKeys(), z.record.Stats(now), z.sharingStatus(store),
		})
	}
	status.Store = store.status()
	status.Overrides, _ = changes.read(now)
}

func (s *shieldReading) status() ShieldStatus {
	out := ShieldStatus{
		Name: s.name, Mode: modeEnforce,
		InFlight: s.stats.InFlight, Overloaded: s.record.overloaded(),
		Admitted: s.stats.Admitted, Refused: map[string]uint64{}, Observed: map[string]uint64{},
		Held: s.stats.Held, ToldNever: s.stats.RetryAfter[0],
		PausedSeconds: s.shed.Paused.Seconds(), Pauses: s.shed.Pauses, Failures: s.shed.Failed,
		Clients: map[string]int{}, MaxClients: s.stats.MaxClients, Families: s.known().Families(),
		Search: s.searchStatus(), Calendar: s.calendarStatus(),
	}
	if door := s.record.door(); door["h1"]+door["h2"] > 0 {
		out.Door = door
	}
	if s.config().Observe {
		out.Mode = modeObserve
	}
	if s.config().Capacity.Rate > 0 {
		out.Capacity = new(rateStatus(s.config().Capacity, limiter.NewCapacity))
	}
	if s.concurrent() {
		out.Concurrency = s.guard().Limit()
	}
	for _, reason := range shield.Reasons {
		out.Refused[reason.String()], out.Observed[reason.String()] = s.stats.Refused[reason], s.stats.Observed[reason]
	}
	if size := s.guard().QueueSize(); size > 0 {
		q := s.shed.Queue
		out.Queue = &QueueStatus{q.Length, size, q.Granted, q.Expired, q.Dropped, q.Gone, q.Waited.Seconds()}
	}
	if s.config().Classes != nil {
		out.Classes = s.guard().ClassStats()
	}
	for class, n := range s.record.Clients() {
		if n > 0 {
			out.Clients[pushback.Class(class).String()] = n
		}
	}
	if h := s.herd; s.guard().DetectsHerds() && h.Kind != pushback.NoHerd {
		out.Herd = &HerdStatus{h.Kind.String(), h.Size, h.Period.Seconds(), h.Phase.Seconds()}
	}
	if s.guard().Tickets() {
		out.Tickets = &TicketStatus{Honoured: s.stats.Redeemed, Worthless: s.stats.Worthless}
	}
	return out
}

func (s *shieldReading) searchStatus() *SearchStatus {
	if !s.adaptive() {
		return nil
	}
	out := &SearchStatus{By: "adaptive", Ghosts: s.shed.Orphans}
	if target := s.config().Adaptive.Target; target > 0 {
		out.By, out.TargetSeconds = "slo", target.Seconds()
	}
	if c := s.shed.Last; c.At > 0 {
		out.Last = &ChangeStatus{
			SecondsAgo: (s.now - c.At).Seconds(), Reason: c.Reason.String(), From: c.From, To: c.To,
			LatencySeconds: c.Latency.Seconds(), BaselineSeconds: c.Baseline.Seconds(),
		}
	}
	return out
}

func (s *shieldReading) calendarStatus() *CalendarStatus {
	if !s.limited() {
		return nil
	}
	p := s.stats.Promises
	return &CalendarStatus{
		BacklogSeconds: s.stats.Backlog.Seconds(), Deferred: s.stats.Deferred, Spare: s.guard().Spare(),
		Promises: p.Made, Deferrals: p.Deferred, Kept: p.Kept, NoShow: p.NoShow, Late: p.Late,
		Early: s.stats.EarlyAdmitted, Broken: s.stats.Broken, KeptRatio: s.stats.KeptShare,
	}
}

// rateStatus writes the defaults of a limit out, those of limiter.New or limiter.NewCapacity.
func rateStatus(c limiter.Config, read func(limiter.Config) (limiter.Limit, error)) RateStatus {
	c.Per = cmp.Or(c.Per, time.Second)
	s := RateStatus{Rate: c.Rate, Per: c.Per.String(), Burst: c.Burst}
	if l, err := read(c); err == nil {
		s.Burst = l.Burst()
	}
	return s
}
