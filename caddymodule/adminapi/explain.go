package adminapi

// ExplainRequest asks for it. A client is told by its name or by its handle; without a shield all are asked.
type ExplainRequest struct {
	Shield string `json:"shield,omitempty"`
	Client string `json:"client,omitempty"`
	Handle string `json:"handle,omitempty"`
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
	Standing string   `json:"standing"`
	Promises int      `json:"appointments,omitempty"`
	Promise  *float64 `json:"appointment_in_seconds,omitempty"`
	Deferred bool     `json:"deferred,omitempty"` // it has no appointment yet, only a time to ask for one
	Kind     string   `json:"kind,omitempty"`     // how it retries
	InFlight int      `json:"in_flight"`
	Blocked  float64  `json:"blocked_seconds,omitempty"` // for how long an operator has blocked it

	Zones       []ZoneExplanation    `json:"zones"`
	Capacity    *BucketExplanation   `json:"capacity,omitempty"`
	Concurrency *ConcurrencyOccupied `json:"concurrency,omitempty"`

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

	// The store may have more tokens. The zone counts only requests that it matches.
	Shared  bool `json:"shared,omitempty"`
	Matches bool `json:"matches,omitempty"`

	// The client's appointments for the end of this quota, and the first of them. A further
	// request is told to come after them.
	Promises int      `json:"appointments,omitempty"`
	Promise  *float64 `json:"appointment_in_seconds,omitempty"`
}

// ConcurrencyOccupied says how much is in flight of how much, and how much waits.
type ConcurrencyOccupied struct {
	InFlight  int `json:"in_flight"`
	Limit     int `json:"limit"`
	Waiting   int `json:"waiting"`
	QueueSize int `json:"queue_size"`
}
