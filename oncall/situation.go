package oncall

import (
	"github.com/herdshield/shield"
	"github.com/herdshield/shield/pushback"
	"github.com/herdshield/shield/share"
)

// A Situation is what there is to say of a shield at one moment. The status, the page and the History of a shield are made of it, and of nothing else.
type Situation struct {
	Name  string `json:"name"`
	Mode  string `json:"mode"` // enforce, or observe: requests are admitted that would be rejected
	Level Level  `json:"level,omitempty"`
	Says  string `json:"says,omitempty"` // in one sentence; "" for a shield without a History

	*Facts // nil: only the above is asked for
}

// Facts are the figures of a Situation.
type Facts struct {
	Capacity    *RateLimit        `json:"capacity,omitempty"`
	Concurrency int               `json:"concurrency,omitempty"` // the limit now
	InFlight    int               `json:"in_flight"`
	Overloaded  bool              `json:"overloaded"`
	Admitted    uint64            `json:"admitted"`
	Rejected    map[string]uint64 `json:"rejected"` // by reason
	Observed    map[string]uint64 `json:"observed"` // by reason
	Held        int               `json:"held"`     // rejections that are held now
	ToldNever   uint64            `json:"told_never"`

	// Rejections that the listener wrapper shield has answered, by protocol, if there are any.
	FastReject map[string]uint64 `json:"fast_reject,omitempty"`

	// For a limit in flight that is adaptive or has a target.
	Search *Search `json:"search,omitempty"`

	// For a queue and for classes, the highest class first.
	Queue   *Queue              `json:"queue,omitempty"`
	Classes []shield.ClassStats `json:"classes,omitempty"`

	// How long the pause lasts that the backend has asked for, and how many there have
	// been. Requests that it rejected or that did not reach it.
	PausedSeconds float64 `json:"paused_seconds,omitempty"`
	Pauses        uint64  `json:"pauses,omitempty"`
	Failures      uint64  `json:"failures,omitempty"`

	// The appointments of rejected clients, for a backend with a limit.
	Line *Line `json:"line,omitempty"`

	// Remembered clients by how they retry, and how many can be remembered; and the
	// returns of clients by their software.
	Clients    map[string]int                  `json:"clients"`
	MaxClients int                             `json:"max_clients"`
	Families   map[string]pushback.FamilyStats `json:"families,omitempty"`

	// The present herd, if any.
	Herd *Herd `json:"herd,omitempty"`

	// With tickets on: those that clients have brought, by what became of them.
	Tickets map[string]uint64 `json:"tickets,omitempty"`

	// If replicas share it.
	Sharing *share.Sharing `json:"sharing,omitempty"`

	// The last seconds, of a shield with a History, and the rejected clients that are to come back.
	Lately  *Lately  `json:"lately,omitempty"`
	Waiting *Waiting `json:"waiting,omitempty"`

	// What an operator can set, with the present values.
	Settings []Setting `json:"settings,omitempty"`
}

// A RateLimit is a limit of so many requests, or units, per time.
type RateLimit struct {
	Rate  float64 `json:"rate"`
	Per   string  `json:"per"` // as time.Duration writes it
	Burst int     `json:"burst"`
	Unit  string  `json:"unit,omitempty"` // "": requests
}

// A Search is how a limit in flight is found.
type Search struct {
	By            string  `json:"by"`                       // adaptive or slo
	TargetSeconds float64 `json:"target_seconds,omitempty"` // of slo
	Disconnected  int     `json:"disconnected,omitempty"`   // requests of disconnected clients, which still count as in flight
	Last          *Change `json:"last_change,omitempty"`
}

// A Change is one of the limit in flight.
type Change struct {
	SecondsAgo      float64 `json:"seconds_ago"`
	Reason          string  `json:"reason"`
	From            int     `json:"from"`
	To              int     `json:"to"`
	LatencySeconds  float64 `json:"latency_seconds"`            // mean, of the requests that caused the change
	BaselineSeconds float64 `json:"baseline_seconds,omitempty"` // the same without queueing in the backend
}

// A Queue is the requests that wait for a permit in flight, and how those before have left.
type Queue struct {
	Length      int     `json:"length"`
	Size        int     `json:"size"`
	Admitted    uint64  `json:"admitted"`
	Timeout     uint64  `json:"timeout"`
	Dropped     uint64  `json:"dropped"` // for one of a higher class
	Gone        uint64  `json:"gone"`    // the client
	WaitSeconds float64 `json:"wait_seconds"`
}

// A Line is the appointments of a backend.
type Line struct {
	BacklogSeconds float64 `json:"backlog_seconds"`       // time until the last appointment
	Deferred       int     `json:"deferred"`              // clients that wait for an appointment
	Promised       int     `json:"expected"`              // appointments whose clients may still come
	FewClients     int     `json:"few_clients,omitempty"` // rejected in the last minute, if they are too few for a herd; 0: not known
	Spare          float64 `json:"spare_per_second"`      // rejected clients that the backend can serve
	Promises       uint64  `json:"appointments"`
	Deferrals      uint64  `json:"deferrals"` // times that clients were told to come back for an appointment

	Kept   uint64 `json:"kept"`
	NoShow uint64 `json:"no_show"` // the client did not come in time
	Late   uint64 `json:"late"`    // it came after that; counted as no-show, too
	Early  uint64 `json:"early"`   // it was admitted before
	Broken uint64 `json:"broken"`  // it came in time and was rejected

	// KeptRatio is the share of appointments for which clients are expected to come: see the
	// metric caddy_shield_kept_ratio.
	KeptRatio float64 `json:"kept_ratio"`
}

// A Herd is clients that come at once, or again and again together.
type Herd struct {
	Kind   string  `json:"kind"`             // backlog or periodic
	Size   float64 `json:"size"`             // clients of a backlog; requests in one pulse of the others
	Period float64 `json:"period,omitempty"` // seconds
	Phase  float64 `json:"phase,omitempty"`  // seconds within the period, since the detector began
}

// Lately is the mean of the last seconds, per second.
type Lately struct {
	Arrivals float64            `json:"arrivals"`
	Admitted float64            `json:"admitted"`
	Rejected map[string]float64 `json:"rejected,omitempty"` // by reason
	Observed map[string]float64 `json:"observed,omitempty"` // by reason
	Kept     float64            `json:"kept"`
	NoShow   float64            `json:"no_show"`
	Broken   float64            `json:"broken"`
}

// Waiting is the rejected clients that are to come back.
type Waiting struct {
	Clients float64 `json:"clients"`      // with an appointment, once for each, and about how many deferred
	Over    float64 `json:"over_seconds"` // until the last of them has come back; -1: that cannot be told
}

// A Setting is what an operator can set for a while, with its present value as the config writes it.
type Setting struct {
	Setting string `json:"setting"`
	Value   string `json:"value"`
}

// Observes reports whether requests are admitted that would be rejected.
func (s *Situation) Observes() bool { return s.Mode == "observe" }

// Rejecting returns the rejections of the last seconds by reason, or in observe mode what they would be.
func (s *Situation) Rejecting() map[string]float64 {
	switch {
	case s.Facts == nil || s.Lately == nil:
		return nil
	case s.Observes():
		return s.Lately.Observed
	}
	return s.Lately.Rejected
}

// wait returns how many rejected clients are still to come back, and how long that will take; nil if
// none is, though all may have come before the time of the last appointment. One with several
// appointments counts for each.
func (f *Facts) wait() *Waiting {
	l := f.Line
	if l == nil || !(&pushback.LineStats{Backlog: seconds(l.BacklogSeconds), Waiting: l.Promised, Deferred: l.Deferred}).Open() {
		return nil
	}
	w := &Waiting{Clients: float64(l.Deferred + l.Promised), Over: l.BacklogSeconds}
	switch {
	case l.Deferred > 0 && l.Spare <= 0:
		w.Over = -1
	case l.Deferred > 0:
		w.Over += float64(l.Deferred) / l.Spare
	}
	return w
}
