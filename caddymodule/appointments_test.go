package caddymodule

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/oncall"
)

// behind returns routes of a path each, with a shield of that name before it.
func behind(shields map[string]string) string {
	var routes []string
	for name, fields := range shields {
		routes = append(routes, fmt.Sprintf(`{"match": [{"path": ["/%s"]}], "handle": [{"handler": "shield", "name": %q, %s}]}`, name, name, fields))
	}
	return `{"handler": "subroute", "routes": [` + strings.Join(routes, ",") + `]},` + respondOK
}

// shieldStatus returns the status of one shield.
func (r *rig) shieldStatus(name string) oncall.Situation {
	r.Helper()
	shields, _ := r.app().roster()
	for _, s := range shields {
		if s.Name == name {
			return s.reading(shield.Now()).situation(nil)
		}
	}
	r.Fatalf("there is no shield %s", name)
	return oncall.Situation{}
}

// wantStatus requests path and checks the status of the response.
func (r *rig) wantStatus(status int, path string, headers ...string) answered {
	r.Helper()
	a := r.get(path, headers...)
	if a.StatusCode != status {
		r.Errorf("%s %q: %d, want %d", path, headers, a.StatusCode, status)
	}
	return a
}

// told returns how long a rejected client is told to wait.
func told(t testing.TB, a answered) time.Duration {
	t.Helper()
	ms, err := strconv.Atoi(a.Header.Get("Retry-After-Ms"))
	if err != nil {
		t.Errorf("%d without Retry-After-Ms", a.StatusCode)
	}
	return time.Duration(ms) * time.Millisecond
}

// A zone's own matcher may set what tells its clients apart, also where appointments count by the same.
func TestMatchersNameClients(t *testing.T) {
	start(t, setup{handlers: `{"handler": "shield", "name": "s", "retries": {"key": "{http.regexp.t.1}"}, "zones": [{"name": "tenant",
		"key": "{http.regexp.t.1}", "rate": 1, "per": "1m", "burst": 2, "match": [{"path_regexp": {"name": "t", "pattern": "^/t/([^/]+)/"}}]}]},
		{"handler": "static_response", "body": "ok"}`}).inVirtualTime(t, func(r *rig, _ func(func())) {
		for _, tenant := range []string{"a", "b", "c"} {
			for _, status := range []int{200, 200, 429} {
				r.wantStatus(status, "/t/"+tenant+"/x")
			}
		}
	})
}

// A ticket is in no log: neither in that of the rejection, nor in that of the client's return,
// whatever asks for it. Caddy leaves out cookies.
func TestTicketsAreInNoLog(t *testing.T) {
	access, server := filepath.Join(t.TempDir(), "access.log"), filepath.Join(t.TempDir(), "server.log")
	s := serveSite(t, "{"+globalOptions+"log server {\noutput file "+server+"\nlevel DEBUG\n}\n}\n"+bound+"log {\noutput file "+access+"\n}\n"+`
	shield {
		capacity 20/m burst 1
		pushback {
			dither off
		}
		retries {
			tickets on
			key {header.X-Kind}
		}
	}
	handle_errors {
		respond {err.status_code}
	}
	respond ok
}`)
	var given []string
	s.get("/") // takes the only token
	for _, asks := range [][]string{{"X-Program", ""}, {"Shield-Retry", "yes"}, {"Accept", "text/html"}, {"Content-Type", "application/grpc"}} {
		asks = append(asks, "X-Kind", asks[0])
		for _, c := range s.get("/", asks...).Cookies() {
			given = append(given, c.Value)
			s.get("/", append(asks, "Cookie", c.Name+"="+c.Value)...)
		}
	}
	_ = caddy.Stop() // closes the logs
	for file, least := range map[string]int{access: 9, server: 1} {
		log, err := os.ReadFile(file)
		if n := bytes.Count(log, []byte("\n")); err != nil || n < least || len(given) != 4 {
			t.Errorf("%v: %s has %d lines, want at least %d; %d tickets were given, want 4", err, file, n, least, len(given))
		}
		for _, ticket := range given {
			if bytes.Contains(log, []byte(ticket)) {
				t.Errorf("%s has the ticket %s:\n%s", file, ticket, log)
			}
		}
	}
}

// A reload lets held rejections be sent, and appointments of the old config hold in the new. None is held beyond its client's
// deadline.
func TestReloadKeepsAppointments(t *testing.T) {
	config := func(fields string) setup {
		return setup{handlers: behind(map[string]string{
			"s": `"capacity": {"rate": 1, "burst": 3}, "retries": {"key": "{http.request.header.X-Key}"}` + fields,
			"h": `"capacity": {"rate": 1, "per": "1900ms", "burst": 1}`,
		})}
	}
	running := start(t, config(`, "pushback": {"dither": false}`))
	running.inVirtualTime(t, func(r *rig, outside func(func())) {
		for range 3 {
			r.wantStatus(200, "/s", "X-Key", "burst")
		}
		asked := time.Now()
		wait := told(r, r.wantStatus(503, "/s", "X-Key", "b"))
		r.from("192.0.2.2").wantStatus(503, "/s", "X-Key", "another")

		r.get("/h", "Idempotency-Key", "first") // takes the token
		results := make(chan answered, 1)
		go func() { results <- r.get("/h") }()
		synctest.Wait()
		hurried := time.Now()
		r.from("192.0.2.3").wantStatus(503, "/h", "X-Request-Timeout", "50ms")
		if took, held := time.Since(hurried), r.shieldStatus("h").Held; took > 50*time.Millisecond || held != 1 {
			r.Errorf("a client that waits for 50 ms is answered after %v; %d rejections are held, want 1", took, held)
		}
		outside(func() {
			running.load(config(`, "pushback": {"dither": false, "max": "20s"}`))
			running.app().stopReports()
		})
		awaitTransit()
		again := told(r, r.wantStatus(503, "/s", "X-Key", "b"))
		if remains := wait - time.Since(asked); again != remains {
			r.Errorf("told %v by the old config, and early %v by the new; want what remains: %v", wait, again, remains)
		}
		if a := <-results; a.StatusCode != 503 || a.Header.Get("Retry-After") == "" || a.body == "" {
			r.Errorf("%d %v %q; want a whole rejection", a.StatusCode, a.Header, a.body)
		}
		if held := r.shieldStatus("h").Held; held != 0 {
			r.Errorf("%d rejections are held, want none", held)
		}
		pass(time.Until(asked.Add(wait)))
		r.wantStatus(200, "/s", "X-Key", "b")
		if c := r.shieldStatus("s").Line; c.Kept != 1 || c.Promises != 2 {
			r.Errorf("%+v; want an appointment of the old config kept", c)
		}
	})
}
