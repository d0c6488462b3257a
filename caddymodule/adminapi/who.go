package adminapi

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// WhoStatus is the response of `GET /shield/who`: the clients that were rejected most in the last
// minute, and those with the most requests in flight.
type WhoStatus struct {
	WindowSeconds int         `json:"window_seconds"`
	Masked        bool        `json:"masked"` // addresses lack their last part, or there are no names
	Shields       []WhoShield `json:"shields"`
	Zones         []WhoZone   `json:"zones"`
}

// WhoShield is a shield's part of it. In observe mode those are meant that would have been rejected.
type WhoShield struct {
	Name     string           `json:"name"`
	Mode     string           `json:"mode"`
	Rejected []RejectedClient `json:"rejected"` // the one with the most rejections first

	// InFlight are the clients with the most requests in flight: those that were rejected in
	// the last minute, and 64 others that had two or more when they were admitted. The names
	// of more are not known.
	InFlight []BusyClient `json:"in_flight"`
}

// WhoZone is a zone's part of it: its key tells the clients apart.
type WhoZone struct {
	Name     string           `json:"name"`
	Rejected []RejectedClient `json:"rejected"`
}

// RejectedClient is a client that was rejected. The counts are estimates, seldom too high. The handle
// stands for the client in requests to explain, forgive and overrides, even if its name is masked or cut, for
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

// BusyClient is a client with requests in flight.
type BusyClient struct {
	Client   string `json:"client"`
	Handle   string `json:"handle,omitempty"`
	InFlight int    `json:"in_flight"`
}

// Shown returns a text that may come from a client for people to read. A text with
// characters that cannot be seen, or that change how others are seen, is quoted as in Go.
func Shown(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return text
	}
	return strconv.Quote(text)
}

// Anonymise takes the names out: each client is shown by a part of its handle.
func (s *WhoStatus) Anonymise() {
	s.Masked = true
	rejected := func(list []RejectedClient) {
		for i := range list {
			list[i].Client = Anonymous(list[i].Handle)
		}
	}
	for _, one := range s.Shields {
		rejected(one.Rejected)
		for i := range one.InFlight {
			one.InFlight[i].Client = Anonymous(one.InFlight[i].Handle)
		}
	}
	for _, z := range s.Zones {
		rejected(z.Rejected)
	}
}

// HashPrefix begins what is shown in place of a name, or of a credential in it.
const HashPrefix = "hash:"

// Anonymous returns what is shown of a client with a handle where no names are.
func Anonymous(handle string) string { return HashPrefix + handle[:min(8, len(handle))] }
