package ingress

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/must"
)

// A client that repeats a refused request is refused at the door, until the cluster changes:
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
			if n := w.metrics()["caddy_shield_door_total"]; n < 10 {
				t.Errorf("%v of 19 refusals were made at the door", n)
			}
			w.apply(&model.Model{Rules: c.after})
			if got := ask(); got != 200 {
				t.Errorf("after the change the same request is answered %d", got)
			}
		})
	}
}

// A client that leaves in the middle of a line, where net/http asks for a single byte, leaves nothing
// behind, on a connection that was refused before, too.
func TestDoorKeepsNoBodies(t *testing.T) {
	p := serving(t, "red", func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	limited := backend(service("web", policy.Service{EndpointConcurrency: 1, Queue: policy.QueueOff}), p)
	rule := func(path string, o *model.Origin) model.Rule {
		return model.Rule{Host: "a", Path: path, Target: model.Target{Origin: o, Backend: limited}}
	}
	m := &model.Model{Rules: []model.Rule{rule("/", origin("web", policy.Ingress{Zones: hourly(1)})), rule("/free", origin("free", policy.Ingress{}))}}
	w := newWorld(t, m)
	w.apply(m)
	for cut := 4094; cut <= 4097; cut++ {
		conn, in := w.dial()
		for range 3 {
			_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			_, _ = io.Copy(io.Discard, must.Get(http.ReadResponse(in, nil))(t).Body)
		}
		_, _ = io.WriteString(conn, "POST /free HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
		w.awaitBodies(true)
		_, _ = io.WriteString(conn, "1;"+strings.Repeat("a", cut-2))
		time.Sleep(20 * time.Millisecond) // for real: so that the server reads the two apart
		_, _ = io.WriteString(conn, "bb")
		_ = conn.Close()
		w.awaitBodies(false)
		if resp, _ := w.send(http.MethodPost, "a", "/free", strings.NewReader("quick")); resp.StatusCode != http.StatusOK {
			t.Errorf("cut at %d: another client gets %d", cut, resp.StatusCode)
		}
	}
}

// awaitBodies waits until some body is being read, or none is.
func (w *world) awaitBodies(some bool) {
	w.t.Helper()
	for began := time.Now(); w.controller.bodies.Taken.Load() > 0 != some; time.Sleep(time.Millisecond) { // for real: it is about sockets
		if time.Since(began) > time.Minute {
			w.t.Fatalf("after a minute %d bytes are taken for bodies", w.controller.bodies.Taken.Load())
		}
	}
}
