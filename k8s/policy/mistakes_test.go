package policy

import (
	"maps"
	"reflect"
	"testing"
	"time"
)

// For any set of annotations with one made bad, the limits are those of the set without it; or with the
// default burst, if that is the bad one. So a mistake takes away nothing but what it was to say.
func TestMistakes(t *testing.T) {
	ingress := map[string]string{"rate": "50/s", "burst": "7", "concurrency": "4", "key": "{http.request.host}", "class": "critical", "allow-cidrs": "10.0.0.0/8", "retry-after-max": "9s", "mode": "observe"}
	service := map[string]string{"capacity": "500/s", "burst": "5", "concurrency": "9", "endpoint-concurrency": "4", "queue": "16", "queue-timeout": "50ms", "retry-after-max": "9s", "mode": "observe"}
	nginxs := map[string]string{"limit-rps": "5", "limit-rpm": "100", "limit-connections": "3", "limit-burst-multiplier": "2", "limit-allowlist": "10.0.0.0/8"}
	class := Ingress{Zones: []Zone{{"rate", perSecond(10, 40)}}, PerClient: 2, RetryAfterMax: time.Second}
	for _, kind := range []struct {
		name, prefix string
		all          map[string]string
		parse        func(map[string]string) (any, error)
	}{
		{"Ingress", Prefix, ingress, func(a map[string]string) (any, error) { return ParseIngress(a, Ingress{}) }},
		{"Ingress of a class", Prefix, ingress, func(a map[string]string) (any, error) { return ParseIngress(a, class) }},
		{"class", "", ingress, func(a map[string]string) (any, error) { return ParseDefaults(a) }},
		{"Service", Prefix, service, func(a map[string]string) (any, error) { return ParseService(a) }},
		{"ingress-nginx", NginxPrefix, nginxs, func(a map[string]string) (any, error) { p, _, err := ParseNginx(a, class); return p, err }},
	} {
		names := make([]string, 0, len(kind.all))
		for name := range kind.all {
			names = append(names, name)
		}
		for set := range 1 << len(names) {
			a := map[string]string{}
			for i, name := range names {
				if set>>i&1 == 1 {
					a[kind.prefix+name] = kind.all[name]
				}
			}
			for name := range a {
				if name == NginxPrefix+"limit-burst-multiplier" {
					continue // which counts as 5 if it is no number, as in ingress-nginx
				}
				bad, without := maps.Clone(a), maps.Clone(a)
				bad[name] = "nonsense"
				delete(without, name)
				if name == kind.prefix+"rate" || name == kind.prefix+"capacity" {
					delete(without, kind.prefix+"burst") // that of the bad rate, not of the class's
				}
				got, err := kind.parse(bad)
				want, _ := kind.parse(without)
				if err == nil || !reflect.DeepEqual(limitsOf(got), limitsOf(want)) {
					t.Fatalf("%s: %v: %v\ngot  %+v\nwant %+v", kind.name, bad, err, got, want)
				}
			}
		}
	}
	// A burst that does not go with a good rate leaves the rate.
	for _, burst := range []string{"0", "1000000000"} {
		p, err := ParseIngress(map[string]string{Prefix + "rate": "1/h", Prefix + "burst": burst}, class)
		s, err2 := ParseService(map[string]string{Prefix + "capacity": "1/h", Prefix + "burst": burst})
		if err == nil || err2 == nil || p.Zones[0].Limit.Rate != 1 || p.Zones[0].Limit.Burst != 0 || s.Capacity.Rate != 1 || s.Capacity.Burst != 0 {
			t.Errorf("burst %s: %+v, %+v", burst, p, s)
		}
	}
}

// limitsOf returns a policy without what means nothing without limits.
func limitsOf(p any) any {
	switch p := p.(type) {
	case Ingress:
		p.Key = ""
		return p
	case Service:
		p.Queue, p.QueueTimeout = 0, 0
		return p
	}
	return nil
}
