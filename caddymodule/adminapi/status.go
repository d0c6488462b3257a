// Package adminapi is what the admin endpoint /shield/ says, as Go types of its JSON. The handlers
// in caddymodule fill them, and the commands in caddymodule/commands print them.
package adminapi

import (
	"github.com/herdshield/shield"
	"github.com/herdshield/shield/oncall"
)

// Status is the state of all shields and zones, in the order in which Caddy provisioned them.
type Status struct {
	Page     string `json:"page,omitempty"` // the address where browsers may open the page, if it has one
	ReadOnly bool   `json:"read_only"`      // who asks may change nothing at this address

	Shields []oncall.Situation `json:"shields"`
	Zones   []ZoneStatus       `json:"zones"`

	// Operators' changes that are in force for a while.
	Overrides []Override `json:"overrides,omitempty"`

	// The store that replicas share, if there is one.
	Store *StoreStatus `json:"store,omitempty"`
}

// A Watch is what GET /shield/live answers: the Status without its zones, and the seconds of each shield.
// A follower gets one in each second.
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
	Sharing *oncall.Sharing `json:"sharing,omitempty"`
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
