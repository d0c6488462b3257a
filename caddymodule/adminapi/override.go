package adminapi

import (
	"strings"
	"time"
)

// An Override is what an operator has changed for a while.
type Override struct {
	ID      string    `json:"id"`
	Kind    string    `json:"kind"`              // block, set or mode
	Shield  string    `json:"shield,omitempty"`  // "" for all of them
	Client  string    `json:"client,omitempty"`  // of a block
	Setting string    `json:"setting,omitempty"` // capacity, concurrency, queue, or a zone and rate
	Value   string    `json:"value,omitempty"`   // as in the config
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until"`
	Left    float64   `json:"left_seconds"`
	By      string    `json:"by"` // who has asked, as far as the admin endpoint knows

	// Of a block in all shields, those by which the client was forgiven meanwhile, where it is over.
	Except []string `json:"except,omitempty"`
}

// Where says in which shields it is in force, for people.
func (o *Override) Where() string {
	switch {
	case o.Shield != "":
		return "shield " + o.Shield
	case len(o.Except) > 0:
		return "all shields except " + strings.Join(o.Except, ", ")
	}
	return "all shields"
}

// OverrideBegun is the answer to `POST /shield/overrides`.
type OverrideBegun struct {
	Override
	Replaces *Override `json:"replaces,omitempty"` // the one of the same thing that this has ended

	// Of a block in all shields, those that tell clients apart by something else, where it does nothing.
	Without []string `json:"without,omitempty"`
}

// OverridesStatus is the answer to `GET /shield/overrides`.
type OverridesStatus struct {
	Overrides []Override `json:"overrides"`
	ReadOnly  bool       `json:"read_only"` // for this address and certificate

	// What can be set of the shield that `?shield=` asks for.
	Settings []Setting `json:"settings,omitempty"`
}

// A Setting is what an Override of kind set can change, with its present value.
type Setting struct {
	Setting string `json:"setting"`
	Value   string `json:"value"`
}

// ForgivenStatus says what was held against a client: the answer to `POST /shield/forgive`.
type ForgivenStatus struct {
	Client  string          `json:"client"`
	Shields []ForgivenByOne `json:"shields"`
	Ended   []Override      `json:"ended,omitempty"` // the blocks that this has ended

	// Blocks of all shields, of a client that one shield was to forgive: they go on in the others.
	Continued []Override `json:"continued,omitempty"`
}

// ForgivenByOne says so for one shield.
type ForgivenByOne struct {
	Name     string   `json:"name"`
	Zones    []string `json:"zones"` // whose buckets were not full
	Promises int      `json:"promises"`
	Blocked  bool     `json:"blocked"`

	// As in an [ExplanationStatus]. These limits forgive nothing.
	Unknown map[string]string `json:"unknown,omitempty"`
}
