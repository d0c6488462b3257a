package door_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// TestQuota hammers a quota at the door: exactly what it allows is admitted, and all is counted.
func TestQuota(t *testing.T) {
	const rate, burst, seconds = 20, 5, 3
	kinds := []string{"the same request", "new connections", "HTTP/2"}
	var sites []site
	for i := range kinds {
		name := fmt.Sprint("s", i)
		sites = append(sites, site{name, "", route(fmt.Sprintf(`{"handler": "shield", "name": %q, "pushback": {"dither": false},
			"zones": [{"name": %q, "rate": %d, "burst": %d}], "concurrency": {"limit": 100}}`, name, "z"+name, rate, burst), respondOK)})
	}
	load(t, "", sites...)
	for i, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			name, ok, all := fmt.Sprint("s", i), 0, 0
			play(t, func(s *stage) {
				l := s.serve(handlerOf(t, name), true)
				var clients []*client
				var h2 []*h2Client
				for range 3 {
					clients, h2 = append(clients, s.dial(l)), append(h2, s.dialH2(l))
				}
				for began := time.Now(); time.Since(began) < seconds*time.Second; pass(5 * time.Millisecond) {
					for k := range clients {
						answer := ""
						switch kind {
						case "HTTP/2":
							answer = h2[k].ask("GET", "/")
						case "new connections":
							if all%10 == 0 {
								clients[k].close()
								clients[k] = s.dial(l)
							}
							fallthrough
						default:
							answer = clients[k].ask(get)
						}
						all++
						if strings.Contains(answer, " 200") {
							ok++
						} else if !strings.Contains(answer, " 429") {
							t.Fatalf("answer %d is %q", all, answer)
						}
					}
				}
			})
			if most := burst + rate*seconds; ok > most || ok < most-1 {
				t.Errorf("%d were admitted, want %d", ok, most)
			}
			is := facts(t, name)
			if int(is.Admitted) != ok || int(is.Admitted+is.Rejected["quota"]) != all || is.InFlight != 0 {
				t.Errorf("admitted %d and rejected %d are counted, and %d are in flight; %d of %d were admitted", is.Admitted, is.Rejected["quota"], is.InFlight, ok, all)
			}
			if n := atDoor(t, name); 2*n < all-ok {
				t.Errorf("%d of %d were rejected at the door", n, all-ok)
			}
		})
	}
}

// TestPromises has clients ask again before their time, which the door answers, and then at the time that they were told
// last: all of them are served.
func TestPromises(t *testing.T) {
	const clients = 4
	load(t, "", site{"s", "", route(fmt.Sprintf(`{"handler": "shield", "name": "s", "capacity": {"rate": 2, "burst": %d},
		"retries": {"key": "{http.request.header.X-Key}"}, "pushback": {"dither": false}}`, clients), respondOK)})
	retryAfter := regexp.MustCompile(`Retry-After-Ms: (\d+)`)
	play(t, func(s *stage) {
		l := s.serve(handlerOf(t, "s"), true)
		for range clients {
			s.dial(l).ask(get) // uses the burst
		}
		var all [clients]struct {
			*client
			due time.Time
		}
		for round := range 8 {
			for i := range all {
				c := &all[i]
				if round == 0 {
					c.client = s.dial(l)
				}
				answer := c.ask(fmt.Sprintf("GET / HTTP/1.1\r\nHost: h\r\nX-Key: %d\r\n\r\n", i))
				if answer == "" { // it is held back
					pass(time.Second)
					answer = c.take()
				}
				told := retryAfter.FindStringSubmatch(answer)
				if told == nil {
					t.Fatalf("client %d is answered %q", i, answer)
				}
				ms, _ := strconv.Atoi(told[1])
				c.due = time.Now().Add(time.Duration(ms) * time.Millisecond)
			}
			pass(30 * time.Millisecond)
		}
		for i := range all {
			pass(time.Until(all[i].due))
			if answer := all[i].ask(fmt.Sprintf("GET / HTTP/1.1\r\nHost: h\r\nX-Key: %d\r\n\r\n", i)); !strings.Contains(answer, " 200 ") {
				t.Errorf("client %d comes at its time, and is answered %q", i, answer)
			}
		}
	})
	if n := atDoor(t, "s"); n < clients {
		t.Errorf("%d early requests were rejected at the door", n)
	}
	if line := facts(t, "s").Line; line.Broken > 0 {
		t.Errorf("%d appointments were broken", line.Broken)
	}
}

// TestPolicies has a client over its quota, and over the capacity, in turn: each time it is told which.
func TestPolicies(t *testing.T) {
	load(t, "", site{"s", "", route(`{"handler": "shield", "name": "s", "pushback": {"dither": false}, "capacity": {"rate": 1, "burst": 1},
		"zones": [{"name": "z", "rate": 2, "burst": 1}]}`, respondOK)})
	play(t, func(s *stage) {
		c, came := s.dial(s.serve(handlerOf(t, "s"), true)), map[string]int{}
		for range 300 {
			answer := c.ask(get)
			for answer == "" { // at its time it waits for its token
				pass(10 * time.Millisecond)
				answer = c.take()
			}
			status := answer[len("HTTP/1.1 "):][:3]
			if came[status]++; strings.Contains(answer, `"z"`) != (status == "429") {
				t.Fatalf("the answer is %s", answer)
			}
			pass(10 * time.Millisecond)
		}
		if came["200"] > 4 || came["503"] < 20 || came["429"] < 20 {
			t.Errorf("the answers are %v", came)
		}
	})
	if n := atDoor(t, "s"); n < 200 {
		t.Errorf("%d of 300 were rejected at the door", n)
	}
}

// TestSamples has a request of each connection go the usual way once a second.
func TestSamples(t *testing.T) {
	const seconds, conns = 4, 2
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(protocol, func(t *testing.T) {
			seen := 0
			count := newHook("count", func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
				seen++
				return next.ServeHTTP(w, r)
			})
			load(t, "", site{"s", "", route(count, overQuota("s", "z", ""), respondOK)})
			play(t, func(s *stage) {
				l := s.serve(handlerOf(t, "s"), true)
				for range conns {
					ask := s.dial(l).ask
					if protocol == "HTTP/2" {
						h2 := s.dialH2(l)
						ask = func(string) string { return h2.ask("GET", "/a") }
					}
					for range seconds * 50 {
						ask(get)
						pass(20 * time.Millisecond)
					}
				}
			})
			if want := conns * (3 + seconds); seen < want-conns || seen > want+2*conns {
				t.Errorf("%d of %d requests went the usual way, want 3 at first on each connection, and 1 per second", seen, conns*seconds*50)
			}
		})
	}
}

// TestConnectionsTellNothingOfAnother has answers with the port of the peer in them, and a handler that makes the port a part of
// the key: a connection is told its own, and not rejected for what others have used up. Nor is a request of one class for one of another.
func TestConnectionsTellNothingOfAnother(t *testing.T) {
	n := 0
	turns := newHook("turns", func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
		n++
		caddyhttp.SetVar(r.Context(), "turn", n%2)
		return next.ServeHTTP(w, r)
	})
	load(t, "", site{"s", "", route(`{"handler": "headers", "response": {"set": {"X-Peer": ["{http.request.remote}"]}}}`, `{"handler": "vars", "conn": "{http.request.remote.port}"}`,
		`{"handler": "shield", "name": "s", "pushback": {"dither": false}, "zones": [{"name": "z", "key": "{http.vars.conn}", "rate": 1, "per": "1h", "burst": 1}]}`, respondOK)},
		site{"random", "", route(`{"handler": "vars", "id": "{http.request.uuid}"}`, `{"handler": "shield", "name": "random", "pushback": {"dither": false},
		"zones": [{"name": "zr", "key": "{http.vars.id}", "rate": 1, "per": "1h", "burst": 1}], "capacity": {"rate": 1, "per": "1h", "burst": 1}}`, respondOK)},
		site{"turns", "", route(turns, overQuota("turns", "zt", `, "concurrency": {"limit": 9}, "classes": [{"name": "critical", "match": [{"vars": {"turn": ["1"]}}]}]`), respondOK)})
	play(t, func(s *stage) {
		l, peers := s.serve(handlerOf(t, "s"), true), map[string]int{}
		for i := range 10 {
			c := s.dial(l)
			_, peer, _ := strings.Cut(c.ask(get), "X-Peer: ")
			peer, _, _ = strings.Cut(peer, "\r\n")
			if peers[peer]++; peers[peer] > 1 {
				t.Errorf("%s is told twice", peer)
			}
			for range 10 {
				if got := c.ask(get); !strings.Contains(got, " 429 ") || !strings.Contains(got, "X-Peer: "+peer+"\r\n") {
					t.Fatalf("connection %d from %s is answered %s", i, peer, got)
				}
			}
		}
		for _, name := range []string{"random", "turns"} {
			c := s.dial(s.serve(handlerOf(t, name), true))
			for range 20 {
				c.ask(get)
			}
		}
	})
	if n := atDoor(t, "s"); n < 50 {
		t.Errorf("%d of 100 were rejected at the door: it shows little", n)
	}
	if n, m := atDoor(t, "random"), atDoor(t, "turns"); n+m > 0 {
		t.Errorf("%d were rejected at the door, though each has a key of its own, and %d, though it is of another class than the one before", n, m)
	}
}

// TestHandsAreGivenBack has the door admit a request that never reaches its shield: its place is given back with the next
// request, with the end of the connection, and over HTTP/2 after a moment.
func TestHandsAreGivenBack(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(protocol, func(t *testing.T) {
			astray := false
			hook := newHook("astray", func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
				if astray {
					w.WriteHeader(http.StatusNoContent)
					return nil
				}
				return next.ServeHTTP(w, r)
			})
			load(t, "", site{"s", "", route(hook, `{"handler": "shield", "name": "s", "pushback": {"dither": false}, "zones": [{"name": "z", "rate": 2, "burst": 1}], "concurrency": {"limit": 1}}`, respondOK)})
			play(t, func(s *stage) {
				l := s.serve(handlerOf(t, "s"), true)
				for _, ends := range []string{"a request", "the end"} {
					pass(time.Minute)
					c := s.dial(l)
					ask, end := func() string { return c.ask(get) }, c.close
					if protocol == "HTTP/2" {
						h2 := s.dialH2(l)
						ask, end = func() string { return h2.ask("GET", "/a") }, func() { _ = h2.Close() }
					}
					for range 6 {
						ask()
					}
					astray = true
					pass(600 * time.Millisecond)
					before := facts(t, "s").Admitted
					if got := ask(); !strings.Contains(got, " 204") || facts(t, "s").Admitted != before+1 {
						t.Fatalf("the answer is %q, and %d were admitted", got, facts(t, "s").Admitted-before)
					}
					if ends == "the end" {
						end()
					} else {
						ask()
					}
					settle()
					astray = false
					if n := facts(t, "s").InFlight; n != 0 {
						t.Errorf("%d are in flight after %s", n, ends)
					}
				}
			})
		})
	}
}
