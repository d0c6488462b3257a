package caddymodule

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
)

// The tests of state that outlives reloads name, in the past tense, what went wrong in other
// limiters for Caddy.

// zoned is a shield with a zone that counts by X-Key.
func zoned(rate, burst int) string {
	return fmt.Sprintf(`{"handler": "shield", "name": "s", "zones": [
		{"name": "z", "key": "{http.request.header.X-Key}", "rate": %d, "per": "1h", "burst": %d}
	]}`, rate, burst)
}

// badSetups are configs that fail, in the order in which Caddy finds out. good
// is a shield that is itself in order.
func badSetups(t *testing.T, good string) []badSetup {
	// Caddy itself could share a port with itself, but not with others.
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	return []badSetup{
		{"an unknown field", setup{handlers: good + `, {"handler": "shield", "zone": []}`}, "unknown field"},
		{"an unknown app", setup{apps: `"nothing": {},`, handlers: good}, "unknown module"},
		{"a handler that fails before shield", setup{handlers: failingHook + "," + good}, errHook.Error()},
		{"a handler that fails after shield", setup{handlers: good + "," + failingHook}, errHook.Error()},
		{"a shield that is out of range", setup{handlers: good + `, {"handler": "shield", "name": "s2", "zones": [{"name": "z2", "rate": 0}]}`}, "rate is missing or 0"},
		{"a shield that rejects its last field", setup{handlers: good + `, {"handler": "shield", "name": "s2", "zones": [{"name": "z2", "rate": 1}], "pushback": {"body": "poem"}}`}, "poem"},
		{"a zone that is defined twice", setup{handlers: good + `, {"handler": "shield", "name": "s2", "zones": [{"name": "z", "rate": 7}]}`}, "defined twice"},
		{"a matcher that does not exist", setup{handlers: good + `, {"handler": "shield", "name": "s2", "zones": [{"name": "z2", "rate": 1, "match": [{"moon": "full"}]}]}`}, "unknown module"},
		{"a port that is taken", setup{listen: taken.Addr().String(), handlers: good}, "address already in use"},
	}
}

type badSetup struct {
	name  string
	setup setup
	want  string // a part of the error
}

// A config that failed took away the state of the running one, and the next good one began
// with empty quotas. In any order of good and bad configs, each running handler has one
// reference to each of its states, and there are no other references.
func TestFailedReloadKeepsQuotas(t *testing.T) {
	one, two := zoned(1, 1)+","+respondOK, zoned(1, 1)+","+zoned(1, 1)+","+respondOK
	r := start(t, setup{handlers: one})
	r.wantStatus(http.StatusOK, "/", "X-Key", "k")
	refs, bad := 1, badSetups(t, zoned(9, 50)) // which would admit the client
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 30 {
		which := i
		if i > len(bad) {
			which = rng.IntN(len(bad) + 6)
		}
		switch {
		case which < len(bad):
			if err := r.tryLoad(bad[which].setup); err == nil || !strings.Contains(err.Error(), bad[which].want) {
				t.Errorf("%s: %v, want an error with %q", bad[which].name, err, bad[which].want)
			}
		case which%2 == 0:
			r.load(setup{handlers: two})
			refs = 2
		default:
			r.load(setup{handlers: one})
			refs = 1
		}
		r.wantStatus(http.StatusTooManyRequests, "/", "X-Key", "k")
		wantRefs(t, map[any]int{"zone z": refs, "shield s": refs})
	}
}

// A limit of zero was a panic at the first request. A setting that is out of range, misspelt
// or contradictory is an error of the config, and the error says what is wrong: beyond what
// TestMistakesNameTheirLine has, what JSON alone can say. It leaves nothing behind, and shows no secret, "horse".
func TestBadConfigIsAnError(t *testing.T) {
	const five = `"concurrency": {"limit": 5}`
	zone := func(fields string) string {
		return `{"handler": "shield", "name": "s", "zones": [{"name": "z", "rate": 10` + fields + `}]}`
	}
	with := func(fields string) string { return `{"handler": "shield", "name": "s", ` + fields + `}` }
	retries := func(fields string) string { return with(five + `, "retries": {` + fields + `}`) }
	tickets := func(secret string) string { return retries(`"tickets": true, "secret": "` + secret + `"`) }
	r := &rig{T: t, addr: freeAddr(t)}
	for _, c := range []struct{ handlers, want string }{
		{with(`"zones": [null]`), "a zone or a class is null"},
		{with(`"zone": []`), `unknown field "zone"`},
		{zone(`, "per": 0`), "per is 0; use more"},
		{zone(`, "ipv6_prefix": 129`), "ipv6_prefix is 129; use 1 to 128"},
		{zone(`, "key": "{client_ip}"`), "placeholder {client_ip} cannot identify a client"}, // the Caddyfile's short form
		{zone(`, "match": [{"moon": "full"}]`), "unknown module: http.matchers.moon"},
		{with(`"zones": [{"rate": 1}, {"rate": 1}]`), `zone "s/clients": another zone has this name`},
		{with(`"concurrency": {}`), "concurrency limit is 0; use 1 to 1000000"},
		{with(`"concurrency": {"limit": 5, "adaptive": true}`), "concurrency has several of limit, adaptive and target; use only one"},
		{with(`"concurrency": {"limit": 5, "initial": 4}`), "concurrency limit is 5, with options of an adaptive limit"},
		{with(`"concurrency": {"limit": 5, "per": {"limit": 1000001}}`), "concurrency per client is 1000001; use 1 to 1000000"},
		{with(`"concurrency": {"limit": 5, "per": {"key": "{http.request.uuid}", "limit": 5}}`), `{http.request.uuid} cannot identify a client`},
		{with(five + `, "timeout": 1`), "timeout is 1ns; use"},
		{with(five + `, "queue": {}`), "queue: size is missing; use 1 to 10000, or off"},
		{with(five + `, "queue": {"size": -1}`), "queue: size is -1; use 1 to 10000"},
		{with(five + `, "queue": {"off": true, "size": 5}`), "queue: off is set, with a size or a timeout"},
		{with(five + `, "classes": [null]`), "a zone or a class is null"},
		{with(five + `, "classes": [{"name": "critical", "share": 0}]`), `class "critical": share is 0; use more than 0, or leave it out for the default`},
		{with(five + `, "classes": [{"name": "critical", "match": [{}]}]`), `class "critical": match is empty`},

		{tickets("correct horse"), "secret has 13 bytes; use at least 16"},
		{retries(`"secret": "correct horse battery staple"`), "secret is set, but tickets are off; use both or neither"},
		{tickets("correct horse battery staple {horse}"), "secret has an empty or unknown placeholder"},
		{tickets("correct horse battery staple {env.SHIELD_TEST_NO_SUCH_SECRET}"), "secret has an empty or unknown placeholder"},
		{tickets("{file./no/such/secret}"), "secret has an empty or unknown placeholder"},

		// One name, two definitions.
		{zone("") + "," + strings.Replace(zone(`, "burst": 3`), `"s"`, `"t"`, 1), `shield "t": zone "z" is defined twice, with different burst; use one definition, or two names`},
		{with(five+`, "queue": {"size": 5}`) + "," + with(five), `shield "s" is defined twice, with different queue`},
		{with(five+`, "classes": [{"name": "critical"}]`) + "," + with(five+`, "classes": [{"name": "critical", "share": 0.9}]`), `shield "s" is defined twice`},
		{retries(`"max_clients": 5000`) + "," + retries(``), `retries of shield "s" is defined twice, with different max_clients`},
		{tickets("correct horse battery staple") + "," + tickets("the other horse battery staple"), `retries of shield "s" is defined twice, with different secret; use one`},
		{tickets("correct horse battery staple") + "," + retries(``), `retries of shield "s" is defined twice, with different secret and tickets; use one`},
	} {
		if err := r.tryLoad(setup{handlers: c.handlers + "," + respondOK}); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "horse") {
			t.Errorf("%s\n%v\nwant an error with %q, and no secret", c.handlers, err, c.want)
		}
		wantRefs(t, nil)
	}
	if err := r.tryLoad(setup{apps: `"shield": {"mode": "off"},`, handlers: respondOK}); err == nil || !strings.Contains(err.Error(), `mode is "off"; use enforce or observe`) {
		t.Errorf("the app: %v", err)
	}
}

// One name with one definition is one zone, and one backend, wherever it stands.
func TestSameDefinitionCountsTogether(t *testing.T) {
	const shielded = `{"handler": "shield", "name": "s", "pushback": {"dither": false}, "capacity": {"rate": 1, "per": "1h", "burst": 4}, "zones": [
		{"name": "z", "key": "{http.request.header.X-Key}", "rate": 1, "per": "1h", "burst": 3}
	]}`
	// A setting that is the default counts as one that is left out.
	explicit := strings.NewReplacer(`"name": "s",`, `"name": "s", "mode": "enforce", "retries": {"enforce": true, "key": "{http.vars.client_ip}"},`, `"name": "z",`, `"name": "z", "max_keys": 200000,`).Replace(shielded)
	r := start(t, setup{handlers: `{"handler": "subroute", "routes": [
		{"match": [{"path": ["/a"]}], "handle": [` + shielded + `]},
		{"match": [{"path": ["/b"]}], "handle": [` + explicit + `]}
	]},` + respondOK})
	wantRefs(t, map[any]int{"zone z": 2, "shield s": 2})
	for _, step := range []struct {
		path, key string
		status    int
	}{
		{"/a", "k", 200}, {"/b", "k", 200}, {"/a", "k", 200},
		{"/a", "k", 429}, {"/b", "k", 429}, // the zone's burst is 3
		{"/a", "l", 200},
		{"/a", "l", 503}, {"/b", "m", 503}, // the capacity's is 4
	} {
		r.wantStatus(step.status, step.path, "X-Key", step.key)
	}
	if s := r.status(); len(s.Shields) != 1 || len(s.Zones) != 1 {
		t.Errorf("%d shields and %d zones in the status, want one of each", len(s.Shields), len(s.Zones))
	}
}

// There was a data race in every rejection. Run with -race, this test writes all that a
// request writes, while all readers read it, and operators change something. Each request is admitted or rejected.
func TestHammerWhileBeingWatched(t *testing.T) {
	r := start(t, setup{handlers: `{"handler": "shield", "name": "s", "retries": {"max_clients": 1024}, "concurrency": {"limit": 20}, "capacity": {"rate": 1e4, "burst": 300}, "zones": [
		{"name": "per_key", "key": "{http.request.header.X-Key}", "rate": 100, "burst": 4, "max_keys": 10000},
		{"name": "per_path", "key": "{http.request.uri.path}", "rate": 1000, "burst": 500}
	]},` + respondOK})
	h, app, registry := r.handler(), r.app(), caddyRegistry(t)
	var hammered atomic.Bool
	var watched, hammering sync.WaitGroup
	for _, watch := range []func(){
		func() { _, _ = registry.Gather() },
		func() { app.Status(true) },
		func() { app.reportOnce(shield.Now()) },
		func() { // overrides come and go meanwhile
			is := demand(t, `{"kind": "set", "shield": "s", "setting": "concurrency", "value": "19", "for": "1h"}`)
			demand(t, `{"kind": "block", "client": "192.0.2.9", "for": "1h"}`)
			explained(t, "client=192.0.2.9")
			forgive(t, "192.0.2.9", "")
			end(t, is)
		},
	} {
		watched.Go(func() {
			for !hammered.Load() {
				watch()
			}
		})
	}

	const clients, each = 64, 25
	var admitted, rejected atomic.Int64
	next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
		admitted.Add(1)
		runtime.Gosched()
		return nil
	})
	for client := range clients {
		hammering.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(client), 3))
			for range each {
				w := httptest.NewRecorder()
				header := http.Header{"X-Key": {strconv.Itoa(rng.IntN(100))}}
				if rng.IntN(4) == 0 {
					header.Set("Accept", "text/event-stream")
				}
				if err := h.ServeHTTP(w, request("/"+strconv.Itoa(rng.IntN(3)), "192.0.2.1", header), next); err != nil {
					t.Error(err)
				}
				if w.Code != http.StatusOK {
					rejected.Add(1)
				}
			}
		})
	}
	hammering.Wait()
	hammered.Store(true)
	watched.Wait()

	s := r.status()
	is := s.Shields[0]
	if admitted.Load()+rejected.Load() != clients*each || is.Admitted != uint64(admitted.Load()) || sum(is.Rejected) != uint64(rejected.Load()) || sum(is.Observed) != 0 {
		t.Errorf("counted %d admitted and %v rejected; seen %d and %d of %d", is.Admitted, is.Rejected, admitted.Load(), rejected.Load(), clients*each)
	}
	if zones := s.Zones[0].Rejected + s.Zones[1].Rejected; zones != is.Rejected["quota"] || is.InFlight != 0 {
		t.Errorf("the zones rejected %d, the shield %d for quota; %d are in flight after all", zones, is.Rejected["quota"], is.InFlight)
	}
}

func sum(m map[string]uint64) (n uint64) {
	for _, v := range m {
		n += v
	}
	return n
}

// series returns names and labels of all of shield's metrics, sorted.
func series(t *testing.T) (all []string) {
	t.Helper()
	families, err := caddyRegistry(t).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "caddy_shield_") {
			continue
		}
		for _, m := range f.GetMetric() {
			s := f.GetName()
			for _, l := range m.GetLabel() {
				s += fmt.Sprintf(" %s=%q", l.GetName(), l.GetValue())
			}
			all = append(all, s)
		}
	}
	slices.Sort(all)
	return all
}

// Every handler had a goroutine, and some outlived their config. A config has one,
// however many handlers it has, and nothing outlives the config.
func TestNoGoroutineOutlivesItsConfig(t *testing.T) {
	each := 1 // the reporter
	if *everyDoor {
		each++ // the server accepts connections through the door
	}
	three := setup{handlers: zoned(1, 1) + "," + zoned(1, 1) + `, {"handler": "shield", "name": "other", "concurrency": {"limit": 1}},` + respondOK}
	r := start(t, three)
	r.client.Transport.(*http.Transport).DisableKeepAlives = true
	reporters := func(want int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d goroutines of shield", want), func() bool { return len(shieldStacks()) == want })
	}
	reporters(each)
	before := 0
	bad := badSetups(t, zoned(1, 1))
	for i := range 20 {
		r.load(three)
		r.get("/")
		_ = r.tryLoad(bad[i%len(bad)].setup)
		if i == 1 { // by now Caddy has started what it keeps
			before = settled()
		}
	}
	reporters(each)
	// Caddy lets its old servers go by and by; ours must not add up.
	eventually(t, fmt.Sprintf("at most %d goroutines again", before+5), func() bool { return runtime.NumGoroutine() <= before+5 })
	if err := caddy.Stop(); err != nil {
		t.Error(err)
	}
	reporters(0)
}

// settled returns the number of goroutines when it has been the same for a while.
func settled() (n int) {
	for same := 0; same < 10; same++ {
		if is := runtime.NumGoroutine(); is != n {
			n, same = is, 0
		}
		<-time.After(3 * time.Millisecond)
	}
	return n
}

// shieldStacks returns the stacks of all goroutines in this module, without
// those of tests.
func shieldStacks() (stacks []string) {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		if strings.Contains(stack, "herdshield/shield") && !strings.Contains(stack, "testing.tRunner") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

// In HTTP/3 early data a sender may claim any address, and all such clients shared one
// bucket. Such a request is told to come again after the handshake (RFC 8470, section 5.2),
// and spends no quota. This holds only if a quota depends on the address, and observe mode
// rejects no request.
func TestEarlyDataSpendsNoQuota(t *testing.T) {
	perClient := func(key string) string {
		return fmt.Sprintf(`, "concurrency": {"limit": 5, "per": {"key": %q, "limit": 1}}`, key)
	}
	for _, c := range []struct {
		name, more, zone string
		status           int
		charged          uint64
	}{
		{"the default key", "", "", 425, 0},
		{"the peer's address", "", `, "key": "{http.request.remote.host}"`, 425, 0},
		{"a header", "", `, "key": "{http.request.header.X-Key}"`, 200, 1},
		{"a zone that the request is not in", "", `, "match": [{"path": ["/other"]}]`, 200, 0},
		{"a zone that the request is in", "", `, "match": [{"path": ["/early"]}]`, 425, 0},
		{"observe mode", `, "mode": "observe"`, "", 200, 0},
		{"in flight, the default key", perClient(""), `, "key": "{http.request.host}"`, 425, 0},
		{"in flight, a header", perClient("{http.request.header.X-Key}"), `, "key": "{http.request.host}"`, 200, 1},
	} {
		r := start(t, setup{handlers: `{"handler": "shield", "name": "s", "zones": [{"name": "z", "rate": 1, "per": "1h"` + c.zone + `}]` + c.more + `},` + respondOK})
		early := request("/early", "192.0.2.1", http.Header{"X-Key": {"k"}})
		early.TLS = &tls.ConnectionState{HandshakeComplete: false}
		status := 0
		err := r.handler().ServeHTTP(httptest.NewRecorder(), early, caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
			status = http.StatusOK
			return nil
		}))
		if rejection, is := errors.AsType[caddyhttp.HandlerError](err); is {
			status = rejection.StatusCode
		}
		if s := r.status(); status != c.status || s.Zones[0].Admitted != c.charged || s.Shields[0].InFlight != 0 || sum(s.Shields[0].Rejected)+sum(s.Shields[0].Observed) != 0 {
			t.Errorf("%s: %d, %d charged, %+v; want %d, %d charged and none rejected", c.name, status, s.Zones[0].Admitted, s.Shields[0], c.status, c.charged)
		}
		_ = caddy.Stop()
	}
}

// Caddy cleans up a config while its requests are still being served, and two configs serve
// at once. Over reloads under load the limit in flight holds, no request is lost, and each
// that arrives is counted once.
//
// A reload closes idle connections. A client may notice after it has sent a request, and sends it again on another
// connection, as RFC 9110, section 9.2.2 allows. Linux also resets connections that the old socket has not accepted
// yet. No request is sent again after a part of its response has come, and a broken answer is an error.
func TestReloadUnderLoad(t *testing.T) {
	const clients, reloads = 16, 8
	var inBackend, most, arrived, served, rejected, again atomic.Int64
	proxy := proxyTo(serveBackend(t, func(w http.ResponseWriter, _ *http.Request) {
		n := inBackend.Add(1)
		for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
		}
		dawdle(3 * time.Millisecond)
		inBackend.Add(-1)
		fmt.Fprint(w, "served")
	}), "")
	arrives := newHook(t, func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
		arrived.Add(1)
		return next.ServeHTTP(w, r)
	})
	config := func(limit int) setup {
		return setup{handlers: arrives + fmt.Sprintf(`, {"handler": "shield", "name": "s", "concurrency": {"limit": %d}, "pushback": {"dither": false}, "retries": {"key": "{http.request.header.X-Visit}"}, "zones": [
			{"name": "z", "key": "{http.request.header.X-Key}", "rate": 200, "burst": 200}]},`, limit) + proxy}
	}
	r := start(t, config(8))
	visit := func(id int, visit int64) { // each visit is a new client, so none is too early
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.addr, nil)
		req.Header.Set("X-Key", strconv.Itoa(id))
		req.Header.Set("X-Visit", strconv.FormatInt(visit, 10))
		resp, err := r.client.Do(req)
		if err != nil {
			idle := strings.Contains(err.Error(), "server closed idle connection") // a new one, which a door was reading
			if !idle && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.EPIPE) {
				t.Errorf("lost: %v", err)
			}
			again.Add(1)
			return
		}
		switch a, err := answer(resp, nil); {
		case err != nil:
			t.Errorf("lost half of a %d: %v", resp.StatusCode, err)
		case a.body == "served":
			served.Add(1)
		case (a.StatusCode == http.StatusTooManyRequests || a.StatusCode == http.StatusServiceUnavailable) && a.Header.Get("Retry-After") != "":
			rejected.Add(1)
			dawdle(20 * time.Millisecond) // a client that is slow, but not as patient as it is told to be
		default:
			t.Errorf("%d %q", a.StatusCode, a.body)
		}
	}
	// under has clients come until load has ended, which can wait for progress, and returns the most in flight.
	under := func(load func(progress func(n int64))) int64 {
		most.Store(0)
		var stop atomic.Bool
		var loading sync.WaitGroup
		for id := range clients {
			loading.Go(func() {
				for !stop.Load() {
					visit(id, rand.Int64())
				}
			})
		}
		load(func(n int64) {
			was := served.Load()
			eventually(t, "requests are served", func() bool { return served.Load() >= was+n })
		})
		stop.Store(true)
		loading.Wait()
		r.drains()
		return most.Load()
	}
	if most := under(func(progress func(int64)) {
		for i := range reloads {
			progress(15)
			if err := caddy.Load(config([]int{4, 8}[i%2]).json(r.addr), true); err != nil {
				t.Fatal(err)
			}
		}
		progress(50)
	}); most != 8 {
		t.Errorf("up to %d in flight, want the largest limit, 8", most)
	}
	r.load(config(4))
	if most := under(func(progress func(int64)) { progress(100) }); most != 4 {
		t.Errorf("up to %d in flight under the last limit, want 4", most)
	}
	is := r.status().Shields[0]
	if counted := is.Admitted + sum(is.Rejected); counted != uint64(arrived.Load()) || served.Load()+rejected.Load() != arrived.Load() {
		t.Errorf("%d arrived, %d are counted, and %d were answered", arrived.Load(), counted, served.Load()+rejected.Load())
	}
	if n := again.Load(); n > clients*reloads/4 {
		t.Errorf("%d requests were sent again in %d reloads", n, reloads)
	}
}

// With a request in flight, Caddy stops and its states leave the pool. The request is served
// to its end and releases what it holds, and a new config begins anew.
func TestStopWhileInFlight(t *testing.T) {
	const shielded = `{"handler": "shield", "name": "s", "concurrency": {"limit": 2}, "zones": [{"name": "z", "rate": 1, "per": "1h", "burst": 1}]},`
	g := newGate(t)
	r := start(t, setup{handlers: shielded + proxyTo(g.Server, "")})
	result := make(chan answered, 1)
	go func() {
		a, err := answer(http.Get("http://" + r.addr + "/"))
		if err != nil {
			t.Error(err)
		}
		result <- a
	}()
	receive(t, "a request at the backend", g.entered)
	r.wantStatus(http.StatusTooManyRequests, "/")
	old := r.app().configured[0].record
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	wantRefs(t, nil)
	if n := old.Stats(shield.Now()).InFlight; n != 1 {
		t.Errorf("%d in flight after the stop, want 1", n)
	}

	r.load(setup{handlers: shielded + respondOK}) // while it is still there
	r.client.CloseIdleConnections()
	r.wantStatus(http.StatusOK, "/")
	g.goOn <- struct{}{}
	if a := receive(t, "a response", result); a.StatusCode != http.StatusOK || a.body != "served" {
		t.Errorf("the request that was in flight got %d %q, want it served", a.StatusCode, a.body)
	}
	eventually(t, "the old permit is given back", func() bool { return old.Stats(shield.Now()).InFlight == 0 })
	if n := r.inFlight(); n != 0 {
		t.Errorf("%d in flight in the new state, want 0", n)
	}
}
