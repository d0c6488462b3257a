package agreement

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/internal/configfile"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/lab/must"
	"github.com/herdshield/shield/loadtest/live"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/loadtest/sim"
	"github.com/herdshield/shield/share/redis/testserver"
)

// step is how finely both sides look at what reaches the backend.
const step = 10 * time.Millisecond

// caddyfile returns the text that both sides read.
func (s scenario) caddyfile(admin, address, upstream string) string {
	return fmt.Sprintf(`{
	admin %s
	persist_config off
	log {
		output discard
	}
	servers {
		trusted_proxies static 127.0.0.0/8
		trusted_proxies_strict
	}
}
http://%s {
	%s
	reverse_proxy %s
}
`, admin, address, s.config, upstream)
}

func (s scenario) population(t *testing.T) clients.Population {
	t.Helper()
	mix := must.Get(clients.Parse(s.mix))(t)
	return mix
}

func (s scenario) simulate(t *testing.T, seed uint64) measured {
	t.Helper()
	shields := must.Get(configfile.Read("Caddyfile", []byte(s.caddyfile("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))))(t)
	r, err := sim.Run(sim.Scenario{
		Name: s.name, Seed: seed,
		Clients: s.herd, Within: s.within, Mix: s.population(t), Background: s.background, Warmup: s.warmup,
		Service: sim.Service{Mean: s.service},
		Plant: &plant.Config{
			Workers: s.workers, Queue: queueLength, Outage: s.outage, Rejects: s.retryAfter > 0, RetryAfter: s.retryAfter,
		},
		Timeout: s.timeout, Patience: s.patience, Config: shields[0].Config, Until: s.until, Bin: step,
	}, nil)
	must.Do(t, err)
	m := measured{
		served: float64(r.Served), goodput: float64(r.Served) / s.within.Seconds(),
		perSuccess: r.PerSuccess(), drained: r.Drained.Seconds(),
	}
	if s.background == 0 {
		m.rejected = float64(r.Rejected) / float64(r.Decided)
	}
	herdAt := int(s.warmup / step)
	var reached []int
	limits, n := 0, 0
	for i, b := range r.Series {
		reached = append(reached, int(b.Herd.Admitted+b.NewClients.Admitted))
		if at := time.Duration(i-herdAt) * step; s.limitFrom > 0 && at >= s.limitFrom && at < s.within {
			limits += int(b.Limit)
			n++
		}
	}
	m.busiest = busiest(reached)
	m.limit = float64(limits) / float64(max(1, n))
	for _, p := range r.Policies {
		m.policies = append(m.policies, waits{p.P50.Seconds(), p.P90.Seconds(), p.P99.Seconds()})
	}
	return m
}

// busiest returns the most that came within a second, of how many came in each step.
func busiest(steps []int) float64 {
	const second = int(time.Second / step)
	most, sum := 0, 0
	for i, n := range steps {
		sum += n
		if i >= second {
			sum -= steps[i-second]
		}
		most = max(most, sum)
	}
	return float64(most)
}

// gate is the live backend: workers that take requests in the order in which they come, and do
// not notice clients that have gone. It knows when what came, and has the outage. It shares no
// code with plant.Plant.
type gate struct {
	scenario
	free  chan struct{}        // has room for each worker: who waits to send is in the queue
	since func() time.Duration // the herd's first moment; negative before it

	began time.Time
	mu    sync.Mutex
	steps []int // guarded by mu: how many came in each step since it began
}

func (g *gate) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	g.mu.Lock()
	for at := int(time.Since(g.began) / step); len(g.steps) <= at; {
		g.steps = append(g.steps, 0)
	}
	g.steps[len(g.steps)-1]++
	g.mu.Unlock()
	if now := g.since(); now >= g.outage[0] && now < g.outage[1] {
		w.Header().Set("Retry-After", strconv.Itoa(int(g.retryAfter/time.Second)))
		http.Error(w, "outage", http.StatusServiceUnavailable)
		return
	}
	g.free <- struct{}{}
	time.Sleep(g.service)
	<-g.free
}

// load returns one of a run's two loads, the herd or the background, which are
// apart so that the figures are the herd's alone.
func (s scenario) load(t *testing.T, url string, change func(*live.LoadConfig)) *live.Load {
	t.Helper()
	target := must.Get(live.NewTarget(t.Context(), url, false))(t)
	c := live.LoadConfig{Target: target, Mix: s.population(t), Timeout: s.timeout, Patience: s.patience}
	change(&c)
	load := must.Get(live.NewLoad(c))(t)
	return load
}

func (s scenario) live(t *testing.T, seed uint64) measured {
	t.Helper()
	g := &gate{scenario: s, free: make(chan struct{}, s.workers), began: time.Now()}
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	server := &http.Server{Handler: g}
	defer server.Close()
	address, admin := testserver.FreeAddress(t), testserver.FreeAddress(t)
	url := "http://" + address + "/"
	herd := s.load(t, url, func(c *live.LoadConfig) {
		c.Herd, c.Within, c.HerdAfter, c.Connected = s.herd, s.within, s.warmup, s.connected
		c.FirstAddress, c.Seed = netip.MustParseAddr("10.1.0.0"), seed
	})
	g.since = func() time.Duration { _, lasted := herd.Progress(); return lasted - s.warmup }
	go server.Serve(listener) // until it is closed

	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(s.caddyfile(admin, address, listener.Addr().String())), nil)
	must.Do(t, err)
	must.Do(t, caddy.Load(config, true))
	defer func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
	}()

	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	defer others.Wait()
	defer cancel()
	if s.background > 0 {
		background := s.load(t, url, func(c *live.LoadConfig) {
			c.Rate, c.Duration = s.background, s.warmup+s.until
			c.FirstAddress, c.Seed = netip.MustParseAddr("10.2.0.0"), seed+1000
		})
		others.Go(func() { background.Run(ctx) })
	}
	var limits, samples int
	if s.limitFrom > 0 {
		others.Go(func() {
			for tick := time.NewTicker(100 * time.Millisecond); ; {
				select {
				case <-ctx.Done():
					tick.Stop()
					return
				case <-tick.C:
				}
				if now := g.since(); now >= s.limitFrom && now < s.within {
					limits += limitOf(t, admin)
					samples++
				}
			}
		})
	}
	r := herd.Run(ctx)
	cancel()
	others.Wait()
	if r.Stopped != nil || r.Herd.Trying > 0 || r.Herd.Skipped > 0 {
		t.Errorf("stopped: %v; %d still trying, %d skipped", r.Stopped, r.Herd.Trying, r.Herd.Skipped)
	}
	t.Logf("live: answers %v, %d timed out, %d unreachable; clients late by %v at p50, %v at p99, %v at most",
		r.Herd.Responses, r.Herd.TimedOut, r.Herd.Unreachable, r.Herd.Late.P50, r.Herd.Late.P99, r.Herd.Late.Max)
	m := measured{
		served: float64(r.Herd.Served), goodput: float64(r.Herd.Served) / s.within.Seconds(),
		perSuccess: r.Herd.PerSuccess(), drained: (r.Took - s.warmup).Seconds(),
		limit: float64(limits) / float64(max(1, samples)), late: r.Herd.Late.P99,
	}
	g.mu.Lock()
	m.busiest = busiest(g.steps)
	g.mu.Unlock()
	if s.background == 0 {
		m.rejected = float64(r.Herd.Rejected) / float64(r.Herd.Requests)
	}
	for _, p := range r.Policies {
		m.policies = append(m.policies, waits{p.Wait.P50.Seconds(), p.Wait.P90.Seconds(), p.Wait.P99.Seconds()})
	}
	return m
}

// limitOf asks Caddy's admin endpoint for the limit in flight.
func limitOf(t *testing.T, admin string) int {
	resp, err := http.Get("http://" + admin + "/shield/")
	if err != nil {
		t.Error(err)
		return 0
	}
	defer resp.Body.Close()
	var status adminapi.Status
	if err := json.NewDecoder(resp.Body).Decode(&status); err != nil || len(status.Shields) != 1 {
		t.Errorf("%d shields: %v", len(status.Shields), err)
		return 0
	}
	return status.Shields[0].Concurrency
}
