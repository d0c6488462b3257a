package caddymodule

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield"
)

// ExplainStatus says what the limits say of one client: the answer to `GET /shield/explain`.
type ExplainStatus struct {
	Client  string              `json:"client"`
	Shields []ExplanationStatus `json:"shields"`
}

// ExplanationStatus says so for one shield. A request of the default class is assumed, which
// all zones count whose key is known.
type ExplanationStatus struct {
	Name string `json:"name"`
	Mode string `json:"mode"`

	// The answer to a request now: `admit`, `queue` or `refuse`. In observe mode `reason` is
	// what an admitted one would be refused for. A Retry-After of 0 means never.
	Would      string `json:"would"`
	Reason     string `json:"reason,omitempty"`
	Zone       string `json:"zone,omitempty"`
	Status     int    `json:"status,omitempty"`
	RetryAfter int    `json:"retry_after_seconds,omitempty"`
	Class      string `json:"class"`

	// The shield remembers this of the client. `standing` is `stranger`, `early`, `due`,
	// `proven` (it has come when it was told) or `crowd`, with the time until it is due; below 0, since then.
	Standing string   `json:"standing"`
	Promises int      `json:"promises,omitempty"`
	Promise  *float64 `json:"promise_in_seconds,omitempty"`
	Deferred bool     `json:"deferred,omitempty"` // the promise is to be told a time
	Strikes  int      `json:"strikes"`
	Kind     string   `json:"kind,omitempty"` // how it retries
	InFlight int      `json:"in_flight"`
	Blocked  float64  `json:"blocked_seconds,omitempty"` // for how long an operator has blocked it

	Zones       []ZoneExplanation    `json:"zones"`
	Capacity    *BucketExplanation   `json:"capacity,omitempty"`
	Concurrency *ConcurrencyOccupied `json:"concurrency,omitempty"`

	// Templates whose value the client's name does not tell, by the zone's name, `appointments`
	// or `in_flight`. Their limits are left out of the answer.
	Unknown map[string]string `json:"unknown,omitempty"`
}

// BucketExplanation says what is left of a token bucket.
type BucketExplanation struct {
	Tokens int     `json:"tokens"`
	Burst  int     `json:"burst"`
	Wait   float64 `json:"wait_seconds"` // until a request has what it costs
}

// ZoneExplanation is the client's bucket in a zone.
type ZoneExplanation struct {
	Name string `json:"name"`
	BucketExplanation

	// The store may have more tokens. The zone counts only requests that it matches.
	Shared  bool `json:"shared,omitempty"`
	Matches bool `json:"matches,omitempty"`
}

// ConcurrencyOccupied says how much is in flight of how much, and how much waits.
type ConcurrencyOccupied struct {
	InFlight  int `json:"in_flight"`
	Limit     int `json:"limit"`
	Waiting   int `json:"waiting"`
	QueueSize int `json:"queue_size"`
}

// badRequest is an error of the person who asks.
func badRequest(status int, format string, args ...any) error {
	return caddy.APIError{HTTPStatus: status, Err: fmt.Errorf(format, args...)}
}

// maxClientName is how long the name of a client may be. Ours: longer than keys of APIs are.
const maxClientName = 1024

// concerned returns the handlers of one shield, or of all if the name is "", and the client, which
// is told by its name or by its handle.
func concerned(name, client, handle string) (handlers []*Handler, c clientName, err error) {
	app, err := runningApp()
	if err != nil {
		return nil, c, err
	}
	if handlers, err = app.named(name); err != nil {
		return nil, c, err
	}
	if c, err = app.client(client, handle); err == nil && c.text == "" {
		err = badRequest(http.StatusBadRequest, "client is missing; want an address, or what the shield tells clients apart by")
	}
	return handlers, c, err
}

// client reads the name of a client, or finds it by its handle. Without both the name is "".
func (a *App) client(name, handle string) (clientName, error) {
	switch {
	case handle != "" && name != "":
		return clientName{}, badRequest(http.StatusBadRequest, "client and handle are both set; want one of them")
	case handle != "":
		return a.listed(handle)
	case len(name) > maxClientName:
		return clientName{}, badRequest(http.StatusBadRequest, "client is %.64q; want an address, or what the shield tells clients apart by, of at most %d bytes", name, maxClientName)
	}
	return readClient(name), nil
}

// named returns the handlers of one shield, or of all if the name is "". The App may be nil.
func (a *App) named(name string) (handlers []*Handler, err error) {
	var names []string
	if a != nil {
		for _, h := range a.roster().handlers {
			if name == "" || h.Name == name {
				handlers = append(handlers, h)
			}
			names = append(names, h.Name)
		}
	}
	slices.Sort(names)
	if len(handlers) == 0 {
		if name == "" {
			return nil, badRequest(http.StatusNotFound, "the running config has no shield")
		}
		return nil, badRequest(http.StatusNotFound, "shield is %q; want one of %q", name, slices.Compact(names))
	}
	return handlers, nil
}

func serveExplain(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet {
		return badRequest(http.StatusMethodNotAllowed, "method is %s; want GET", r.Method)
	}
	query := r.URL.Query()
	handlers, c, err := concerned(query.Get("shield"), query.Get("client"), query.Get("handle"))
	if err != nil {
		return err
	}
	now := shield.Now()
	status := ExplainStatus{Client: c.shown}
	for _, h := range handlers {
		status.Shields = append(status.Shields, h.explain(now, c))
	}
	return writeJSON(w, http.StatusOK, status)
}

// writeJSON writes an answer that is about this moment.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	return json.NewEncoder(w).Encode(v)
}

func (h *Handler) explain(now time.Duration, c clientName) ExplanationStatus {
	q, unknown := h.asks(c)
	e := h.guard().Explain(now, q)
	out := ExplanationStatus{
		Name: h.Name, Mode: modeEnforce, Would: "refuse", Status: e.Status, Class: e.Class, RetryAfter: int(e.RetryAfter / time.Second),
		Standing: standing(now, &e), Promises: e.Client.Promises, Deferred: e.Client.Deferred, Strikes: e.Client.Strikes,
		InFlight: e.InFlight, Blocked: tenths(e.Blocked), Zones: []ZoneExplanation{}, Unknown: unknown,
	}
	if h.observing() {
		out.Mode = modeObserve
	}
	switch {
	case e.Queued:
		out.Would = "queue"
	case e.Admit:
		out.Would = "admit"
	}
	if e.Reason != shield.None && !e.Queued {
		out.Reason = e.Reason.String()
	}
	if e.Zone >= 0 {
		out.Zone = h.zones[e.Zone].name
	}
	if out.Standing != "stranger" {
		out.Kind = e.Client.Kind.String()
	}
	if e.Client.Promises > 0 {
		out.Promise = new(tenths(e.Client.Due - now))
	}
	for i, z := range e.Zones {
		if z.Counted {
			out.Zones = append(out.Zones, ZoneExplanation{h.zones[i].name, bucketStatus(z.BucketExplanation), z.Shared, len(h.zones[i].matchers) > 0})
		}
	}
	if e.Capacity.Burst > 0 {
		out.Capacity = new(bucketStatus(e.Capacity))
	}
	if o := e.Occupancy; o.Limit > 0 {
		out.Concurrency = &ConcurrencyOccupied{o.InFlight, o.Limit, o.Waiting, o.QueueSize}
	}
	return out
}

// standing is how a client compares with what it was promised.
func standing(now time.Duration, e *shield.Explanation) string {
	switch c := &e.Client; {
	case c.Crowd:
		return "crowd"
	case c.Promises > 0 && now < c.Due:
		return "early"
	case c.Promises > 0:
		return "due"
	case c.Proven:
		return "proven"
	}
	return "stranger"
}

func bucketStatus(b shield.BucketExplanation) BucketExplanation {
	return BucketExplanation{b.Tokens, b.Burst, tenths(b.Wait)}
}

// tenths returns seconds, rounded up to tenths: a client that waits for less is too early.
func tenths(d time.Duration) float64 { return math.Ceil(d.Seconds()*10) / 10 }
