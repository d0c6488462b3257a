package caddymodule

import (
	"net/http"
	"strconv"
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
	r := start(t, setup{routes: shield("/a", `"weight": "{shield.json.n}"`) + "," + shield("/a/four", `"weight": 4`) + "," + shield("/b", `"weight": "7"`) + "," + shield("/c", `"weight": "z 100"`)})
	type sent struct {
		path, body string
		status     int
		inFlight   int
	}
	for _, all := range [][]sent{
		{
			{"/a/four", `{"n": 9}`, 200, 4}, {"/a", `{"n": 4}`, 200, 8}, {"/a", `{"n": 3}`, 503, 8}, {"/b", ``, 503, 8}, {"/c", `{"tokens": 201}`, 503, 8},
			{"/a", `{"n": "x"}`, 200, 9}, {"/c", `{"tokens": 40}`, 200, 10}, {"/a", `{"n": 0}`, 503, 10},
		},
		{{"/c", `{"tokens": 350}`, 200, 4}},
		{{"/a", `{"n": 1e9}`, 200, 10}}, // at most the limit
	} {
		var open []*wire
		for _, c := range all {
			w := r.dial()
			w.send("POST %s HTTP/1.1\nHost: x\nContent-Type: application/json\nContent-Length: %d\n\n%s", c.path, len(c.body), c.body)
			if c.status == http.StatusOK {
				<-begun
				open = append(open, w)
			} else if a := w.answer(); a.StatusCode != c.status {
				t.Errorf("%s %s gets %d, want %d", c.path, c.body, a.StatusCode, c.status)
			}
			if n, metric := r.inFlight(), r.scrape(`caddy_shield_in_flight_requests{shield="s"}`); n != c.inFlight || metric != strconv.Itoa(n) {
				t.Errorf("after %s %s %d permits are taken, want %d; the metric says %s", c.path, c.body, n, c.inFlight, metric)
			}
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
	}
}
