package caddymodule

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// TestWeights has requests take as many permits of ten as their path, body, or cost says, in handlers of one name that weigh differently.
func TestWeights(t *testing.T) {
	begun, end := make(chan bool, 1), make(chan bool)
	work := newHook(t, func(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
		begun <- true
		<-end
		w.WriteHeader(http.StatusOK)
		return nil
	})
	shield := func(match, more string) string {
		return `{"match": [{"path": ["` + match + `"]}], "handle": [{"handler": "shield", "name": "s", "pushback": {"dither": false}, "queue": {"off": true},
			"zones": [{"name": "z", "rate": 1000, "cost": "{shield.json.tokens}"}], "concurrency": {"limit": 10, ` + more + `}},` + work + `]}`
	}
	r := start(t, setup{routes: shield("/a", `"weight": "{shield.json.n}"`) + "," + shield("/a/four", `"weight": 4`) + "," + shield("/b", `"weight": "7"`) + "," + shield("/c", `"weight_zone": "z", "weight_units": 100`)})
	var open []*wire
	for _, c := range []struct {
		request  string // method and path
		body     string
		status   int
		inFlight int
	}{
		{"POST /a/four", `{"n": 9}`, 200, 4},
		{"PUT /a", `{"n": 4}`, 200, 8},
		{"POST /a", `{"n": 3}`, 503, 8},
		{"POST /b", ``, 503, 8},
		{"POST /c", `{"tokens": 201}`, 503, 8},
		{"POST /a", `{"n": "x"}`, 200, 9},
		{"POST /c", `{"tokens": 40}`, 200, 10},
		{"POST /a", `{"n": 0}`, 503, 10},
	} {
		w := r.dial()
		w.send("%s HTTP/1.1\nHost: x\nContent-Type: application/json\nContent-Length: %d\n\n%s", c.request, len(c.body), c.body)
		if c.status == http.StatusOK {
			<-begun
			open = append(open, w)
		} else if a := w.answer(); a.StatusCode != c.status {
			t.Errorf("%s %s gets %d, want %d", c.request, c.body, a.StatusCode, c.status)
		}
		if n := r.inFlight(); n != c.inFlight {
			t.Errorf("after %s %s %d permits are taken, want %d", c.request, c.body, n, c.inFlight)
		}
	}
	if n := r.scrape(`caddy_shield_in_flight_requests{shield="s"}`); n != "10" {
		t.Errorf("the metric says %s, want 10", n)
	}
	for range open { // it may be any that ends
		end <- true
	}
	for _, w := range open {
		if a := w.answer(); a.StatusCode != http.StatusOK {
			t.Errorf("one that is admitted gets %d", a.StatusCode)
		}
	}
	r.drains()
	w := r.dial()
	w.send("POST /c HTTP/1.1\nHost: x\nContent-Type: application/json\nContent-Length: %d\n\n%s", 15, `{"tokens": 350}`)
	<-begun
	if n := r.inFlight(); n != 4 {
		t.Errorf("one that costs 350 takes %d permits of 100 each, want 4", n)
	}
	end <- true
	w.answer()
	r.drains()
	w.send("POST /a HTTP/1.1\nHost: x\nContent-Type: application/json\nContent-Length: %d\n\n%s", 10, `{"n": 1e9}`)
	<-begun
	if n := r.inFlight(); n != 10 {
		t.Error(fmt.Sprint("one that weighs more than the limit takes ", n, ", want 10"))
	}
	end <- true
	w.answer()
}
