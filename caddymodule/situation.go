package caddymodule

import (
	"cmp"
	"slices"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/oncall"
	"github.com/herdshield/shield/pushback"
	"github.com/herdshield/shield/share/redis"
)

// meanSeconds is how many seconds present rates are means of. Ours: less trembles, and more
// is late.
const meanSeconds = 10

// Status implements operate.Shields: it returns the state of all shields and zones.
func (a *App) Status(named bool) adminapi.Status {
	status := adminapi.Status{ReadOnly: !named, Shields: []oncall.Situation{}, Zones: []adminapi.ZoneStatus{}}
	now, stored := shield.Now(), a.shares.Read()
	shields, zones := a.roster()
	for _, s := range shields {
		status.Shields = append(status.Shields, s.reading(now).situation(stored))
	}
	for _, z := range zones {
		limit := rateStatus(z.config().Limit, limiter.New)
		limit.Unit = z.config().Unit
		status.Zones = append(status.Zones, adminapi.ZoneStatus{
			Name: z.record.shown, Key: z.keyer.template, RateLimit: *limit, MaxKeys: z.maxKeys(), ZoneStats: z.record.Stats(now), Sharing: stored.Sharing(redis.Zone, z.record.shown),
		})
	}
	status.Page, status.Store, status.Overrides = a.Page, stored, a.overrides(now, named)
	return status
}

// Watch implements operate.Shields.
func (a *App) Watch(shieldName string, since uint64, all, named bool) (adminapi.Watch, error) {
	now, stored := shield.Now(), a.shares.Read()
	out := adminapi.Watch{MeanSeconds: meanSeconds, Samples: map[string]oncall.Samples{}}
	out.Shields, out.ReadOnly = []oncall.Situation{}, !named
	if shieldName != "" {
		if _, err := a.named(shieldName); err != nil {
			return out, err
		}
	}
	shields, _ := a.roster()
	for _, s := range shields {
		if s.live {
			continue
		}
		sit := s.reading(now).situation(stored)
		if shieldName == "" || shieldName == s.Name {
			out.Samples[s.Name] = s.record.history.Since(since)
		} else {
			sit.Facts = nil
		}
		out.Shields = append(out.Shields, sit)
	}
	slices.SortFunc(out.Shields, func(a, b oncall.Situation) int { return cmp.Compare(a.Name, b.Name) })
	out.Store = stored
	if all {
		who, _ := a.Who(shieldName, 12, named) // for more there is GET /shield/who
		out.Who, out.Overrides = &who, a.overrides(now, named)
	}
	return out, nil
}

// Stopped implements operate.Shields.
func (a *App) Stopped() <-chan struct{} { return a.stop }

// situation returns all that there is to say of the shield. The store may be nil: then it does not say how
// replicas share the shield.
func (s *shieldReading) situation(of *redis.Status) oncall.Situation {
	sit := oncall.Situation{Name: s.Name, Mode: s.is.mode(), Facts: s.facts(of)}
	if !s.live {
		sit.Lately = s.record.history.Lately(meanSeconds)
		sit.Say()
	}
	return sit
}

func (s *shieldReading) facts(of *redis.Status) *oncall.Facts {
	out := &oncall.Facts{
		InFlight: s.Stats.InFlight, Overloaded: s.record.inOverload(s.now),
		Admitted: s.Stats.Admitted, Rejected: map[string]uint64{}, Observed: map[string]uint64{},
		Held: s.Stats.Held, ToldNever: s.Stats.RetryAfter[0],
		PausedSeconds: s.Stats.Paused.Seconds(), Pauses: s.Stats.Pauses, Failures: s.Stats.Failed,
		Clients: map[string]int{}, MaxClients: s.Stats.MaxClients, Families: s.Families(),
		Settings: s.settings(), Sharing: of.Sharing(redis.Backend, s.Name),
	}
	if door := s.record.door(); door["h1"]+door["h2"] > 0 {
		out.FastReject = door
	}
	if s.is.config.Capacity.Rate > 0 {
		out.Capacity = rateStatus(s.is.config.Capacity, limiter.NewCapacity)
	}
	if s.Concurrent {
		out.Concurrency = s.Guard.Limit()
	}
	for _, reason := range shield.Reasons {
		out.Rejected[reason.String()], out.Observed[reason.String()] = s.Stats.Rejected[reason], s.Stats.Observed[reason]
	}
	if size := s.Guard.Plan().Queue.Size; size > 0 {
		q := s.Stats.Queue
		out.Queue = &oncall.Queue{Length: q.Length, Size: size, Admitted: q.Granted, Timeout: q.Expired, Dropped: q.Dropped, Gone: q.Gone, WaitSeconds: q.Waited.Seconds()}
	}
	if s.is.config.Classes != nil {
		out.Classes = s.Guard.ClassStats()
	}
	for class, n := range s.record.Clients() {
		if n > 0 {
			out.Clients[pushback.Class(class).String()] = n
		}
	}
	if h := s.Stats.Herd; h.Kind != pushback.NoHerd {
		out.Herd = &oncall.Herd{Kind: h.Kind.String(), Size: h.Size, Period: h.Period.Seconds(), Phase: h.Phase.Seconds()}
	}
	if adaptive := s.is.config.Adaptive; adaptive != nil {
		out.Search = &oncall.Search{By: "adaptive", Disconnected: s.Stats.Disconnected}
		if adaptive.Target > 0 {
			out.Search.By, out.Search.TargetSeconds = "slo", adaptive.Target.Seconds()
		}
		if c := s.Stats.Last; c.At > 0 {
			out.Search.Last = &oncall.Change{
				SecondsAgo: (s.now - c.At).Seconds(), Reason: c.Reason.String(), From: c.From, To: c.To,
				LatencySeconds: c.Latency.Seconds(), BaselineSeconds: c.Baseline.Seconds(),
			}
		}
	}
	if s.Limited {
		p := s.Stats.Promises
		out.Line = &oncall.Line{
			BacklogSeconds: s.Stats.Backlog.Seconds(), Deferred: s.Stats.Deferred, Promised: s.Stats.Waiting, Spare: s.Guard.Spare(),
			Promises: p.Made, Deferrals: p.Deferred, Kept: p.Kept, NoShow: p.NoShow, Late: p.Late,
			Early: s.Stats.EarlyAdmitted, Broken: s.Stats.Broken, KeptRatio: s.Stats.KeptShare,
		}
		if s.Stats.Herd.Clients < pushback.HerdClients {
			out.Line.FewClients = s.Stats.Herd.Clients
		}
	}
	if s.Guard.Tickets() {
		out.Tickets = map[string]uint64{"honored": s.Stats.Redeemed, "worthless": s.Stats.Worthless}
	}
	return out
}

// rateStatus writes the defaults of a limit out, those of limiter.New or limiter.NewCapacity.
func rateStatus(c limiter.Config, read func(limiter.Config) (limiter.Limit, error)) *oncall.RateLimit {
	c.Per = cmp.Or(c.Per, time.Second)
	s := &oncall.RateLimit{Rate: c.Rate, Per: c.Per.String(), Burst: c.Burst}
	if l, err := read(c); err == nil {
		s.Burst = l.Burst()
	}
	return s
}
