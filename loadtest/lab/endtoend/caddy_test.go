package endtoend

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	_ "github.com/mholt/caddy-ratelimit"

	_ "github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/loadtest/lab/must"
)

// config is an operator's plain server, with what would disturb a benchmark
// turned off: no admin socket, no files written, no TLS. The log keeps its
// default level, because encoding a line is a cost of the handler that logs
// it, but goes nowhere.
const config = `{
	"admin": {"disabled": true, "config": {"persist": false}},
	"logging": {"logs": {"default": {"writer": {"output": "discard"}}}},
	"apps": {
		"tls": {"disable_storage_check": true, "disable_storage_clean": true},
		"http": {"servers": {"srv": {
			"listen": ["127.0.0.1:0"],
			"protocols": ["h1"],
			"automatic_https": {"disable": true},
			"routes": [{"handle": [%s]}]
		}}}
	}
}`

// serve runs Caddy with the given handlers, in JSON and separated by commas,
// until the test ends. There is one Caddy per process, so tests that serve
// cannot run in parallel.
func serve(tb testing.TB, handlers string) *caddyhttp.Server {
	tb.Helper()
	must.Do(tb, caddy.Load(fmt.Appendf(nil, config, handlers), true))
	// Stop, not a reload: buckets outlive reloads, and every row wants its own.
	tb.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			tb.Error(err)
		}
	})
	app := must.Get(caddy.ActiveContext().App("http"))(tb)
	return app.(*caddyhttp.App).Servers["srv"]
}

// okBody is what an admitted request gets, from the backend or from memory.
const okBody = "ok\n"

// A backend answers at once, except on /hold, where it answers when the test
// ends.
type backend struct {
	handler string // the reverse_proxy handler that leads to it, in JSON
	held    chan struct{}
	release chan struct{}
}

func newBackend(tb testing.TB) *backend {
	be := &backend{held: make(chan struct{}), release: make(chan struct{})}
	srv := httptest.NewServer(be)
	tb.Cleanup(srv.Close)
	be.handler = fmt.Sprintf(`{"handler": "reverse_proxy", "upstreams": [{"dial": %q}]}`, srv.Listener.Addr())
	return be
}

func (be *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/hold" {
		be.held <- struct{}{}
		<-be.release
	}
	fmt.Fprint(w, okBody)
}

// hold sends srv a request that stays in flight until the test ends.
func (be *backend) hold(tb testing.TB, srv *caddyhttp.Server) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(tb.Context(), http.MethodGet, "/hold", nil))
	}()
	select {
	case <-be.held:
	case <-done:
		tb.Fatal("the request that should hold the slot was rejected")
	}
	tb.Cleanup(func() {
		close(be.release)
		<-done
	})
}
