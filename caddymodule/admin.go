package caddymodule

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/caddymodule/commands"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

func init() {
	caddy.RegisterModule(new(Admin))
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "shield",
		Usage: "<command>",
		Short: "Shows what the shields of a running instance do, and changes it for a while",
		CobraFunc: func(cmd *cobra.Command) {
			cmd.DisableFlagsInUseLine = true
			cmd.Args = commands.NoSuchCommand
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			commands.Add(cmd)
		},
	})
}

// Admin is the admin endpoints: `GET /shield/` is a Status of the running config, or for browsers
// a page that shows what happens, `GET /shield/live` is a Watch, and `GET /shield/who` names clients.
type Admin struct{}

// CaddyModule implements caddy.Module.
func (*Admin) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "admin.api.shield", New: func() caddy.Module { return new(Admin) }}
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
	status := adminapi.Status{Shields: []adminapi.ShieldStatus{}, Zones: []adminapi.ZoneStatus{}}
	app, err := runningApp()
	if err != nil {
		return err
	}
	if app != nil {
		app.fill(&status)
		status.Page = app.Page
		if !mayChange(r) {
			anonymise(status.Overrides)
		}
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

func (a *App) fill(status *adminapi.Status) {
	now, all, store := shield.Now(), a.roster(), a.storeReading()
	for _, s := range all.shields {
		one := s.reading(now).status()
		one.Sharing = s.sharingStatus(now, store)
		status.Shields = append(status.Shields, one)
	}
	for _, z := range all.zones {
		status.Zones = append(status.Zones, adminapi.ZoneStatus{
			Name: z.record.shown, Key: z.key, RateStatus: rateStatus(z.config().Limit, limiter.New), MaxKeys: z.maxKeys(), ZoneStats: z.record.Stats(now), Sharing: z.sharingStatus(store),
		})
	}
	status.Store = store.status()
	status.Overrides, _ = changes.read(now)
}

func (s *shieldReading) status() adminapi.ShieldStatus {
	out := adminapi.ShieldStatus{
		Name: s.name, Mode: modeEnforce,
		InFlight: s.stats.InFlight, Overloaded: s.record.overloaded(),
		Admitted: s.stats.Admitted, Refused: map[string]uint64{}, Observed: map[string]uint64{},
		Held: s.stats.Held, ToldNever: s.stats.RetryAfter[0],
		PausedSeconds: s.stats.Paused.Seconds(), Pauses: s.stats.Pauses, Failures: s.stats.Failed,
		Clients: map[string]int{}, MaxClients: s.stats.MaxClients, Families: s.known().Families(),
		Search: s.searchStatus(), Line: s.lineStatus(),
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
		q := s.stats.Queue
		out.Queue = &adminapi.QueueStatus{Length: q.Length, Size: size, Admitted: q.Granted, Timeout: q.Expired, Dropped: q.Dropped, Gone: q.Gone, WaitSeconds: q.Waited.Seconds()}
	}
	if s.config().Classes != nil {
		out.Classes = s.guard().ClassStats()
	}
	for class, n := range s.record.Clients() {
		if n > 0 {
			out.Clients[pushback.Class(class).String()] = n
		}
	}
	if h := s.stats.Herd; s.guard().DetectsHerds() && h.Kind != pushback.NoHerd {
		out.Herd = &adminapi.HerdStatus{Kind: h.Kind.String(), Size: h.Size, Period: h.Period.Seconds(), Phase: h.Phase.Seconds()}
	}
	if s.guard().Tickets() {
		out.Tickets = &adminapi.TicketStatus{Honoured: s.stats.Redeemed, Worthless: s.stats.Worthless}
	}
	return out
}

func (s *shieldReading) searchStatus() *adminapi.SearchStatus {
	if !s.adaptive() {
		return nil
	}
	out := &adminapi.SearchStatus{By: "adaptive", Ghosts: s.stats.Orphans}
	if target := s.config().Adaptive.Target; target > 0 {
		out.By, out.TargetSeconds = "slo", target.Seconds()
	}
	if c := s.stats.Last; c.At > 0 {
		out.Last = &adminapi.ChangeStatus{
			SecondsAgo: (s.now - c.At).Seconds(), Reason: c.Reason.String(), From: c.From, To: c.To,
			LatencySeconds: c.Latency.Seconds(), BaselineSeconds: c.Baseline.Seconds(),
		}
	}
	return out
}

func (s *shieldReading) lineStatus() *adminapi.LineStatus {
	if !s.limited() {
		return nil
	}
	p := s.stats.Promises
	return &adminapi.LineStatus{
		BacklogSeconds: s.stats.Backlog.Seconds(), Deferred: s.stats.Deferred, Spare: s.guard().Spare(),
		Promises: p.Made, Deferrals: p.Deferred, Kept: p.Kept, NoShow: p.NoShow, Late: p.Late,
		Early: s.stats.EarlyAdmitted, Broken: s.stats.Broken, KeptRatio: s.stats.KeptShare,
	}
}

// rateStatus writes the defaults of a limit out, those of limiter.New or limiter.NewCapacity.
func rateStatus(c limiter.Config, read func(limiter.Config) (limiter.Limit, error)) adminapi.RateStatus {
	c.Per = cmp.Or(c.Per, time.Second)
	s := adminapi.RateStatus{Rate: c.Rate, Per: c.Per.String(), Burst: c.Burst}
	if l, err := read(c); err == nil {
		s.Burst = l.Burst()
	}
	return s
}
