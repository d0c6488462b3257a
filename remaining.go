package shield

import (
	"cmp"
	"net/http"
	"strconv"
	"time"
)

// Headers says what admitted responses tell of what is left of a quota.
type Headers string

// The values of Headers.
const (
	HeadersOff    Headers = "off" // nothing; the same as ""
	HeadersOn     Headers = "on"  // RateLimit and RateLimit-Policy, of draft-ietf-httpapi-ratelimit-headers-11
	HeadersOpenAI Headers = "openai"
)

// Remaining adds to the response header of an admitted request what is left of its quotas, in zones whose
// Headers say so, after the request itself. It is 0 if a second request like it would be rejected now.
//
// HeadersOpenAI adds what OpenAI's API sends, because some programs read nothing else:
// x-ratelimit-limit-tokens, -remaining- and -reset-, with the zone's unit, as requests or tokens. If several
// zones have the same unit, the one with the least left counts.
func (g *Guard) Remaining(h http.Header, now time.Duration, r *Request) {
	for i := range g.zones {
		z := &g.zones[i]
		key := z.key(r)
		if z.Headers == "" || z.Headers == HeadersOff || key == NoKey {
			continue
		}
		n := z.price(r, key)
		tokens, renews := z.look(key, now, n)
		left, whole := 0, renews
		if renews == 0 {
			if left = tokens / n; z.varies {
				left = int(float64(z.inUnits(tokens)) * z.part(r))
			}
			renews, whole = z.renews(now, tokens)
		}
		g.Responses().Remaining(h, z.index, left, renews)
		unit := cmp.Or(z.Unit, "requests")
		before, err := strconv.Atoi(h.Get("X-Ratelimit-Remaining-" + unit))
		if z.Headers != HeadersOpenAI || err == nil && before <= left {
			continue
		}
		h.Set("X-Ratelimit-Remaining-"+unit, strconv.Itoa(left))
		h.Set("X-Ratelimit-Limit-"+unit, strconv.Itoa(int(float64(z.quota())*z.part(r))))
		h.Set("X-Ratelimit-Reset-"+unit, whole.Round(time.Millisecond).String())
	}
}

// quotaUnit is the zone's unit as the draft has it, "" for requests.
func (z *Zone) quotaUnit() string {
	if z.Unit == "bytes" {
		return "content-bytes"
	}
	return z.Unit
}

// renews returns how long a key with so many tokens takes to have more, and all of its quota.
func (z *zone) renews(now time.Duration, tokens int) (more, whole time.Duration) {
	if z.Calendar != nil {
		_, ends := z.Calendar.around(At(now))
		whole = ends.Sub(At(now))
		return whole, whole
	}
	each := z.limit.Interval()
	return each * time.Duration(z.scale), each * time.Duration(z.limit.Burst()-tokens)
}
