package caddymodule

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/clientkey"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/meter"
)

// An Amount is a number, which JSON may have as such, or a placeholder. A cost may also be learned.
type Amount string

const costAuto Amount = "auto"

// UnmarshalJSON implements json.Unmarshaler.
func (a *Amount) UnmarshalJSON(b []byte) error {
	if n, err := strconv.ParseFloat(string(b), 64); err == nil {
		*a = Amount(strconv.FormatFloat(n, 'f', -1, 64))
		return nil
	}
	return json.Unmarshal(b, (*string)(a))
}

// budget sets what a zone's requests cost.
func (z *Zone) budget(f *faults, c *shield.Zone) {
	switch number, ok := asFloat(string(z.Cost)); {
	case z.Cost == "":
	case z.Cost == costAuto:
		if c.AutoCost = true; z.Settle == "" {
			f.addf("cost is auto, but nothing reports what a request cost; add settle, like settle usage")
		}
	case ok && number == 0:
		f.addf("cost is 0; use more than 0, or leave it out for the default")
	case ok:
		c.Cost = number
	default:
		c.CostAsked = true
		f.placeholder("cost", string(z.Cost))
	}
	if z.Settle != "" {
		source, err := meter.Parse(z.Settle)
		if c.Settle = &source; err != nil {
			f.addf("settle: %w", err)
		}
	}
	switch {
	case z.From != "":
		f.placeholder("rate", z.From)
		if z.Min == 0 {
			f.addf("min_rate is missing or 0; use the lowest rate a request can carry")
		}
	case z.Min != 0:
		f.addf("min_rate is %v without rate_from; set rate_from to the rate's placeholder", z.Min)
	}
	if period, zone, _ := strings.Cut(z.Calendar, " "); z.Calendar != "" {
		in, err := time.LoadLocation(zone)
		if c.Calendar = (&shield.Calendar{Month: period == "month", In: in}); err != nil {
			f.addf("calendar: timezone is %q; use one like Europe/Berlin: %w", zone, err)
		}
		if period != "day" && period != "month" {
			f.addf("calendar is %q; use day or month", period)
		}
	}
	c.Headers = shield.Headers(z.Headers)
}

// placeholder checks that a text is one that a request has.
func (f *faults) placeholder(option, text string) {
	name := inBraces(text)
	if parts, err := clientkey.Parse(text); name == "" || err != nil || len(parts) != 1 || !known(name) {
		f.addf("%s is %q; use a number, or a placeholder of the request, like {http.request.header.X-Cost}", option, text)
	}
}

// inBraces returns the name of the placeholder that a text is, "" if it is none.
func inBraces(text string) string {
	if strings.HasPrefix(text, "{") && strings.HasSuffix(text, "}") {
		return text[1 : len(text)-1]
	}
	return ""
}

// said returns what r says of itself to each zone.
func (h *Handler) said(r *http.Request) []shield.Ask {
	asks := make([]shield.Ask, len(h.zones))
	number := func(placeholder string) float64 {
		if placeholder == "" {
			return 0
		}
		if n, ok := asFloat(value(placeholder, r)); ok && n > 0 {
			return n
		}
		return math.NaN()
	}
	for i, z := range h.zones {
		asks[i] = shield.Ask{Cost: number(z.cost), Rate: number(z.rate)}
	}
	return asks
}

// weights sets what a request weighs in c.
func (n *Concurrency) weights(f *faults, c *shield.Config) {
	permits, ok := asNumber(string(n.Weight))
	zone, of, byZone := strings.Cut(string(n.Weight), " ")
	units, areUnits := asFloat(of)
	i := slices.IndexFunc(c.Zones, func(z shield.Zone) bool { return z.Name == zone })
	switch {
	case n.Weight == "":
	case byZone && !areUnits:
		f.addf("weight is %q; use a number, a placeholder, or a zone and the units of a permit, like tokens 1000", n.Weight)
	case byZone && i < 0:
		f.addf("weight is by zone %q, which this shield doesn't have; use the name of one of its zones", zone)
	case byZone && units <= 0:
		f.addf("weight is a permit for each %v units of zone %q; use more than 0", units, zone)
	case byZone:
		c.Zones[i].Permit = units
	case !ok:
		f.placeholder("weight", string(n.Weight))
	case *permits < 1 || *permits > loadshed.MaxConcurrency:
		f.addf("weight is %d; use 1 to %d", *permits, loadshed.MaxConcurrency)
	}
}

// weigh returns how many permits r takes, 0 for one: also of a placeholder that is no whole number. More than all count as all.
func (h *Handler) weigh(r *http.Request) int {
	text := string(h.Concurrency.Weight)
	if name := inBraces(text); name != "" {
		text = value(name, r)
	}
	n, _ := strconv.ParseUint(text, 10, 31)
	return int(n)
}
