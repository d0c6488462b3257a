package ingress

import (
	"regexp"
	"testing"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/limiter"
)

// filtered returns a Model with one rule for everything, and filters.
func filtered(o *model.Origin, b *model.Backend, f *policy.Filters) *model.Model {
	m := all(o, b)
	m.Rules[0].Filters = f
	return m
}

// Limits see the path of the client, the backend gets the other one.
func TestRewrite(t *testing.T) {
	p := newPod(t, "red", start)
	limited := origin("web", policy.Ingress{
		Key: "{http.request.uri.path}", Zones: []policy.Zone{{Name: "rate", Limit: limiter.Config{Rate: 1, Per: hour, Burst: 1}}},
	})
	m := filtered(limited, backend(service("one", policy.Service{}), p), new(policy.Filters))
	m.Rules[0].Path, m.Rules[0].Pattern = "/api/(.*)", regexp.MustCompile("(?i)^(?:/api/(.*))")
	m.Rules[0].Rewrite = &model.Rewrite{Pattern: m.Rules[0].Pattern, To: "/v2/$1"}
	w := newWorld(t, m)
	for _, c := range []struct {
		path, body string
		status     int
	}{
		{"/api/a?x=y", "red HTTP/1.1 /v2/a", 200},
		{"/API/b%20c", "red HTTP/1.1 /v2/b c", 200},
		{"/api/a", "", 429},
		{"/other", "404 no Ingress has this host and path\n", 404},
		{"/api/%2e%2e/admin", "", 400},
	} {
		resp, body := w.get("a", c.path)
		if resp.StatusCode != c.status || c.body != "" && body != c.body {
			t.Errorf("%s is answered %d %q, want %d %q", c.path, resp.StatusCode, body, c.status, c.body)
		}
	}
	if n := p.served.Load(); n != 2 {
		t.Errorf("the backend has got %d requests, want 2", n)
	}
}
