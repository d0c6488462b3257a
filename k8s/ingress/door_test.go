package ingress

import (
	"io"
	"net/http"
	"testing"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/must"
)

// A client that repeats a rejected request is rejected at the door, until the cluster changes:
// the next request goes where the new objects send it.
func TestDoor(t *testing.T) {
	p := newPod(t, "red", start)
	limited := origin("web", policy.Ingress{Zones: hourly(1)})
	free := origin("free", policy.Ingress{})
	b := backend(service("one", policy.Service{}), p)
	rule := func(o *model.Origin, path string) model.Rule {
		return model.Rule{Host: "a", Path: path, Target: model.Target{Origin: o, Backend: b}}
	}
	for _, c := range []struct {
		name          string
		before, after []model.Rule
	}{
		{"the path is another Ingress's", []model.Rule{rule(limited, "/")}, []model.Rule{rule(limited, "/"), rule(free, "/a")}},
		{"the Ingress is gone", []model.Rule{rule(limited, "/"), rule(limited, "/a")}, []model.Rule{rule(free, "/")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, &model.Model{Rules: c.before})
			w.apply(&model.Model{Rules: c.before}) // newWorld's comes before the app is there
			conn, in := w.dial()
			ask := func() int {
				_, _ = io.WriteString(conn, "GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
				resp := must.Get(http.ReadResponse(in, nil))(t)
				_, _ = io.Copy(io.Discard, resp.Body)
				return resp.StatusCode
			}
			for i := range 20 {
				if got := ask(); (got == 200) != (i == 0) {
					t.Errorf("request %d is answered %d", i+1, got)
				}
			}
			if n := w.metrics()["caddy_shield_fast_rejects_total"]; n < 10 {
				t.Errorf("%v of 19 rejections were made at the door", n)
			}
			w.apply(&model.Model{Rules: c.after})
			if got := ask(); got != 200 {
				t.Errorf("after the change the same request is answered %d", got)
			}
		})
	}
}
