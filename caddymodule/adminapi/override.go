package adminapi

import (
	"fmt"
	"strings"
	"time"
)

// An Override is what an operator has changed for a while.
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

// Where names the shields where it is in force: four of them, and how many more.
func (o *Override) Where() string {
	const most = 4
	switch n := len(o.Shields); {
	case n == 0:
		return "no shield that is running"
	case n == 1:
		return "shield " + o.Shields[0]
	case n > most:
		return fmt.Sprintf("shields %s and %d more", strings.Join(o.Shields[:most], ", "), n-most)
	}
	return "shields " + strings.Join(o.Shields, ", ")
}

// An OverrideRequest asks for an Override.
type OverrideRequest struct {
	Kind    string `json:"kind"`
	Shield  string `json:"shield,omitempty"` // "" for all that there are
	Client  string `json:"client,omitempty"`
	Handle  string `json:"handle,omitempty"` // of GET /shield/who, in place of the client
	Setting string `json:"setting,omitempty"`
	Value   string `json:"value,omitempty"`
	For     string `json:"for"` // 1s to 24h
}

// ForgivenStatus is what was held against a client that is forgiven.
type ForgivenStatus struct {
	Client  string          `json:"client"`
	Shields []ForgivenByOne `json:"shields"`
}

// ForgivenByOne is that of one shield.
type ForgivenByOne struct {
	Name     string   `json:"name"`
	Zones    []string `json:"zones"` // whose buckets were not full
	Promises int      `json:"appointments"`
	Blocked  bool     `json:"blocked"`

	// As in an [ExplanationStatus]. These limits forgive nothing.
	Unknown map[string]string `json:"unknown,omitempty"`
}
