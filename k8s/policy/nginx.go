package policy

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
)

// NginxPrefix begins the name of every annotation of ingress-nginx.
const NginxPrefix = "nginx.ingress.kubernetes.io/"

// nginxMultiplier is limit-burst-multiplier's default.
const nginxMultiplier = 5

// ParseNginx returns the limits that ingress-nginx would make of the annotations of
// an Ingress: limit-rps, limit-rpm, limit-connections, limit-burst-multiplier and
// limit-allowlist (or limit-whitelist, if that is empty or not set). found reports whether
// there is any limit, or an error; if no limit is good, the defaults are returned. An Ingress with
// annotations of shield's that override them has none.
//
// The meaning follows internal/ingress/annotations/ratelimit and the template of
// ingress-nginx 1.x, and nginx's modules limit_req and limit_conn:
//
//   - A request must pass all limits. A client is an address, with all 128 bits of IPv6.
//     Clients in the allowlist are not counted.
//   - limit-rps N admits N*multiplier+1 requests at once, and N per second; limit-rpm N
//     admits as many at once, and N per minute, which nginx rounds down to whole
//     thousandths per second.
//   - limit-connections N allows N requests in flight.
//   - Rejections have status 503. Each replica has its own counts.
//   - 0, a negative number and an empty text mean no limit. Any other text, and a bad
//     allowlist, is an error: ingress-nginx keeps its last configuration; here the other
//     limits count. But a multiplier
//     that is not a number is 5, and one below 1 is an error, because nginx would not
//     load it.
//
// The three limits replace those of defaults, the allowlist its Allow; the rest is from
// defaults. There are two differences, to the client's advantage: a request that is
// rejected for limit-connections is not charged to the rates; and no thousandths of requests
// are lost, which nginx rounds down at every request.
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
	if connections > loadshed.MaxConcurrency {
		r.fail("limit-connections", "is %d; use at most %d", connections, loadshed.MaxConcurrency)
	} else if connections > 0 {
		p.PerClient = connections
	}
	for _, name := range []string{"limit-allowlist", "limit-whitelist"} {
		if list := annotations[NginxPrefix+name]; list != "" {
			if allow, err := parsePrefixes(list); err != nil {
				r.bad(name, list, err)
			} else {
				p.Allow = allow
			}
			break
		}
	}
	err = r.err()
	if p.Zones == nil && p.PerClient == 0 {
		return defaults, err != nil, err
	}
	return p, true, err
}

// nginxNumber reads a number as ingress-nginx does: an empty text means 0.
func (r *reader) nginxNumber(name string) int {
	v, _ := r.get(name)
	if v == "" {
		return 0
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		r.fail(name, "is %q; use a whole number", clip(v))
	}
	return n
}

// nginxZone adds the quota of a limit_req for n requests. perKilosecond returns how many are
// earned in 1000 s, because nginx counts in thousandths per second.
func (r *reader) nginxZone(p *Ingress, zone, name string, n, multiplier int, perKilosecond func(float64) float64) {
	if multiplier < 1 || multiplier > (math.MaxInt32-1)/n {
		r.errs = append(r.errs, fmt.Errorf("%slimit-burst-multiplier is %d with %s%s of %d; use 1 to %d", r.prefix, multiplier, r.prefix, name, n, max(1, (math.MaxInt32-1)/n)))
		multiplier = max(1, min(nginxMultiplier, (math.MaxInt32-1)/n))
	}
	// nginx admits one request and counts the excess against its burst.
	limit := limiter.Config{Rate: perKilosecond(float64(n)), Per: 1000 * time.Second, Burst: n*multiplier + 1}
	if r.check(name, limit) {
		p.Zones = append(p.Zones, Zone{Name: zone, Limit: limit})
	}
}
