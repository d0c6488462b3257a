package caddymodule

import (
	"math"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/pushback"
)

// Explain implements operate.Shields.
func (a *App) Explain(ask adminapi.ExplainRequest, named bool) (adminapi.ExplainStatus, error) {
	handlers, c, err := a.concerned(ask)
	if c.handle != "" && !named {
		c.shown = adminapi.Anonymous(c.handle) // as who has it
	}
	status := adminapi.ExplainStatus{Client: c.shown}
	for _, h := range handlers {
		status.Shields = append(status.Shields, h.explain(shield.Now(), c))
	}
	return status, err
}

func (h *Handler) explain(now time.Duration, c clientName) adminapi.ExplanationStatus {
	q, unknown := h.asks(c)
	e := h.guard().Explain(now, q)
	out := adminapi.ExplanationStatus{
		Name: h.Name, Mode: h.force.Load().mode(), Would: "reject", Status: e.Status, Class: e.Class, RetryAfter: int(e.RetryAfter / time.Second),
		Standing: standing(now, &e), Promised: promised(now, &e.Client), Deferred: e.Client.Deferred,
		InFlight: e.InFlight, Blocked: tenths(e.Blocked), Zones: []adminapi.ZoneExplanation{}, Unknown: unknown,
	}
	if e.Weight > 1 {
		out.Weight = e.Weight
	}
	switch {
	case e.Queued:
		out.Would = "queue"
	case e.Admit:
		out.Would = "admit"
	}
	if e.Reason != shield.None {
		out.Reason = e.Reason.String()
	}
	if e.Zone >= 0 {
		out.Zone = h.zones[e.Zone].name
	}
	if out.Standing != "new" {
		out.Kind = e.Client.Kind.String()
	}
	for i, z := range e.Zones {
		if z.Counted {
			out.Zones = append(out.Zones, adminapi.ZoneExplanation{
				Name: h.zones[i].name, BucketExplanation: bucketStatus(z.BucketExplanation), Cost: z.Cost, Unit: h.force.Load().config.Zones[i].Unit, Shared: z.Shared, Matches: len(h.zones[i].matchers) > 0,
				Promised: promised(now, &z.Client),
			})
		}
	}
	if e.Capacity.Burst > 0 {
		out.Capacity = new(bucketStatus(e.Capacity))
	}
	if e.Occupancy.Limit > 0 {
		out.Concurrency = &e.Occupancy
	}
	return out
}

func promised(now time.Duration, c *pushback.Client) (p adminapi.Promised) {
	if p.Promises = c.Promises; p.Promises > 0 {
		p.Promise = new(tenths(c.Due - now))
	}
	return p
}

// standing is how a client compares with what it was promised.
func standing(now time.Duration, e *shield.Explanation) string {
	switch c := &e.Client; {
	case c.Shared:
		return "shared_address"
	case c.Promises > 0 && now < c.Due:
		return "early"
	case c.Promises > 0:
		return "due"
	case c.Proven:
		return "proven"
	}
	return "new"
}

func bucketStatus(b shield.BucketExplanation) adminapi.BucketExplanation {
	return adminapi.BucketExplanation{Tokens: b.Tokens, Burst: b.Burst, Wait: tenths(b.Wait)}
}

// tenths returns seconds, rounded up to tenths: a client that waits for less is too early.
func tenths(d time.Duration) float64 { return math.Ceil(d.Seconds()*10) / 10 }
