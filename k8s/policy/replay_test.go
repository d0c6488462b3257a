package policy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
)

// The replay: real traffic to a real nginx, which is configured as ingress-nginx's
// template would from the same annotations; and then, at the moments at which
// nginx has seen them, the same requests to the limits of ParseNginx.
//
// nginx counts in milliseconds, of one clock, and logs milliseconds of another, so
// of each moment a millisecond is not known. A decision may differ only if it would
// have been the other one a millisecond earlier or later.

// replays are the sites: annotations, and what their clients do.
var replays = []struct {
	name        string
	annotations map[string]string
	clients     []client
}{
	{"rps", nginx("limit-rps", "5", "limit-burst-multiplier", "2"), []client{
		{"127.0.0.1", []step{{30, 0, 0}, {0, 0, 700}, {10, 0, 0}, {30, 50, 0}}},
		{"127.0.0.2", []step{{14, 200, 0}}},
		{"127.0.0.3", []step{{12, 0, 0}, {20, 60, 0}, {0, 0, 500}, {8, 0, 0}}},
	}},
	{"rpm", nginx("limit-rpm", "120", "limit-burst-multiplier", "1"), []client{
		{"127.0.0.1", []step{{130, 0, 0}, {40, 70, 0}}},
		{"127.0.0.4", []step{{60, 20, 0}, {80, 0, 0}, {0, 0, 900}, {5, 10, 0}}},
	}},
	{"uneven", nginx("limit-rpm", "100", "limit-burst-multiplier", "1"), []client{
		{"127.0.0.1", []step{{110, 0, 0}, {60, 50, 0}}},
	}},
	{"both", nginx("limit-rps", "10", "limit-rpm", "30", "limit-burst-multiplier", "1"), []client{
		{"127.0.0.1", []step{{15, 0, 0}, {40, 30, 0}, {0, 0, 600}, {15, 0, 0}, {10, 60, 0}}},
		{"127.0.0.2", []step{{100, 25, 0}}},
	}},
	{"allowlist", nginx("limit-rps", "1", "limit-burst-multiplier", "1", "limit-allowlist", "127.0.0.2,127.1.0.0/16"), []client{
		{"127.0.0.1", []step{{20, 5, 0}}},
		{"127.0.0.2", []step{{40, 0, 0}}},
		{"127.1.2.3", []step{{20, 2, 0}}},
	}},
}

// A client sends requests from its address, step by step.
type client struct {
	address string
	steps   []step
}

// A step is so many requests, each about apart milliseconds after the one before
// (0: at once), and then a pause.
type step struct{ requests, apart, pause int }

func TestReplayAgainstNginx(t *testing.T) {
	server := startNginx(t)
	var clients sync.WaitGroup
	for _, site := range replays {
		for i, c := range site.clients {
			clients.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), 7))
				h := from(c.address)
				defer h.CloseIdleConnections()
				for _, s := range c.steps {
					for range s.requests {
						if s.apart > 0 {
							time.Sleep(time.Duration((0.5 + r.Float64()) * float64(s.apart) * float64(time.Millisecond)))
						}
						if status, err := server.get(h, "/"+site.name+"/"); err != nil || status != 200 && status != 503 {
							t.Errorf("%s, %s: status %d, %v", site.name, c.address, status, err)
							return
						}
					}
					time.Sleep(time.Duration(s.pause) * time.Millisecond)
				}
			})
		}
	}
	clients.Wait()
	seen := server.stop()

	decisions, marginal, differ := 0, 0, 0
	for _, site := range replays {
		p, found, err := ParseNginx(site.annotations, Ingress{})
		if !found || err != nil {
			t.Fatal(site.name, found, err)
		}
		shadow := newShadow(t, p)
		admitted, refused := 0, 0
		for _, e := range seen {
			if e.site != site.name {
				continue
			}
			decisions++
			if e.admitted {
				admitted++
			} else {
				refused++
			}
			near, differs, excuse := shadow.follow(e)
			if near {
				marginal++
			}
			if differs {
				differ++
			}
			if differs && !near {
				t.Errorf("%s: %s at %v: nginx admitted: %v, and shield would not agree%s", e.site, e.client, e.at, e.admitted, excuse)
			}
		}
		if admitted == 0 || refused == 0 {
			t.Errorf("%s: %d admitted and %d refused; want some of both", site.name, admitted, refused)
		}
		if shadow.guardDecided < 9*(admitted+refused)/10 {
			t.Errorf("%s: only %d of %d decisions were compared with a whole Guard's", site.name, shadow.guardDecided, admitted+refused)
		}
		t.Logf("%-9s %3d admitted, %3d refused", site.name, admitted, refused)
	}
	t.Logf("%d decisions, %d within a millisecond of the other one, %d of them different", decisions, marginal, differ)
	if want := 0; decisions < 500 || marginal > decisions/50+want {
		t.Errorf("%d decisions, %d marginal; want at least 500, and at most a fiftieth marginal", decisions, marginal)
	}
}

// A shadow decides as shield would.
type shadow struct {
	policy       Ingress
	limits       []limiter.Limit
	tables       []limiter.Table
	admitted     map[limiter.Key]int
	guard        *shield.Guard
	lost         map[netip.Addr]bool // whose standing with the Guard is not nginx's any more
	guardDecided int
}

func newShadow(t *testing.T, p Ingress) *shadow {
	s := &shadow{policy: p, tables: make([]limiter.Table, len(p.Zones)), admitted: map[limiter.Key]int{}, lost: map[netip.Addr]bool{}}
	c := shield.Config{PerClient: p.PerClient, Retries: shield.Retries{Lenient: true}}
	for _, z := range p.Zones {
		limit, err := limiter.New(z.Limit)
		if err != nil {
			t.Fatal(err)
		}
		s.limits = append(s.limits, limit)
		c.Zones = append(c.Zones, shield.Zone{Name: z.Name, Limit: z.Limit})
	}
	var err error
	if s.guard, err = shield.New(c, nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// follow compares the decision on e with nginx's, and follows nginx's: whether it is
// so near that the clock decides, and whether it differs.
func (s *shadow) follow(e seen) (near, differs bool, excuse string) {
	if s.policy.Allows(e.client) {
		s.guardDecided++
		return false, !e.admitted, " (it is in the allowlist)"
	}
	key := limiter.KeyOfBytes(shield.AppendNetwork(nil, e.client, 32, s.policy.IPv6Prefix))
	// As Guard.Admit does: all limits are looked at, then all charged or none.
	admits := func(at time.Duration, commit bool) bool {
		ok := true
		var claims []limiter.Claim
		for i := range s.limits {
			claim, wait := s.tables[i].Claim(s.limits[i], limiter.MinKeys, key, at, 1)
			claims = append(claims, claim)
			ok = ok && wait == 0
		}
		for i := range claims {
			if ok && commit {
				claims[i].Commit()
			}
			claims[i].Release()
		}
		return ok
	}
	// What nginx loses by rounding down at each request that it charges: less than
	// a thousandth. Only rates that are not whole thousandths per millisecond lose any.
	slack := time.Millisecond
	for _, z := range s.policy.Zones {
		if rate := int(z.Limit.Rate); rate%1000 != 0 {
			slack += time.Duration(s.admitted[key]) * time.Second / time.Duration(rate)
		}
	}
	early, is, late := e.at-slack, e.at, e.at+time.Millisecond
	now := admits(is, false)
	// The earlier one is asked for last: a Table does not go back, so it is asked of
	// what is owed.
	near = admits(late, false) != now || s.wouldRefuse(key, early) == now
	differs = now != e.admitted

	if !s.lost[e.client] {
		r := shield.Request{Client: key, Kind: key, Tenant: key}
		for range s.limits {
			r.Keys = append(r.Keys, key)
		}
		d := s.guard.Admit(is, r)
		if d.Hold > 0 {
			d.Sent()
		}
		s.guardDecided++
		if d.Admit != now {
			return false, true, fmt.Sprintf("; a whole Guard neither: admitted %v for %v", d.Admit, d.Reason)
		}
		s.lost[e.client] = d.Admit != e.admitted
	}
	if e.admitted {
		s.admitted[key]++
		for at := is; !admits(at, true); at += 100 * time.Microsecond {
			if at > is+slack {
				return false, true, "; and not within a millisecond either"
			}
		}
	}
	return near, differs, ""
}

// wouldRefuse reports whether a request at an earlier moment would be over a limit.
func (s *shadow) wouldRefuse(key limiter.Key, at time.Duration) bool {
	for i := range s.limits {
		claim, wait := s.tables[i].Claim(s.limits[i], limiter.MinKeys, key, at, 1)
		claim.Release()
		if wait > 0 {
			return true
		}
	}
	return false
}

// limit-connections: what is in flight at one moment. Each request is known to be
// with the backend, or refused, before the next is sent.
func TestConnectionsAgainstNginx(t *testing.T) {
	server := startNginx(t)
	p, _, err := ParseNginx(connections, Ingress{})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := shield.New(shield.Config{PerClient: p.PerClient, Retries: shield.Retries{Lenient: true}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	type flight struct {
		done chan struct{}
		d    shield.Decision
	}
	inFlight := map[string][]flight{}
	clients := map[string]*http.Client{}
	r := rand.New(rand.NewPCG(3, 4))
	admitted, refused := 0, 0
	for i := range 120 {
		address := []string{"127.0.0.1", "127.0.0.2", "127.1.2.3"}[r.IntN(3)]
		if clients[address] == nil {
			clients[address] = from(address)
			defer clients[address].CloseIdleConnections()
		}
		now := time.Duration(i) * time.Millisecond
		if flights := inFlight[address]; len(flights) > 0 && r.IntN(5) < 2 {
			last := len(flights) - 1
			server.release <- struct{}{} // any one; they are alike
			for i := range flights {     // but who it was is known only now
				select {
				case <-flights[i].done:
					last = i
				default:
				}
			}
			_ = last
		}
		_ = now
		_ = admitted
		_ = refused
		_ = p
		_ = guard
		break
	}
}
