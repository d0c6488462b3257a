package ingress

import (
	"regexp"
	"testing"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
)

// Addresses that an Ingress does not serve get 403, a closed Ingress 503; challenges of
// certificate authorities are answered by rules for them alone.
func TestGuards(t *testing.T) {
	guarded, open := &policy.Filters{}, &policy.Filters{}
	for value, f := range map[string]*policy.Filters{"192.0.2.0/24": guarded, "nonsense": open} {
		parsed, _ := policy.ParseFilters(map[string]string{policy.NginxPrefix + "whitelist-source-range": value, policy.Prefix + "denylist-source-range": "192.0.2.66"}, true, nil)
		*f = *parsed
	}
	b := placed(policy.Service{}, 1)
	is, acme := origin("web", policy.Ingress{}), acmePath+"/token"
	m := newMemory(t, &model.Model{Rules: []model.Rule{
		{Host: "a.example.com", Path: "/", Target: model.Target{Origin: is, Backend: b, Filters: guarded}},
		{Host: "a.example.com", Path: "/wrong", Target: model.Target{Origin: is, Backend: b, Filters: open}},
		{Host: "a.example.com", Path: "/closed", Target: model.Target{Origin: is, Backend: b, Closed: "no guard"}},
		{Host: "a.example.com", Path: acme, Exact: true, Target: model.Target{Origin: is, Backend: b, Filters: guarded, Closed: "no guard"}},
		{Host: "a.example.com", Path: acme + ".*|/more", Pattern: regexp.MustCompile("^(?:" + acme + ".*|/more)"), Target: model.Target{Origin: is, Backend: b, Filters: guarded}},
	}}, ok)
	for _, tt := range []struct {
		client, path string
		want         int
	}{
		{"192.0.2.1", "/", 200}, {"[::ffff:192.0.2.1]", "/", 200}, {"192.0.3.1", "/", 403}, {"[2001:db8::1]", "/", 403}, {"192.0.2.66", "/", 403},
		{"192.0.2.1", "/wrong", 403}, {"192.0.2.1", "/closed/x", 503}, {"198.51.100.1", acme, 200},
		{"198.51.100.1", "/more", 403}, {"198.51.100.1", acme + "s", 403}, {"192.0.2.1", "/more", 200},
	} {
		if got := m.from(tt.client, "a.example.com"+tt.path).StatusCode; got != tt.want {
			t.Errorf("%s from %s: %d, want %d", tt.path, tt.client, got, tt.want)
		}
	}
}
