package pushback

import "time"

// SlotWidth is the width of a bucket of slots that replicas share.
const SlotWidth = 250 * time.Millisecond

type Rates struct {
	Rate     float64
	Min, Max time.Duration
}

type Replace uint8

// A Slot is room for promises in one bucket of a calendar that several replicas share.
type Slot struct {
	Bucket int64   `json:"n"` // its number since the store's epoch, in quarters of a second
	Size   float64 `json:"x"` // returns that may be expected there
}

// SlotsAsk is what a replica tells the store of its calendar, and asks it for.
type SlotsAsk struct {
	Rate    float64 `json:"rate"`              // what this replica adds to the backend's rate, per second
	Limit   float64 `json:"limit"`             // the rate is no more than this, of all replicas; 0: no limit
	Base    float64 `json:"base"`              // requests that come here anyway, per second
	Max     int64   `json:"max"`               // the longest wait, in ms
	Want    float64 `json:"want"`              // expected returns
	Guessed []Slot  `json:"guessed,omitempty"` // promised without a grant
	Back    []Slot  `json:"back,omitempty"`    // granted and not needed
	First   int64   `json:"first,omitempty"`   // with Anew: Answer.First
	Anew    []Slot  `json:"anew,omitempty"`    // all that it holds, after the store has forgotten it

	Numbers float64 `json:"numbers"` // issued in the queue of deferred clients since the last ask; may be below 0
	Served  float64 `json:"served"`  // numbers that were served out of turn since then
	Dry     bool    `json:"dry"`     // the queue has run dry: all numbers are served
	Kept    float64 `json:"kept"`    // share of promises that is kept, 0 to 1
}

// SlotsAnswer has the slots that a replica gets.
type SlotsAnswer struct {
	Rate   float64 `json:"rate"`   // what the other replicas add to the backend's rate
	Base   float64 `json:"base"`   // what comes to the others anyway
	First  int64   `json:"first"`  // buckets from this one on are granted, those before divided; 0: none is granted
	Cursor int64   `json:"cursor"` // all buckets before this one are granted already
	Grants []Slot  `json:"grants,omitempty"`
	Issued float64 `json:"issued"` // numbers, by all replicas
	Served float64 `json:"served"`
}

type Note struct {
	Key         uint64
	At          time.Duration // that was promised
	Told        time.Duration // when its answer is sent
	Number      uint32        // if Deferred: its position in the queue
	Fingerprint uint8         // the lowest bits of that of its request
	Trust       Trust
	Replace     Replace // of the promises that it had
	Promise     uint8   // to one of a crowd: what it was told to come for
	Deferred    bool    // no slot is reserved
	Kept        bool    // it has come at that time, or before
	OnTime      bool    // if Kept: not before
	Crowd       bool    // it is one of a crowd, whose members are not told apart
}

func (l *Line) WantsSlots() bool                                         { return false }
func (l *Line) Forgot()                                                  {}
func (l *Line) AskSlots(now, trip time.Duration, r Rates) (a SlotsAsk)   { return a }
func (l *Line) ReturnSlots(now time.Duration) (a SlotsAsk)               { return a }
func (l *Line) Untell(a *SlotsAsk, certain bool)                         {}
func (l *Line) HearSlots(now time.Duration, a *SlotsAnswer, r Rates)     {}
func (l *Line) Late()                                                    {}
func (a *Appointments) HasNews() bool                                    { return false }
func (a *Appointments) News(to []Note, n int) []Note                     { return to }
func (a *Appointments) Hear(now time.Duration, n *Note)                  {}
func (a *Appointments) Join(now, zero time.Duration, replicas, rank int) {}
func (a *Appointments) Part()                                            {}
func (a *Appointments) Leave()                                           {}
func (a *Appointments) Calendar() *Line                                  { return &a.line }
