package policy

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
)

// NginxPrefix begins the name of every annotation of ingress-nginx.
const NginxPrefix = "nginx.ingress.kubernetes.io/"

// nginxMultiplier is limit-burst-multiplier's default.
const nginxMultiplier = 5

// ParseNginx returns the limits that ingress-nginx would make of the annotations of
// an Ingress: limit-rps, limit-rpm, limit-connections, limit-burst-multiplier and
// limit-allowlist (or limit-whitelist, if that is empty or not there). found
// tells whether there is any; if not, the defaults are returned, and with an error
// too. An Ingress that has rate, burst, key or concurrency of shield's own has
// nothing found: its owner has decided anew.
//
// What it means, after internal/ingress/annotations/ratelimit and the template of
// ingress-nginx 1.x, and nginx's modules limit_req and limit_conn:
//
//   - All limits must let a request pass. A client is an address, IPv6 too, with all of its
//     128 bits. Clients in the allowlist are not counted.
//   - limit-rps N lets N*multiplier+1 requests pass at once, and N per second;
//     limit-rpm N as many at once, and N per minute, which nginx rounds down to
//     whole thousandths per second.
//   - limit-connections N lets N requests be in flight.
//   - Refusals have status 503. Each replica counts by itself.
//   - 0, a negative number and an empty text are no limit. What is no whole number is an
//     error, and so is a bad allowlist: ingress-nginx keeps to what it knew before.
//     But a multiplier that is no number is 5, and one below 1 is an
//     error, because nginx would not load it.
//
// The three limits replace those of defaults, the allowlist its Allow; the rest is
// from defaults. Two things differ from nginx, to the client's advantage: a
// request that is refused for limit-connections is not charged to the rates, and
// thousandths of requests that nginx loses by rounding down at every request are
// not lost.
func ParseNginx(annotations map[string]string, defaults Ingress) (p Ingress, found bool, err error) {
	if OverridesNginx(annotations) != "" {
		return defaults, false, nil
	}
	r := reader{prefix: NginxPrefix, values: annotations}
	rps, rpm, connections := r.nginxNumber("limit-rps"), r.nginxNumber("limit-rpm"), r.nginxNumber("limit-connections")
	multiplier, notNumber := strconv.Atoi(annotations[NginxPrefix+"limit-burst-multiplier"])
	if notNumber != nil {
		multiplier = nginxMultiplier
	}
	p = defaults
	p.Zones, p.Key, p.IPv6Prefix, p.PerClient = nil, "", 128, 0
	p.Status, p.Local = http.StatusServiceUnavailable, true
	if rps > 0 {
		// 1000 per 1000 s of one per second: as limit-rpm below.
		r.nginxZone(&p, "rps", "limit-rps", rps, multiplier, func(n float64) float64 { return n * 1000 })
	}
	if rpm > 0 {
		r.nginxZone(&p, "rpm", "limit-rpm", rpm, multiplier, func(n float64) float64 { return math.Floor(n * 1000 / 60) })
	}
	if connections > shield.MaxConcurrency {
		r.fail("limit-connections", "is %d; want at most %d", connections, shield.MaxConcurrency)
	} else if connections > 0 {
		p.PerClient = connections
	}
	for _, name := range []string{"limit-allowlist", "limit-whitelist"} {
		if list := annotations[NginxPrefix+name]; list != "" {
			if p.Allow, err = parsePrefixes(list); err != nil {
				r.bad(name, list, err)
			}
			break
		}
	}
	if err := r.err(); err != nil {
		return defaults, true, err
	}
	if rps <= 0 && rpm <= 0 && connections <= 0 {
		return defaults, false, nil
	}
	return p, true, nil
}

// nginxNumber reads a number as ingress-nginx does: what is empty is not there.
func (r *reader) nginxNumber(name string) int {
	v, _ := r.get(name)
	if v == "" {
		return 0
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		r.fail(name, "is %q; want a whole number", clip(v))
	}
	return n
}

// nginxZone adds what limit_req would be for so many requests: perKilosecond of n
// are earned in 1000 s, because nginx counts in thousandths per second.
func (r *reader) nginxZone(p *Ingress, zone, name string, n, multiplier int, perKilosecond func(float64) float64) {
	if multiplier < 1 || multiplier > (math.MaxInt32-1)/n {
		r.errs = append(r.errs, fmt.Errorf("%slimit-burst-multiplier is %d, for %s%s of %d; want 1 to %d", r.prefix, multiplier, r.prefix, name, n, max(1, (math.MaxInt32-1)/n)))
		return
	}
	// nginx lets one request pass and then counts what exceeds it against its burst.
	limit := limiter.Config{Rate: perKilosecond(float64(n)), Per: 1000 * time.Second, Burst: n*multiplier + 1}
	r.check(name, limit)
	p.Zones = append(p.Zones, Zone{Name: zone, Limit: limit})
}
