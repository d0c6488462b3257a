package realclients

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/herdshield/shield/caddymodule"
)

// A place is a path of the server with a shield of its own, so that measurements
// do not disturb each other. Its name is the path, without slashes around it.
type place struct {
	name   string
	shield string // fields of the shield handler, in JSON

	mu     sync.Mutex
	filled time.Time // when another client set out to use up the burst
	err    error     // of that
	visits []visit
}

// A visit is a client's request and its answer, as seen right outside of shield.
// sent is taken before any byte of the answer leaves, and arrived when the
// request is here. A machine that is busy between may so make a client look late,
// but never early.
type visit struct {
	arrived, sent time.Time
	status        int
	header        http.Header
}

// visited returns the visits so far, and when the bucket was filled for them.
func (p *place) visited() (visits []visit, filled time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.visits, p.filled, p.err
}

// fill sends the place a plain request, which takes the burst. The first visit
// starts it, so that a client finds no token, however long it took to start.
func (p *place) fill(addr net.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.filled.IsZero() {
		return
	}
	p.filled = time.Now()
	req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://%s/%s/", addr, p.name), nil)
	if err != nil {
		p.err = err
		return
	}
	req.Header.Set(filling, "yes")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := client.Do(req)
	if err != nil {
		p.err = err
		return
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || string(b) != hello {
		p.err = fmt.Errorf("the first of all was not admitted: %s, %q, %v", resp.Status, b, err)
	}
}

const (
	filling = "Fills-The-Bucket" // a header
	hello   = "hello"
)

// serve runs Caddy until the test ends, with a shield in front of each place. It
// returns the URL of the server. Behind, gRPC goes to the server at grpcAddr, and
// everything else is told hello.
func serve(t *testing.T, places []*place, grpcAddr string) string {
	t.Helper()
	var routes strings.Builder
	for _, p := range places {
		known.Store(p.name, p)
		t.Cleanup(func() { known.Delete(p.name) })
		fmt.Fprintf(&routes, `{"match": [{"path": ["/%[1]s/*"]}], "handle": [
			{"handler": "realclients_visitors", "place": %[1]q},
			{"handler": "shield", "name": %[1]q, %[2]s},
			{"handler": "rewrite", "strip_path_prefix": "/%[1]s"}]},`, p.name, p.shield)
	}
	config := fmt.Appendf(nil, `{
		"admin": {"disabled": true, "config": {"persist": false}},
		"logging": {"logs": {"default": {"writer": {"output": "discard"}}}},
		"apps": {
			"tls": {"disable_storage_check": true, "disable_storage_clean": true},
			"http": {"servers": {"srv": {
				"listen": ["127.0.0.1:0"],
				"protocols": ["h1", "h2c"],
				"automatic_https": {"disable": true},
				"routes": [
					%s
					{"match": [{"header": {"Content-Type": ["application/grpc*"]}}], "handle": [
						{"handler": "reverse_proxy", "transport": {"protocol": "http", "versions": ["h2c", "2"]}, "upstreams": [{"dial": %q}]}]},
					{"handle": [{"handler": "static_response", "body": %q}]}
				]
			}}}
		}
	}`, routes.String(), grpcAddr, hello)
	if !json.Valid(config) {
		t.Fatalf("not JSON: %s", config)
	}
	if err := caddy.Load(config, true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
	})
	app, err := caddy.ActiveContext().App("http")
	if err != nil {
		t.Fatal(err)
	}
	return "http://" + app.(*caddyhttp.App).Servers["srv"].Listeners()[0].Addr().String()
}

// visitors is a Caddy handler that writes down who comes and goes.
type visitors struct {
	Place string `json:"place"`
	place *place
}

func init() { caddy.RegisterModule(new(visitors)) }

var known sync.Map // *place by name

func (*visitors) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.realclients_visitors", New: func() caddy.Module { return new(visitors) }}
}

func (v *visitors) Provision(caddy.Context) error {
	p, ok := known.Load(v.Place)
	if !ok {
		return errors.New("no such place")
	}
	v.place = p.(*place)
	return nil
}

func (v *visitors) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if r.Header.Get(filling) != "" {
		return next.ServeHTTP(w, r)
	}
	v.place.fill(r.Context().Value(http.LocalAddrContextKey).(net.Addr))
	s := &stamped{ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: w}}
	s.arrived = time.Now()
	err := next.ServeHTTP(s, r)
	v.place.mu.Lock()
	defer v.place.mu.Unlock()
	v.place.visits = append(v.place.visits, s.visit)
	return err
}

// stamped writes down when an answer begins, and what it says.
type stamped struct {
	*caddyhttp.ResponseWriterWrapper
	visit
}

func (s *stamped) WriteHeader(status int) {
	if s.sent.IsZero() && status >= 200 {
		s.sent, s.status, s.header = time.Now(), status, s.Header().Clone()
	}
	s.ResponseWriterWrapper.WriteHeader(status)
}
