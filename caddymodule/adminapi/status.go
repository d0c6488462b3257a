// Package adminapi is what the admin endpoint /shield/ says, as Go types of its JSON. The handlers
// in caddymodule fill them, and the commands in caddymodule/commands print them.
package adminapi

import (
	"github.com/herdshield/shield"
	"github.com/herdshield/shield/pushback"
	"github.com/herdshield/shield/share"
)

// Status is the state of all shields and zones, in the order in which Caddy provisioned them.
type Status struct {
	Page string `json:"page,omitempty"` // the address where browsers may open the page, if it has one

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
	Line *LineStatus `json:"line,omitempty"`

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

// LineStatus counts the appointments of clients refused at the backend's limit.
type LineStatus struct {
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
	Kind   string  `json:"kind"`             // backlog or periodic
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

// StoreStatus is the store as this process sees it.
type StoreStatus struct {
	Address      string  `json:"address"`
	Prefix       string  `json:"prefix"`
	Up           bool    `json:"up"`            // it answers in time
	ForSeconds   float64 `json:"for_seconds"`   // how long it has, or has not
	AloneSeconds float64 `json:"alone_seconds"` // how long it has not, in all
	RTTSeconds   float64 `json:"rtt_seconds,omitempty"`
	Error        string  `json:"error,omitempty"` // of the last exchange

	Exchanges map[string]uint64 `json:"exchanges"` // by outcome
}

// SharingStatus says how a backend or a zone is shared.
type SharingStatus struct {
	Replicas int          `json:"replicas"`         // that share it
	Alone    bool         `json:"alone"`            // this one does without the store, with its part of the limits
	Unit     string       `json:"unit"`             // how it is defined: replicas share only what they define alike
	Others   []share.Unit `json:"others,omitempty"` // how others define it
}
