package ingress

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield/k8s/testbed/must"
)

type readyFunc func() error

func (f readyFunc) Ready() error { return f() }

func TestProbes(t *testing.T) {
	next := caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
		w.WriteHeader(http.StatusTeapot)
		return nil
	})
	notSynced := errors.New("the Ingresses have not been listed yet")
	for _, c := range []struct {
		name, method, path string
		app                error
		starting, exiting  bool
		status             int
		body               string
	}{
		{name: "ready", path: "/readyz", status: 200, body: "ok\n"},
		{name: "alive", path: "/livez", status: 200, body: "ok\n"},
		{name: "head", method: "HEAD", path: "/readyz", status: 200, body: "ok\n"}, // net/http drops it
		{name: "not synced", path: "/readyz", app: notSynced, status: 503, body: "not ready: the Ingresses have not been listed yet\n"},
		{name: "alive, not synced", path: "/livez", app: notSynced, status: 200, body: "ok\n"},
		{name: "starting", path: "/readyz", starting: true, status: 503, body: "not ready: starting\n"},
		{name: "exiting", path: "/readyz", starting: true, exiting: true, status: 503, body: "not ready: shutting down\n"},
		{name: "alive, exiting", path: "/livez", exiting: true, status: 200, body: "ok\n"},
		{name: "post", method: "POST", path: "/livez", status: 405},
		{name: "another path", path: "/metrics", status: 418},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &Health{
				app:     readyFunc(func() error { return c.app }),
				running: func() bool { return !c.starting },
				exiting: func() bool { return c.exiting },
			}
			w := httptest.NewRecorder()
			w.Header().Set("Server", "Caddy")
			must.Do(t, h.ServeHTTP(w, httptest.NewRequest(c.method, c.path, nil), next))
			if w.Code != c.status || w.Body.String() != c.body {
				t.Errorf("%d %q, want %d %q", w.Code, w.Body, c.status, c.body)
			}
			if w.Header().Get("Server") != "" {
				t.Error("there is a Server header")
			}
		})
	}
}
