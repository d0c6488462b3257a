// Package adminapi is what the admin endpoint /shield/ says, as Go types of its JSON. The handlers
// in caddymodule fill them, and the commands in caddymodule/commands print them.
package adminapi

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/oncall"
	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/redis"
)

// Status is the state of all shields and zones, in the order in which Caddy provisioned them.
type Status struct {
	Page     string `json:"page,omitempty"` // the address where browsers may open the page, if it has one
	ReadOnly bool   `json:"read_only"`      // who asks may change nothing at this address

	Shields []oncall.Situation `json:"shields"`
	Zones   []ZoneStatus       `json:"zones"`

	// Temporary blocks and changes that are active.
	Overrides []Override `json:"overrides,omitempty"`

	// The store that replicas share, if there is one.
	Store *redis.Status `json:"store,omitempty"`
}

// A Watch is the response of GET /shield/live: the Status without its zones, and the seconds of each shield. A
// follower gets one every second.
type Watch struct {
	Boot        string `json:"boot"` // names the process
	Host        string `json:"host"`
	Seq         uint64 `json:"seq"`          // the second of the last samples
	Now         int64  `json:"now"`          // when that was, in milliseconds of Unix time
	MeanSeconds int    `json:"mean_seconds"` // that rates in it are means of

	// Shields are by name. If one is asked for, the others have no Facts and no Samples. Overrides
	// and Who are there if all is asked for, so that one request tells what the page shows.
	Status
	Samples map[string]oncall.Samples `json:"samples"`
	Who     *WhoStatus                `json:"who,omitempty"`
}

// ZoneStatus is the status of one zone.
type ZoneStatus struct {
	Name string `json:"name"`
	Key  string `json:"key"`
	oncall.RateLimit
	MaxKeys int `json:"max_keys"`
	shield.ZoneStats

	// If replicas share it.
	Sharing *share.Sharing `json:"sharing,omitempty"`
}

// An Override is a temporary block or change.
type Override struct {
	ID      string    `json:"id"`
	Kind    string    `json:"kind"`              // block, set or mode
	Shields []string  `json:"shields"`           // where it is in force
	Client  string    `json:"client,omitempty"`  // of a block
	Setting string    `json:"setting,omitempty"` // capacity, concurrency, or a zone and rate
	Value   string    `json:"value,omitempty"`   // as in the config
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until"`
	Left    float64   `json:"left_seconds"`
	By      string    `json:"by"` // who has asked, as far as the admin endpoint knows
}

// Where names the shields the override applies to: four of them, and how many more.
func (o *Override) Where() string {
	names, what := o.Shields, "shields "
	if len(names) == 1 {
		what = "shield "
	}
	if more := len(names) - 4; more > 0 {
		names = append(slices.Clone(names[:4]), fmt.Sprintf("%d more", more))
	}
	return what + cmp.Or(strings.Join(names, ", "), "that are not running")
}

// An OverrideRequest asks for an Override.
type OverrideRequest struct {
	Kind string `json:"kind"`
	ExplainRequest
	Setting string `json:"setting,omitempty"`
	Value   string `json:"value,omitempty"`
	For     string `json:"for"` // 1s to 24h
}

// ForgivenStatus says what was reset for a client.
type ForgivenStatus struct {
	Client  string          `json:"client"`
	Shields []ForgivenByOne `json:"shields"`
}

// ForgivenByOne is that of one shield.
type ForgivenByOne struct {
	Name string `json:"name"`
	shield.Forgiven

	// As in an [ExplanationStatus]. These limits forgive nothing.
	Unknown map[string]string `json:"unknown,omitempty"`
}

// ExplainRequest names a client.
type ExplainRequest struct {
	Shield string `json:"shield,omitempty"` // "" for all that there are
	Client string `json:"client,omitempty"` // or its handle, of GET /shield/who
}

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

	// The answer to a request now: `admit`, `queue` or `reject`. In observe mode `reason` is
	// what an admitted one would be rejected for. A Retry-After of 0 means never.
	Would      string `json:"would"`
	Reason     string `json:"reason,omitempty"`
	Zone       string `json:"zone,omitempty"`
	Status     int    `json:"status,omitempty"`
	RetryAfter int    `json:"retry_after_seconds,omitempty"`
	Class      string `json:"class"`

	// The shield remembers this of the client; appointments for the end of a quota stand with
	// their zone. `standing` is `new`, `early`, `due`,
	// `proven` (it has come when it was told) or `shared_address`, with the time until it is due; below 0, since then.
	Standing string `json:"standing"`
	Promised
	Deferred bool    `json:"deferred,omitempty"` // it has no appointment yet, only a time to ask for one
	Kind     string  `json:"kind,omitempty"`     // how it retries
	Weight   int     `json:"weight,omitempty"`   // permits a request takes, if more than one
	InFlight int     `json:"in_flight"`
	Blocked  float64 `json:"blocked_seconds,omitempty"` // for how long an operator has blocked it

	Zones       []ZoneExplanation  `json:"zones"`
	Capacity    *BucketExplanation `json:"capacity,omitempty"`
	Concurrency *shield.Occupancy  `json:"concurrency,omitempty"`

	// Templates whose value the client's name does not tell, by the zone's name, `appointments`
	// or `in_flight`. Their limits are left out of the response.
	Unknown map[string]string `json:"unknown,omitempty"`
}

// BucketExplanation says what is left of a token bucket.
type BucketExplanation struct {
	Tokens int     `json:"tokens"`
	Burst  int     `json:"burst"`
	Wait   float64 `json:"wait_seconds"` // until it has what one request costs; a client may be told more
}

// ZoneExplanation is the client's bucket in a zone.
type ZoneExplanation struct {
	Name string `json:"name"`
	BucketExplanation

	// What a request takes now, where that varies, and what the tokens are, if not requests. A key in debt has less than 0.
	Cost int    `json:"cost,omitempty"`
	Unit string `json:"unit,omitempty"`

	// The store may have more tokens. The zone counts only requests that it matches.
	Shared  bool `json:"shared,omitempty"`
	Matches bool `json:"matches,omitempty"`

	// The client's appointments for the end of this quota, and the first of them. A further
	// request is told to come after them.
	Promised
}

// Promised is how many appointments a client has, and when the first is due.
type Promised struct {
	Promises int      `json:"appointments,omitempty"`
	Promise  *float64 `json:"appointment_in_seconds,omitempty"`
}

// WhoStatus is the response of `GET /shield/who`: the clients that were rejected most in the last
// minute.
type WhoStatus struct {
	WindowSeconds int       `json:"window_seconds"`
	Masked        bool      `json:"masked"` // addresses lack their last part, or there are no names
	Shields       []WhoList `json:"shields"`
	Zones         []WhoList `json:"zones"`
}

// A WhoList is the part of a shield, or of a zone, whose key tells the clients apart. In observe mode those are meant that would have
// been rejected.
type WhoList struct {
	Name     string           `json:"name"`
	Mode     string           `json:"mode,omitempty"`      // of a shield
	Rejected []RejectedClient `json:"rejected"`            // the one with the most rejections first
	InFlight []BusyClient     `json:"in_flight,omitempty"` // of a shield: the one with the most requests in flight first
}

// BusyClient is a client with requests in flight, as far as they are counted by client.
type BusyClient struct {
	Client   string `json:"client"` // as Shown
	Handle   string `json:"handle"`
	InFlight int    `json:"in_flight"`
}

// RejectedClient is a client that was rejected. The counts are estimates, seldom too high. The handle
// stands for the name in requests to explain, forgive and overrides, even if its name is masked or cut, for
// as long as it is listed.
type RejectedClient struct {
	Client     string  `json:"client"` // as Shown
	Handle     string  `json:"handle,omitempty"`
	LastMinute int     `json:"last_minute"`
	Early      int     `json:"early,omitempty"` // of them, before the time that it was told
	PerSecond  float64 `json:"per_second"`      // since its first rejection, if that was in the last minute
	Reason     string  `json:"reason"`          // of the last rejection
	Class      string  `json:"class"`           // that it was treated as; empty if there are no classes
	Agent      string  `json:"agent"`           // the family of its software by its User-Agent, as it was at most a minute before
	Path       string  `json:"path"`            // the method and first path element of a request then, as Shown: "GET /items/…"
}

// Shown returns a text that may come from a client for people to read. A text with
// characters that cannot be seen, or that change how others are seen, is quoted as in Go.
func Shown(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return text
	}
	return strconv.Quote(text)
}

// HashPrefix begins a handle.
const HashPrefix = "hash:"

// Anonymous returns what is shown of a client with a handle in place of its name: the beginning of that.
func Anonymous(handle string) string { return handle[:min(len(handle), len(HashPrefix)+8)] }
