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

// With the address as key, two clients of one address with the same request are one client
// that repeats itself. With their own keys, each gets its own appointment.
func TestKeysTellClientsApart(t *testing.T) {
	const limited = `"capacity": {"rate": 1, "burst": 3}, "pushback": {"dither": false}, "retries": {"key": "{http.%s}"}`
	start(t, setup{handlers: behind(map[string]string{"keys": fmt.Sprintf(limited, "request.header.X-Key"), "address": fmt.Sprintf(limited, "vars.client_ip")})}).inVirtualTime(t, func(r *rig, _ func(func())) {
		for path, apart := range map[string]bool{"/keys": true, "/address": false} {
			for range 3 {
				r.wantStatus(200, path, "X-Key", "burst")
			}
			b := told(r, r.wantStatus(503, path, "X-Key", "b"))
			// Another client, so that one that comes early does so before another.
			r.from("192.0.2.2").wantStatus(503, path, "X-Key", "another")
			awaitTransit()
			c := told(r, r.wantStatus(503, path, "X-Key", "c"))
			if later := c > b; later != apart {
				r.Errorf("%s: told %v and %v; apart: %v, want %v", path, b, c, later, apart)
			}
		}
	})
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
	s := serveSite(t, "{"+globalOptions+`
	log server {
		output file `+server+`
		level DEBUG
	}
}
`+bound+`
	log {
		output file `+access+`
	}
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
	if len(given) != 4 {
		t.Fatalf("tickets: %q, want 4", given)
	}
	for file, least := range map[string]int{access: 9, server: 1} {
		log, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(log, []byte("\n")); n < least {
			t.Errorf("%s has %d lines, want at least %d", file, n, least)
		}
		for _, ticket := range given {
			if bytes.Contains(log, []byte(ticket)) {
				t.Errorf("%s has the ticket %s:\n%s", file, ticket, log)
			}
		}
	}
}

// A reload, or the end, of a config lets held rejections be sent, and releases all that held
// them. Appointments of the old config hold in the new.
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

		hold := func() <-chan answered {
			r.get("/h", "Idempotency-Key", "first") // takes the token
			results := make(chan answered, 1)
			go func() { results <- r.get("/h") }()
			synctest.Wait()
			if held := r.shieldStatus("h").Held; held != 1 {
				r.Errorf("%d rejections are held, want 1", held)
			}
			return results
		}
		wantRejection := func(results <-chan answered) {
			if a := <-results; a.StatusCode != 503 || a.Header.Get("Retry-After") == "" || a.body == "" {
				r.Errorf("%d %v %q; want a whole rejection", a.StatusCode, a.Header, a.body)
			}
		}
		results := hold()
		outside(func() {
			running.load(config(`, "pushback": {"dither": false, "max": "20s"}`))
			running.app().stopReports()
		})
		awaitTransit()
		again := told(r, r.wantStatus(503, "/s", "X-Key", "b"))
		if remains := wait - time.Since(asked); again != remains {
			r.Errorf("told %v by the old config, and early %v by the new; want what remains: %v", wait, again, remains)
		}
		wantRejection(results)
		if held := r.shieldStatus("h").Held; held != 0 {
			r.Errorf("%d rejections are held, want none", held)
		}
		pass(time.Until(asked.Add(wait)))
		r.wantStatus(200, "/s", "X-Key", "b")
		if c := r.shieldStatus("s").Line; c.Kept != 1 || c.Promises != 2 {
			r.Errorf("%+v; want an appointment of the old config kept", c)
		}

		pass(5 * time.Second) // the last one held does not come back; the token is there again
		results = hold()
		var record *backendRecord
		for _, s := range r.app().configured {
			if s.Name == "h" {
				record = s.record
			}
		}
		outside(func() {
			if err := caddy.Stop(); err != nil {
				t.Error(err)
			}
		})
		wantRejection(results)
		if held := record.Stats(shield.Now()).Held; held != 0 {
			r.Errorf("%d rejections are held after the end", held)
		}
	})
	eventually(t, "no goroutine of shield is left", func() bool { return len(shieldStacks()) == 0 })
}

// A secret is nowhere to be seen: not in errors, whatever is wrong, nor in what
// the running config tells.
func TestSecretIsNotShown(t *testing.T) {
	const secret = "correct horse battery staple"
	with := func(retries string) string {
		return `{"handler": "shield", "name": "s", "concurrency": {"limit": 1}, "retries": {` + retries + `}}`
	}
	r := &rig{T: t, addr: freeAddr(t)}
	for _, c := range []struct{ handlers, want string }{
		{with(`"tickets": true, "secret": "correct horse"`), "secret has 13 bytes; use at least 16"},
		{with(`"secret": "` + secret + `"`), "secret is set, but tickets are off; use both or neither"},
		{with(`"tickets": true, "secret": "` + secret + ` {horse}"`), "secret has an empty or unknown placeholder"},
		{with(`"tickets": true, "secret": "` + secret + ` {horse.battery}"`), "secret has an empty or unknown placeholder"},
		{with(`"tickets": true, "secret": "` + secret + ` {env.SHIELD_TEST_NO_SUCH_SECRET}"`), "secret has an empty or unknown placeholder"},
		{with(`"tickets": true, "secret": "{env.SHIELD_TEST_NO_SUCH_SECRET}"`), "secret has an empty or unknown placeholder"},
		{with(`"tickets": true, "secret": "{file./no/such/secret}"`), "secret has an empty or unknown placeholder"},
		{with(`"tickets": true, "secret": "`+secret+`"`) + "," + with(`"tickets": true, "secret": "the other horse battery staple"`), `retries of shield "s" is defined twice, with different secrets`},
		{with(`"tickets": true, "secret": "`+secret+`"`) + "," + with(``), `retries of shield "s" is defined twice, with different tickets; use one`},
		{with(`"tickets": true, "secret": "`+secret+`", "max_clients": 1`) + "," + with(``), "max_clients is 1; use 1024"},
	} {
		err := r.tryLoad(setup{handlers: c.handlers + "," + respondOK})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "horse") && strings.Contains(c.handlers, "horse") {
			t.Errorf("%s\n%v\nwant an error with %q and without the secret", c.handlers, err, c.want)
		}
		_ = caddy.Stop()
	}
	r = start(t, setup{handlers: with(`"tickets": true, "secret": "`+secret+`"`) + "," + with(`"secret": "`+secret+`", "tickets": true, "enforce": true`) + "," + respondOK})
	if shown := fmt.Sprintf("%+v", r.status()); strings.Contains(shown, "horse") {
		t.Errorf("the status has the secret: %s", shown)
	}
}
