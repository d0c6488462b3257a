package adminapi

import "github.com/herdshield/shield/oncall"

// Watch is the answer of the admin endpoint `GET /shield/live`: what all shields do now, and
// their last ten minutes.
type Watch struct {
	Boot        string        `json:"boot"` // names the process
	Host        string        `json:"host"`
	Seq         uint64        `json:"seq"`          // the second of the last samples
	Now         int64         `json:"now"`          // when that was, in milliseconds of Unix time
	MeanSeconds int           `json:"mean_seconds"` // that rates in it are means of
	Shields     []ShieldWatch `json:"shields"`      // by name
	Store       *StoreWatch   `json:"store,omitempty"`

	// Panels are the other endpoints that there are, as who is for GET /shield/who.
	Panels []string `json:"panels"`

	// Other endpoints say the same; here it is if all is asked for, so that one request tells what
	// the page shows.
	Who       *WhoStatus       `json:"who,omitempty"`
	Overrides *OverridesStatus `json:"overrides,omitempty"`
	ETag      string           `json:"etag,omitempty"` // of the overrides
}

// ShieldWatch is a shield in a Watch. Those that were not asked for have the first four
// fields only.
type ShieldWatch struct {
	Name  string       `json:"name"`
	Mode  string       `json:"mode"`
	Level oncall.Level `json:"level"`
	Says  string       `json:"says"` // one sentence

	*ShieldDetails
}

// ShieldDetails is what a Watch says of a shield that was asked for. Rates are per second.
type ShieldDetails struct {
	Capacity  *RateStatus   `json:"capacity,omitempty"`
	Limit     string        `json:"limit,omitempty"` // in flight: fixed, adaptive or slo
	QueueSize int           `json:"queue_size,omitempty"`
	Classes   []ClassWatch  `json:"classes,omitempty"`
	Lately    LatelyWatch   `json:"lately"`
	Waiting   *WaitingWatch `json:"waiting,omitempty"` // refused clients that are to come back
	Paused    float64       `json:"paused_seconds,omitempty"`
	Herd      *HerdStatus   `json:"herd,omitempty"`
	Replicas  int           `json:"replicas,omitempty"`
	Alone     bool          `json:"alone,omitempty"` // this replica does without the store

	Samples oncall.Samples `json:"samples"`
}

// ClassWatch is a class of requests, the highest first.
type ClassWatch struct {
	Name  string  `json:"name"`
	Share float64 `json:"share"` // of the limit in flight, while higher classes need the rest
}

// LatelyWatch has means per second.
type LatelyWatch struct {
	Arrivals float64            `json:"arrivals"`
	Admitted float64            `json:"admitted"`
	Refused  map[string]float64 `json:"refused,omitempty"`  // by reason
	Observed map[string]float64 `json:"observed,omitempty"` // by reason
	Kept     float64            `json:"kept"`
	NoShow   float64            `json:"no_show"`
	Broken   float64            `json:"broken"`
}

// WaitingWatch is the backlog.
type WaitingWatch struct {
	Clients float64 `json:"clients"`      // with an appointment, once for each, and about how many deferred
	Over    float64 `json:"over_seconds"` // until the last of them has come back; -1: that cannot be told
}

// StoreWatch is the store that replicas share.
type StoreWatch struct {
	Address string  `json:"address"`
	Up      bool    `json:"up"`
	For     float64 `json:"for_seconds"`
	Error   string  `json:"error,omitempty"`
}
