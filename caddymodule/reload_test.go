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
	"path/filepath"
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
	"github.com/herdshield/shield/caddymodule/adminapi"
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
		{"a shield that refuses its last field", setup{handlers: good + `, {"handler": "shield", "name": "s2", "zones": [{"name": "z2", "rate": 1}], "pushback": {"body": "poem"}}`}, "poem"},
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
	one, zone, name := setup{handlers: zoned(1, 1) + "," + respondOK}, zoneKey("z"), backendKey("s")
	two := setup{handlers: zoned(1, 1) + "," + zoned(1, 1) + "," + respondOK}
	r := start(t, setup{handlers: zoned(1, 1) + "," + respondOK})
	if a := r.get("/", "X-Key", "k"); a.StatusCode != http.StatusOK {
		t.Fatalf("the first request got %d, want 200", a.StatusCode)
	}
	refs := 1
	check := func(after string) {
		t.Helper()
		if a := r.get("/", "X-Key", "k"); a.StatusCode != http.StatusTooManyRequests {
			t.Errorf("after %s: %d, want 429", after, a.StatusCode)
		}
		wantRefs(t, map[any]int{zone: refs, name: refs})
	}
	fail := func(b badSetup) {
		t.Helper()
		if err := r.tryLoad(b.setup); err == nil || !strings.Contains(err.Error(), b.want) {
			t.Errorf("%s: %v, want an error with %q", b.name, err, b.want)
		}
		check(b.name)
	}
	check("the start")
	bad := badSetups(t, zoned(1, 1))
	for _, b := range bad {
		fail(b)
	}
	r.load(one)
	check("a good reload")

	rng := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		switch n := rng.IntN(5); n {
		case 0:
			r.load(one)
			refs = 1
			check("a good reload")
		case 1:
			r.load(two)
			refs = 2
			check("a good reload with two handlers")
		default:
			fail(bad[rng.IntN(len(bad))])
		}
	}
}

// A config that failed had changed the limits of the running one.
func TestFailedReloadLeavesLimitsAlone(t *testing.T) {
	const burst = 50
	r := start(t, setup{handlers: zoned(1, burst) + "," + respondOK})
	bad := badSetups(t, zoned(1, 1))
	for i := range burst {
		if i < len(bad) {
			if err := r.tryLoad(bad[i].setup); err == nil {
				t.Fatalf("%s: no error", bad[i].name)
			}
		}
		if a := r.get("/", "X-Key", "k"); a.StatusCode != http.StatusOK {
			t.Fatalf("request %d of %d: %d, want 200", i, burst, a.StatusCode)
		}
	}
	if a := r.get("/", "X-Key", "k"); a.StatusCode != http.StatusTooManyRequests {
		t.Errorf("one more than the burst: %d, want 429", a.StatusCode)
	}
}

// A raised limit had no effect on clients over the old one, for the length of its window.
func TestNewLimitHoldsAtOnce(t *testing.T) {
	for _, c := range []struct {
		name            string
		rate, burst     int // per hour
		used            int
		toRate, toBurst int
		admitted        int // of what follows the reload at once
	}{
		{"a higher burst", 1, 2, 2, 1, 50, 48},
		{"a higher rate and burst", 2, 2, 2, 50, 50, 48},
		{"a higher rate and burst for who has something left", 2, 2, 1, 4, 6, 5},
		{"a lower burst", 1, 50, 2, 1, 5, 3},
		{"a lower burst than is used", 1, 50, 10, 1, 5, 0},
		{"a lower rate", 50, 10, 5, 1, 10, 5},
		{"the same", 1, 5, 3, 1, 5, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, setup{handlers: zoned(c.rate, c.burst) + "," + respondOK})
			for i := range c.burst + 1 {
				if i >= c.used && c.used < c.burst {
					break
				}
				want := http.StatusOK
				if i >= c.used {
					want = http.StatusTooManyRequests
				}
				if a := r.get("/", "X-Key", "k"); a.StatusCode != want {
					t.Fatalf("request %d before the reload: %d, want %d", i, a.StatusCode, want)
				}
			}
			r.load(setup{handlers: zoned(c.toRate, c.toBurst) + "," + respondOK})
			admitted := 0
			for r.get("/", "X-Key", "k").StatusCode == http.StatusOK {
				admitted++
			}
			if admitted != c.admitted {
				t.Errorf("%d admitted after the reload, want %d", admitted, c.admitted)
			}
		})
	}
}

// A limit of zero was a panic at the first request. A setting that is out of range, misspelt
// or contradictory is an error of the config, and the error says what is wrong.
func TestBadConfigIsAnError(t *testing.T) {
	zone := func(fields string) string {
		return `{"handler": "shield", "name": "s", "zones": [{"name": "z", "rate": 10` + fields + `}]}`
	}
	named := func(name string) string {
		return fmt.Sprintf(`{"handler": "shield", "name": "s", "zones": [{"name": %q, "rate": 10}]}`, name)
	}
	with := func(fields string) string { return `{"handler": "shield", "name": "s", ` + fields + `}` }
	words := func(fields string) string { return with(`"concurrency": {"limit": 1}, "pushback": {` + fields + `}`) }
	retries := func(fields string) string { return with(`"concurrency": {"limit": 1}, "retries": {` + fields + `}`) }
	long := strings.Repeat("x", 65)
	r := &rig{T: t, addr: freeAddr(t)}
	for _, c := range []struct{ handlers, want string }{
		{`{"handler": "shield"}`, `shield "srv": nothing is limited; want a zone`},
		{with(`"zones": []`), "nothing is limited"},
		{with(`"zones": [null]`), "zone 0 is null"},
		{with(`"zones": [{"name": "a", "rate": 1}, null]`), "zone 1 is null"},
		{with(`"zone": []`), `unknown field "zone"`},
		{zone(`, "window": "1s"`), `unknown field "window"`},
		{with(`"concurrency": {"limit": 1, "queue": 2}`), `unknown field "queue"`},
		{with(`"capacity": {"rate": 1, "window": 2}`), `unknown field "window"`},
		{words(`"jitter": 1`), `unknown field "jitter"`},

		{with(`"zones": [{"name": "z"}]`), `zone "z": rate is missing or 0; want more than 0`},
		{with(`"zones": [{"name": "z", "rate": 0}]`), `zone "z": rate is missing or 0; want more than 0`},
		{with(`"zones": [{"name": "z", "rate": -1}]`), `rate is -1 per 1s; want more than 0`},
		{with(`"zones": [{"name": "z", "rate": 1e300}]`), "at most 1e9 per second"},
		{with(`"zones": [{"name": "z", "rate": 1e-300}]`), "31 days"},
		{with(`"zones": [{"name": "z", "rate": "10"}]`), "cannot unmarshal string"},
		{with(`"zones": [{"name": "z", "rate": NaN}]`), "invalid character 'N'"}, // JSON has neither
		{with(`"zones": [{"name": "z", "rate": 1e400}]`), "cannot unmarshal number 1e400"},
		{zone(`, "burst": 0`), "burst is 0; want more"},
		{zone(`, "burst": -1`), "burst is -1; want at least 1"},
		{zone(`, "burst": 1.5`), "cannot unmarshal number 1.5"},
		{zone(`, "burst": 9223372036854774784`), "31 days"},
		{zone(`, "per": 0`), "per is 0; want more"},
		{zone(`, "per": "0s"`), "per is 0; want more"},
		{zone(`, "per": "-1s"`), "rate is 10 per -1s"},
		{zone(`, "per": "1ns"`), "at most 1e9 per second"},
		{zone(`, "per": "soon"`), "invalid duration"},
		{zone(`, "cost": 0`), "cost is 0; want more"},
		{zone(`, "cost": -1`), "cost is -1; want 1 to the burst of 10"},
		{zone(`, "cost": 11`), "cost is 11; want 1 to the burst of 10"},
		{zone(`, "max_keys": 0`), "max_keys is 0; want more"},
		{zone(`, "max_keys": 999`), "max_keys is 999; want 10000 to 67108864"},
		{zone(`, "max_keys": 67108865`), "max_keys is 67108865; want 10000 to 67108864"},
		{zone(`, "ipv4_prefix": 0`), "ipv4_prefix is 0; want 1 to 32"},
		{zone(`, "ipv4_prefix": 33`), "ipv4_prefix is 33; want 1 to 32"},
		{zone(`, "ipv6_prefix": 0`), "ipv6_prefix is 0; want 1 to 128"},
		{zone(`, "ipv6_prefix": 129`), "ipv6_prefix is 129; want 1 to 128"},
		{zone(`, "key": "{http.request.remote_ip}"`), "placeholder {http.request.remote_ip} is not known"},
		{zone(`, "key": "{client_ip}"`), "placeholder {client_ip} is not known"}, // the Caddyfile's short form
		{zone(`, "key": "{http.request.uuid}"`), "placeholder {http.request.uuid} differs with every request"},
		{zone(`, "key": "{http.request.host"`), "unclosed {"},
		{zone(`, "key": "http.request.host}"`), "unexpected }"},
		{zone(`, "match": [{"moon": "full"}]`), "unknown module: http.matchers.moon"},
		{zone(`, "match": [{"path": "/"}]`), "match: path: json: cannot unmarshal string"},

		{named("a b"), `zone "a b": name is "a b"; want 1 to 64 letters`},
		{named("ü"), "want 1 to 64 letters"},
		{named(`a\"b`), "want 1 to 64 letters"},
		{named(long), "want 1 to 64 letters"},
		{with(`"zones": [{"rate": 1}, {"rate": 1}]`), `zone "s/per_client": the name is that of another zone`},
		{with(`"zones": [{"name": "z", "rate": 1}, {"name": "z", "rate": 1}]`), `zone "z": the name is that of another zone`},
		{`{"handler": "shield", "name": "a b", "concurrency": {"limit": 1}}`, `name is "a b"; want 1 to 64 letters`},
		{`{"handler": "shield", "name": "` + long + `", "concurrency": {"limit": 1}}`, "want 1 to 64 letters"},

		{with(`"concurrency": {}`), "concurrency limit is 0; want 1 to 1000000"},
		{with(`"concurrency": {"limit": 0}`), "concurrency limit is 0; want 1 to 1000000"},
		{with(`"concurrency": {"limit": -1}`), "concurrency limit is -1; want 1 to 1000000"},
		{with(`"concurrency": {"limit": 1000001}`), "concurrency is 1000001; want 1 to 1000000"},
		{with(`"concurrency": 5`), "cannot unmarshal number"},
		{with(`"concurrency": {"limit": 5, "adaptive": true}`), "concurrency has several of limit, adaptive and target; want one"},
		{with(`"concurrency": {"adaptive": true, "target": "1s"}`), "several of limit, adaptive and target"},
		{with(`"concurrency": {"limit": 5, "max": 9}`), "concurrency limit is 5, with options of an adaptive limit"},
		{with(`"concurrency": {"limit": 5, "probe": false}`), "concurrency limit is 5, with options of an adaptive limit"},
		{with(`"concurrency": {"limit": 5, "probe": true}`), "concurrency limit is 5, with options of an adaptive limit"},
		{with(`"concurrency": {"adaptive": true, "min": 0}`), "concurrency min is 0; want more"},
		{with(`"concurrency": {"adaptive": true, "max": 100001}`), "concurrency: max is 100001; want 1 to 100000"},
		{with(`"concurrency": {"adaptive": true, "min": 9, "max": 8}`), "concurrency: min is 9 and max is 8; want min at most max"},
		{with(`"concurrency": {"adaptive": true, "max": 8, "initial": 9}`), "concurrency: initial is 9; want 2 to 8"},
		{with(`"concurrency": {"adaptive": true, "max_latency": 0}`), "concurrency max_latency is 0; want more"},
		{with(`"concurrency": {"adaptive": true, "max_latency": "-1s"}`), "concurrency: max_latency is -1s"},
		{with(`"concurrency": {"target": 0}`), "concurrency target is 0; want more"},
		{with(`"concurrency": {"target": "-1s"}`), "concurrency: target is -1s; want 1ms to 1m0s"},
		{with(`"concurrency": {"target": "1s", "max_latency": "2s"}`), "want it alone, because it needs no baseline"},
		{with(`"concurrency": {"target": "1s", "probe": false}`), "want it alone, because it needs no baseline"},
		{with(`"concurrency": {"limit": 5, "per": {"key": "{http.request.header.X}"}}`), "concurrency per client is 0; want 1 to 1000000"},
		{with(`"concurrency": {"limit": 5, "per": {"limit": 1000001}}`), "concurrency per client is 1000001; want 1 to 1000000"},
		{with(`"concurrency": {"limit": 5, "per": {"key": "{http.request.uuid}", "limit": 5}}`), `concurrency per client: key is "{http.request.uuid}": placeholder {http.request.uuid} differs with every request`},
		{with(`"concurrency": {"per": {"limit": 5}}`), "concurrency limit is 0; want 1 to 1000000"},
		{with(`"concurrency": {"limit": 5}, "queue": {}`), "queue: size is missing; want 1 to 10000, or off"},
		{with(`"concurrency": {"limit": 5}, "queue": {"size": 0}`), "queue: size is 0; want 1 to 10000"},
		{with(`"concurrency": {"limit": 5}, "queue": {"size": -1}`), "queue: size is -1; want 1 to 10000"},
		{with(`"concurrency": {"limit": 5}, "queue": {"size": 10001}`), "queue: size is 10001; want 1 to 10000"},
		{with(`"concurrency": {"limit": 5}, "queue": {"size": 5, "timeout": 0}`), "queue: timeout is 0; want more"},
		{with(`"concurrency": {"limit": 5}, "queue": {"size": 5, "timeout": "61s"}`), "queue timeout is 1m1s; want more than 0, to 1m0s"},
		{with(`"concurrency": {"limit": 5}, "queue": {"off": true, "size": 5}`), "queue: off is set, with a size or a timeout"},
		{with(`"capacity": {"rate": 5}, "queue": {"size": 5}`), "queue is set without a concurrency limit"},
		{with(`"capacity": {"rate": 5}, "classes": [{"name": "critical"}]`), "class is set without a concurrency limit"},
		{with(`"concurrency": {"limit": 5}, "classes": [null]`), "class 0 is null"},
		{with(`"concurrency": {"limit": 5}, "classes": [{"name": "batch"}]`), `class "batch" has no share`},
		{with(`"concurrency": {"limit": 5}, "classes": [{"share": 1}]`), `class "": name is ""; want 1 to 64 letters`},
		{with(`"concurrency": {"limit": 5}, "classes": [{"name": "a b", "share": 1}]`), `class "a b": name is "a b"; want 1 to 64 letters`},
		{with(`"concurrency": {"limit": 5}, "classes": [{"name": "unpaid"}]`), `class "unpaid" is for requests that come before their time`},
		{with(`"concurrency": {"limit": 5}, "classes": [{"name": "critical"}, {"name": "critical"}]`), `class "critical" is a duplicate`},
		{with(`"concurrency": {"limit": 5}, "classes": [{"name": "critical", "share": 0}]`), `class "critical": share is 0; want more than 0, to 1`},
		{with(`"concurrency": {"limit": 5}, "classes": [{"name": "critical", "share": 1.1}]`), `class "critical": share is 1.1; want more than 0, to 1`},
		{with(`"concurrency": {"limit": 5}, "classes": [{"name": "critical", "clients": 70}]`), `class "critical": clients is 70; want more than 0, to 1`},
		{with(`"concurrency": {"limit": 5}, "classes": [{"name": "critical", "match": [{}]}]`), `class "critical": match is empty`},
		{with(`"concurrency": {"limit": 5}, "classes": [{"name": "critical", "match": [{"moon": "full"}]}]`), "unknown module: http.matchers.moon"},
		{with(`"capacity": {}`), "capacity: rate is missing or 0; want more than 0"},
		{with(`"capacity": {"rate": 0, "burst": 5}`), "capacity: rate is missing or 0; want more than 0"},
		{with(`"capacity": {"rate": -5}`), "capacity: rate is -5"},
		{with(`"capacity": {"rate": 5, "burst": 0}`), "capacity: burst is 0; want more"},
		{with(`"capacity": {"rate": 5, "per": 0}`), "capacity: per is 0; want more"},
		{with(`"mode": "off", "concurrency": {"limit": 1}`), `mode is "off"; want enforce or observe`},

		{words(`"min": 0`), "pushback: min is 0; want more"},
		{words(`"min": "500ms"`), "pushback: min is 500ms; want whole seconds from 1s to 59s"},
		{words(`"min": "1500ms"`), "pushback: min is 1.5s; want whole seconds"},
		{words(`"max": "60s"`), "pushback: max is 1m0s; want whole seconds"},
		{words(`"max": "-1s"`), "pushback: max is -1s; want whole seconds"},
		{words(`"min": "20s", "max": "10s"`), "want min at most max"},
		{words(`"status": 0`), "status is 0; want more"},
		{words(`"status": 200`), "status is 200; want 400 to 599"},
		{words(`"overload_status": 600`), "overload_status is 600; want 400 to 599"},
		{words(`"body": "poem"`), `body is "poem"; want auto, problem, html, text or none`},
		{words(`"dither": "off"`), "cannot unmarshal string"},
		{words(`"give_up": 0`), "pushback: give_up is 0; want more"},
		{words(`"give_up": "59s"`), "pushback: give_up is 59s; want 1m to 24h"},
		{words(`"give_up": "25h"`), "pushback: give_up is 25h0m0s; want 1m to 24h"},
		{words(`"backoff": 1`), "cannot unmarshal number"},
		{retries(`"ban": "1h"`), `unknown field "ban"`},
		{retries(`"enforce": "on"`), "cannot unmarshal string"},
		{retries(`"max_clients": 0`), "retries: max_clients is 0; want more"},
		{retries(`"max_clients": 1023`), "retries: max_clients is 1023; want 1024 to 4194304"},
		{retries(`"max_clients": 4194305`), "retries: max_clients is 4194305; want 1024 to 4194304"},
		{retries(`"key": "{http.request.uuid}"`), `shield "s": retries: key is "{http.request.uuid}": placeholder {http.request.uuid} differs with every request`},
		{retries(`"ipv4_prefix": 33`), "retries: ipv4_prefix is 33; want 1 to 32"},
		{retries(`"ipv6_prefix": 0`), "retries: ipv6_prefix is 0; want 1 to 128"},
		{with(`"concurrency": {"limit": 1}, "herd": {"enforce": true}`), `unknown field "enforce"`},
		{words(`"respond": "never"`), `respond is "never"; want auto, direct or error`},

		// One name, two definitions. The error shows both.
		{zone("") + "," + strings.Replace(zone(`, "burst": 3`), `"s"`, `"t"`, 1), `shield "t": zone "z" is defined twice: with burst unset in shield "s", and with burst 3 in shield "t"; want one definition, or two names`},
		{zone("") + "," + strings.Replace(zone(`, "match": [{"path": ["/x"]}]`), `"s"`, `"t"`, 1), `with match unset in shield "s", and with match [{"path":["/x"]}] in shield "t"`},
		{with(`"capacity": {"rate": 5}`) + "," + with(`"capacity": {"rate": 6}`), `shield "s" is defined twice: with capacity {"rate":5}, and with capacity {"rate":6}; want`},
		{with(`"concurrency": {"limit": 5}`) + "," + with(`"concurrency": {"limit": 6}`), `with concurrency {"limit":5}, and with concurrency {"limit":6}`},
		{with(`"concurrency": {"adaptive": true}`) + "," + with(`"concurrency": {"adaptive": true, "max": 6}`), `with concurrency {"adaptive":true}, and with concurrency {"adaptive":true,"max":6}`},
		{with(`"concurrency": {"limit": 5}, "queue": {"size": 5}`) + "," + with(`"concurrency": {"limit": 5}`), `shield "s" is defined twice`},
		{with(`"concurrency": {"limit": 5}, "classes": [{"name": "critical"}]`) + "," + with(`"concurrency": {"limit": 5}, "classes": [{"name": "critical", "share": 0.9}]`), `shield "s" is defined twice`},
		{retries(`"max_clients": 5000`) + "," + retries(``), `retries of shield "s" is defined twice: with max_clients 5000, and with max_clients 524288; want`},
		{retries(``) + "," + with(`"concurrency": {"limit": 1}, "herd": {"detect": false}`), `herd of shield "s" is defined twice: with detect true, and with detect false; want`},
		{with(`"mode": "observe", "capacity": {"rate": 5}`) + "," + with(`"capacity": {"rate": 5}`), `shield "s" is defined twice`},
	} {
		err := r.tryLoad(setup{handlers: c.handlers + "," + respondOK})
		if err == nil {
			t.Errorf("%s\nwas loaded; want an error with %q", c.handlers, c.want)
			_ = caddy.Stop()
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\n%v\nwant an error with %q", c.handlers, err, c.want)
		}
		wantRefs(t, nil)
	}
	for _, c := range []struct{ app, want string }{
		{`{"mode": "off"}`, `mode is "off"; want enforce or observe`},
		{`{"modes": "observe"}`, `unknown field "modes"`},
	} {
		if err := r.tryLoad(setup{apps: `"shield": ` + c.app + `,`, handlers: respondOK}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("app %s: %v; want an error with %q", c.app, err, c.want)
		}
	}
}

// One name with one definition is one zone, and one backend, wherever it stands.
func TestSameDefinitionCountsTogether(t *testing.T) {
	const shielded = `{"handler": "shield", "name": "s", "pushback": {"dither": false}, "capacity": {"rate": 1, "per": "1h", "burst": 4}, "zones": [
		{"name": "z", "key": "{http.request.header.X-Key}", "rate": 1, "per": "1h", "burst": 3}
	]}`
	// A setting that is the default counts as one that is left out.
	explicit := strings.NewReplacer(`"name": "s",`, `"name": "s", "mode": "enforce", "retries": {"enforce": true, "key": "{http.vars.client_ip}"}, "herd": {"detect": true},`, `"name": "z",`, `"name": "z", "max_keys": 200000,`).Replace(shielded)
	twice := `{"handler": "subroute", "routes": [
		{"match": [{"path": ["/a"]}], "handle": [` + shielded + `]},
		{"match": [{"path": ["/b"]}], "handle": [` + explicit + `]}
	]},` + respondOK
	r := start(t, setup{handlers: twice})
	wantRefs(t, map[any]int{zoneKey("z"): 2, backendKey("s"): 2})
	for i, step := range []struct {
		path, key string
		status    int
	}{
		{"/a", "k", 200}, {"/b", "k", 200}, {"/a", "k", 200},
		{"/a", "k", 429}, {"/b", "k", 429}, // the zone's burst is 3
		{"/a", "l", 200},
		{"/a", "l", 503}, {"/b", "m", 503}, // the capacity's is 4
	} {
		if a := r.get(step.path, "X-Key", step.key); a.StatusCode != step.status {
			t.Errorf("step %d, %s for %s: %d, want %d", i, step.path, step.key, a.StatusCode, step.status)
		}
	}
	if s := r.status(); len(s.Shields) != 1 || len(s.Zones) != 1 {
		t.Errorf("%d shields and %d zones in the status, want one of each", len(s.Shields), len(s.Zones))
	}
}

// Handlers of one name may have different requests in a class.
func TestClassesOfOneNameMayMatchDifferently(t *testing.T) {
	one := func(path, more string) string {
		return fmt.Sprintf(`{"handler": "shield", "name": "s", "concurrency": {"limit": 5, "per": {%s "limit": 3}}, "classes": [{"name": "critical", "match": [{"path": [%q]}]}]}`, more, path)
	}
	r := start(t, setup{handlers: one("/a", "") + "," + one("/b", `"key": "{http.vars.client_ip}",`) + "," + respondOK})
	if a := r.get("/a"); a.StatusCode != http.StatusOK {
		t.Errorf("%d, want 200", a.StatusCode)
	}
	if got := r.status().Shields; len(got) != 1 || len(got[0].Classes) != 3 || got[0].Classes[0] != (shield.ClassStats{Name: "critical", Share: 1, Admitted: 1}) || got[0].Classes[1] != (shield.ClassStats{Name: "default", Share: .9, Admitted: 1}) {
		t.Errorf("%+v; want one shield, whose classes were each used once", got)
	}
}

// There was a data race in every refusal. Run with -race, this test writes all that a
// request writes, while all readers read it. Each request is admitted or refused.
func TestHammerWhileBeingWatched(t *testing.T) {
	r := start(t, setup{handlers: `{"handler": "shield", "name": "s", "retries": {"max_clients": 1024}, "concurrency": {"limit": 20}, "capacity": {"rate": 1e6, "burst": 3000}, "zones": [
		{"name": "per_key", "key": "{http.request.header.X-Key}", "rate": 1000, "burst": 10, "max_keys": 10000},
		{"name": "per_path", "key": "{http.request.uri.path}", "rate": 1000, "burst": 500}
	]},` + respondOK})
	h, app, registry := r.handler(), r.app(), caddyRegistry(t)
	watching, watched := make(chan struct{}), sync.WaitGroup{}
	watch := func(f func()) {
		watched.Go(func() {
			for {
				f()
				select {
				case <-watching:
					return
				default:
				}
			}
		})
	}
	watch(func() {
		if _, err := registry.Gather(); err != nil {
			t.Error(err)
		}
	})
	watch(func() { app.fill(new(adminapi.Status)) })
	watch(func() { app.reportOnce(shield.Now()) })

	const clients, each = 64, 150
	var admitted, refused, holding, most atomic.Int64
	next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
		n := holding.Add(1)
		for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
		}
		admitted.Add(1)
		runtime.Gosched()
		holding.Add(-1)
		return nil
	})
	var hammering sync.WaitGroup
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
					refused.Add(1)
					if w.Header().Get("Retry-After") == "" {
						t.Errorf("%d without Retry-After", w.Code)
					}
				}
			}
		})
	}
	hammering.Wait()
	close(watching)
	watched.Wait()

	if admitted.Load()+refused.Load() != clients*each {
		t.Errorf("%d admitted and %d refused, want %d in all", admitted.Load(), refused.Load(), clients*each)
	}
	s := r.status()
	is := s.Shields[0]
	if is.Admitted != uint64(admitted.Load()) || sum(is.Refused) != uint64(refused.Load()) || sum(is.Observed) != 0 {
		t.Errorf("counted %d admitted and %v refused; seen %d and %d", is.Admitted, is.Refused, admitted.Load(), refused.Load())
	}
	if zones := s.Zones[0].Refused + s.Zones[1].Refused; zones != is.Refused["quota"] {
		t.Errorf("the zones refused %d, the shield %d for quota", zones, is.Refused["quota"])
	}
	if most.Load() > 20 || is.InFlight != 0 {
		t.Errorf("up to %d at once, and %d in flight after all; want at most 20, and 0", most.Load(), is.InFlight)
	}
	for reason, n := range is.Refused {
		t.Logf("%d refused for %s", n, reason)
	}
}

func sum(m map[string]uint64) (n uint64) {
	for _, v := range m {
		n += v
	}
	return n
}

// Metrics had a label for every key, for ever. Labels come from the config and go with it.
func TestMetricsAreBounded(t *testing.T) {
	r := start(t, setup{handlers: zoned(1, 1) + "," + respondOK})
	r.get("/", "X-Key", "the only one")
	first := series(t)
	if len(first) == 0 || !slices.ContainsFunc(first, func(s string) bool { return strings.Contains(s, `zone="z"`) }) {
		t.Fatalf("no series of zone z: %q", first)
	}
	for i := range 300 {
		r.get("/"+strconv.Itoa(i), "X-Key", strconv.Itoa(i))
	}
	if after := series(t); !slices.Equal(after, first) {
		t.Errorf("after 300 keys on 300 paths:\n%q\nwant what there was after one:\n%q", after, first)
	}
	r.load(setup{handlers: `{"handler": "shield", "name": "other", "zones": [{"name": "other", "rate": 1}]},` + respondOK})
	for _, s := range series(t) {
		if strings.Contains(s, `"z"`) || strings.Contains(s, `"s"`) {
			t.Errorf("%s is still there; its config is not", s)
		}
	}
	r.load(setup{handlers: respondOK})
	if after := series(t); len(after) != 0 {
		t.Errorf("without any shield there are still %q", after)
	}
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

// Zones were asked in no certain order, and the first ones were charged for requests that
// the others refused.
func TestRefusalInOneZoneIsFreeInTheOthers(t *testing.T) {
	for _, names := range [][2]string{{"a", "b"}, {"b", "a"}} { // the config's order, whatever the names
		t.Run(names[0]+names[1], func(t *testing.T) {
			r := start(t, setup{handlers: fmt.Sprintf(`{"handler": "shield", "name": "s", "zones": [
				{"name": %q, "key": "{http.request.header.X-Wide}", "rate": 1, "per": "1h", "burst": 5},
				{"name": %q, "key": "{http.request.header.X-Narrow}", "rate": 1, "per": "1h", "burst": 1}
			]},`, names[0], names[1]) + respondOK})
			want := func(status int, zone, narrow string) {
				t.Helper()
				a := r.get("/", "X-Wide", "w", "X-Narrow", narrow)
				if a.StatusCode != status {
					t.Errorf("narrow %s: %d, want %d", narrow, a.StatusCode, status)
				}
				if policy := a.Header.Get("RateLimit"); status == http.StatusTooManyRequests && !strings.HasPrefix(policy, strconv.Quote(zone)) {
					t.Errorf("narrow %s: refused by %s, want %q", narrow, policy, zone)
				}
			}
			want(200, "", "0")
			for range 20 {
				want(429, names[1], "0")
			}
			for i := range 4 {
				want(200, "", strconv.Itoa(i+1))
			}
			for i := range 20 {
				want(429, names[0], strconv.Itoa(i+5))
			}
			zones := r.status().Zones
			if zones[0].Name != names[0] || zones[0].Admitted != 5 || zones[0].Refused != 20 || zones[0].Keys != 1 {
				t.Errorf("wide zone: %+v, want it first, 5 admitted, 20 refused, one key", zones[0])
			}
			if zones[1].Name != names[1] || zones[1].Admitted != 5 || zones[1].Refused != 20 || zones[1].Keys != 5 {
				t.Errorf("narrow zone: %+v, want it second, 5 admitted, 20 refused, five keys", zones[1])
			}
		})
	}
}

// Every handler had a goroutine, and some outlived their config. A config has one reporter,
// however many handlers it has, and nothing outlives the config.
func TestNoGoroutineOutlivesItsConfig(t *testing.T) {
	each := 1 // reporter
	if *everyDoor {
		each += 2 // one accepts connections, and Caddy's waits for them
	}
	three := setup{handlers: zoned(1, 1) + "," + zoned(1, 1) + `, {"handler": "shield", "name": "other", "concurrency": {"limit": 1}},` + respondOK}
	r := start(t, three)
	r.client.Transport.(*http.Transport).DisableKeepAlives = true
	reporters := func(want int) {
		t.Helper()
		var stacks []string
		eventually(t, fmt.Sprintf("%d goroutines of shield", want), func() bool {
			stacks = shieldStacks()
			return len(stacks) == want
		})
		if len(stacks) != want {
			t.Errorf("goroutines of shield:\n%s", strings.Join(stacks, "\n\n"))
		}
	}
	reporters(each)
	r.get("/")
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
// refuses no request.
func TestEarlyDataSpendsNoQuota(t *testing.T) {
	for _, c := range []struct {
		name, more, key, match string
		status                 int
	}{
		{"the default key", "", "", "", 425},
		{"the client's address", "", "{http.vars.client_ip}", "", 425},
		{"the peer's address", "", "{http.request.remote.host}", "", 425},
		{"the peer's network", "", "{http.request.remote.host/24}", "", 425},
		{"an address and something else", "", "{http.request.method} {http.vars.client_ip}", "", 425},
		{"a header", "", "{http.request.header.X-Key}", "", 200},
		{"a host", "", "{http.request.host}", "", 200},
		{"a zone that the request is not in", "", "", `, "match": [{"path": ["/other"]}]`, 200},
		{"a zone that the request is in", "", "", `, "match": [{"path": ["/early"]}]`, 425},
		{"observe mode", `, "mode": "observe"`, "", "", 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, setup{handlers: fmt.Sprintf(`{"handler": "shield", "name": "s" %s, "zones": [{"name": "z", "key": %q, "rate": 1, "per": "1h" %s}]},`, c.more, c.key, c.match) + respondOK})
			h := r.handler()
			early := request("/early", "192.0.2.1", http.Header{"X-Key": {"k"}})
			early.TLS = &tls.ConnectionState{HandshakeComplete: false}
			passed := false
			err := h.ServeHTTP(httptest.NewRecorder(), early, caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
				passed = true
				return nil
			}))
			status := http.StatusOK
			var refusal caddyhttp.HandlerError
			if errors.As(err, &refusal) {
				status = refusal.StatusCode
			}
			if status != c.status || passed != (c.status == http.StatusOK) {
				t.Errorf("%v, passed on: %v; want %d", err, passed, c.status)
			}
			charged := uint64(0)
			if c.status == http.StatusOK && strings.HasPrefix(c.name, "a ") && c.match == "" {
				charged = 1
			}
			if s := r.status(); s.Zones[0].Admitted != charged || sum(s.Shields[0].Refused)+sum(s.Shields[0].Observed) != 0 {
				t.Errorf("%d charged, %+v; want %d charged and none refused", s.Zones[0].Admitted, s.Shields[0], charged)
			}
		})
	}
}

// The same with a real handshake, which the client does not finish before it has
// its answer. Caddy accepts early data unless it is told not to.
func TestEarlyDataOverHTTP3(t *testing.T) {
	cert := newCertificate(t)
	s := setup{apps: cert.apps, server: cert.server + `"protocols": ["h1", "h2", "h3"],`}
	for _, c := range []struct {
		name, key string
		early     int
	}{
		{"an address", "{http.vars.client_ip}", 425},
		{"a header", "{http.request.header.X-Key}", 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.handlers = fmt.Sprintf(`{"handler": "shield", "name": "s", "zones": [{"name": "z", "key": %q, "rate": 1, "per": "1h", "burst": 20}]},`, c.key) + respondOK
			r := start(t, s)
			client := r.http3(cert)
			served := func() {
				t.Helper()
				if a, err := client.get(http.MethodGet); err != nil || a.StatusCode != http.StatusOK {
					t.Fatalf("%v, %v; want 200", err, a.Response)
				}
			}
			served()
			receive(t, "a session ticket", client.tickets)
			if a := client.getEarly(); a.StatusCode != c.early {
				t.Errorf("early data: %d, want %d", a.StatusCode, c.early)
			}
			served() // now, or when the packets that were lost have been sent again
			z := r.status().Zones[0]
			if early := z.Admitted > 2; z.Keys != 1 || early != (c.early == http.StatusOK) {
				t.Errorf("zone: %+v; want two charged to one key, and early data as well if it was served", z)
			}
		})
	}
}

// Requests for which the key is empty share one bucket in each zone, and no other.
func TestEmptyKeysShareOneBucket(t *testing.T) {
	r := start(t, setup{handlers: `{"handler": "shield", "name": "s", "zones": [
		{"name": "one", "key": "{http.request.header.X-One}", "rate": 1, "per": "1h", "burst": 3},
		{"name": "two", "key": "{http.request.header.X-Two}", "rate": 1, "per": "1h", "burst": 5}
	]},` + respondOK})
	for i, step := range []struct {
		one, two string
		status   int
	}{
		{"", "", 200}, {"", "", 200}, {"", "", 200},
		{"", "", 429}, {"", "x", 429}, // zone one has had its three
		{"a", "", 200}, {"b", "", 200},
		{"c", "", 429},                   // and zone two its five
		{"a", "x", 200}, {"a", "y", 200}, // but no other zone has
		{"a", "x", 429},
	} {
		if a := r.get("/", "X-One", step.one, "X-Two", step.two); a.StatusCode != step.status {
			t.Errorf("step %d, %q %q: %d, want %d", i, step.one, step.two, a.StatusCode, step.status)
		}
	}
}

// A client on a Unix socket has no address. All of them are one client.
func TestUnixSocketClientsShareOneBucket(t *testing.T) {
	const shielded = `{"handler": "shield", "name": "s", "zones": [
		{"name": "client", "key": %q, "rate": 1, "per": "1h", "burst": 3}
	]},` + respondOK
	for _, key := range []string{"http.vars.client_ip", "http.request.remote.host"} {
		t.Run(key, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			r := startAt(t, "unix/"+path, setup{handlers: fmt.Sprintf(shielded, "{"+key+"}")})
			for i, want := range []int{200, 200, 200, 429, 429} {
				w := r.dialUnix(path) // a client of its own each time
				w.send("GET / HTTP/1.1\nHost: example.com\n\n")
				if a := w.answer(); a.StatusCode != want {
					t.Errorf("client %d: %d, want %d", i, a.StatusCode, want)
				}
			}
			if z := r.status().Zones[0]; z.Keys != 1 || z.Admitted != 3 || z.Refused != 2 {
				t.Errorf("zone: %+v, want one key", z)
			}
		})
	}
}

// A watch knows which configs have requests of theirs inside Caddy, and how many
// requests the backend has.
type watch struct {
	mu      sync.Mutex
	inside  map[int]int // requests by the concurrency limit of the config that they came to
	backend int
	most    map[int]int // most that the backend had at once, by the largest limit among those inside
	wrong   []string
	arrived int
}

// through returns a handler that stands before a shield of that limit.
func (s *watch) through(t *testing.T, limit int) string {
	move := func(by int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.inside[limit] += by
		s.arrived += (by + 1) / 2
	}
	return newHook(t, func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
		move(+1)
		defer move(-1)
		return next.ServeHTTP(w, r)
	})
}

// serve is the backend. At any time its requests are at most the largest limit of
// those that they came in by: each was let in when it was at most one of its
// limit. So it is as well the limit that is in force, as soon as the requests to
// earlier configs have been answered.
func (s *watch) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.backend++
	limit := 0
	for l, n := range s.inside {
		if n > 0 {
			limit = max(limit, l)
		}
	}
	s.most[limit] = max(s.most[limit], s.backend)
	if s.backend > limit {
		s.wrong = append(s.wrong, fmt.Sprintf("%d in flight, limits %v", s.backend, s.inside))
	}
	s.mu.Unlock()
	dawdle(3 * time.Millisecond)
	s.mu.Lock()
	s.backend--
	s.mu.Unlock()
	fmt.Fprint(w, "served")
}

// Caddy cleans up a config while its requests are still being served, and two configs serve
// at once. Over reloads under load the limit in flight holds, no request is lost, and each
// that arrives is counted once.
//
// A reload closes idle connections. A client may notice after it has sent a request. It then
// sends it again on another connection, as RFC 9110, section 9.2.2 allows and net/http does
// automatically. Linux also resets connections that the old socket has not accepted yet, and
// net/http closes new ones whose first request comes too late; then, too, a client tries again. No request is sent again after a part of its answer has
// come, and a broken answer is an error.
func TestReloadUnderLoad(t *testing.T) {
	const clients, reloads = 32, 20
	shielded := func(limit, rate int) string {
		return fmt.Sprintf(`{"handler": "shield", "name": "s", "concurrency": {"limit": %d}, "pushback": {"dither": false}, "retries": {"key": "{http.request.header.X-Visit}"}, "zones": [
			{"name": "z", "key": "{http.request.header.X-Key}", "rate": %d, "burst": %d}
		]},`, limit, rate, rate)
	}
	for _, c := range []struct {
		name        string
		limit, rate [2]int
	}{
		{"the rate changes", [2]int{8, 8}, [2]int{1, 500}},
		{"the concurrency changes", [2]int{8, 4}, [2]int{500, 500}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &watch{inside: map[int]int{}, most: map[int]int{}}
			proxy := proxyTo(serveBackend(t, s.serve), "")
			configs := [2]setup{}
			for i := range configs {
				configs[i].handlers = s.through(t, c.limit[i]) + "," + shielded(c.limit[i], c.rate[i]) + proxy
			}
			r := start(t, configs[0])
			var stop atomic.Bool
			var served, refused, again, visits atomic.Int64
			var loading sync.WaitGroup
			for id := range clients {
				loading.Go(func() {
					for !stop.Load() {
						req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.addr, nil)
						req.Header.Set("X-Key", strconv.Itoa(id))
						req.Header.Set("X-Visit", strconv.FormatInt(visits.Add(1), 10)) // each visit is a new client, so none is too early
						resp, err := r.client.Do(req)
						if err != nil {
							idle := strings.Contains(err.Error(), "server closed idle connection") // a new one, which a door was reading
							if !idle && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.EPIPE) {
								t.Errorf("lost: %v", err)
							}
							again.Add(1)
							continue
						}
						a, err := answer(resp, nil)
						after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
						switch {
						case err != nil:
							t.Errorf("lost half of a %d: %v", resp.StatusCode, err)
						case a.StatusCode == http.StatusOK && a.body == "served":
							served.Add(1)
						case (a.StatusCode == http.StatusTooManyRequests || a.StatusCode == http.StatusServiceUnavailable) && after > 0:
							refused.Add(1)
							dawdle(20 * time.Millisecond) // a client that is slow, but not as patient as it is told to be
						default:
							t.Errorf("%d %q, Retry-After %d", a.StatusCode, a.body, after)
						}
					}
				})
			}
			began := time.Now()
			progress := func(n int64) {
				was := served.Load()
				eventually(t, "requests are served", func() bool { return served.Load() >= was+n })
			}
			for i := range reloads {
				progress(15)
				if err := caddy.Load(configs[(i+1)%2].json(r.addr), true); err != nil {
					t.Fatal(err)
				}
			}
			took := time.Since(began)
			for i, limit := range c.limit { // the first one runs already
				if i > 0 {
					r.load(configs[i])
				}
				progress(50)
				eventually(t, fmt.Sprintf("%d are in flight under that limit", limit), func() bool {
					s.mu.Lock()
					defer s.mu.Unlock()
					return s.most[limit] == limit
				})
			}
			stop.Store(true)
			loading.Wait()
			r.drains()

			s.mu.Lock()
			defer s.mu.Unlock()
			for _, wrong := range s.wrong {
				t.Error(wrong)
			}
			for limit, most := range s.most {
				if most > limit {
					t.Errorf("the most in flight under limit %d was %d", limit, most)
				}
			}
			is := r.status().Shields[0]
			if is.Admitted+sum(is.Refused) != uint64(s.arrived) {
				t.Errorf("%d admitted and %v refused, want %d that arrived", is.Admitted, is.Refused, s.arrived)
			}
			// Each that arrived got an answer: a request that is sent again had not arrived.
			if answered := served.Load() + refused.Load(); answered != int64(s.arrived) {
				t.Errorf("%d of %d requests that arrived were answered", answered, s.arrived)
			}
			if n := again.Load(); n > clients*reloads/4 {
				t.Errorf("%d requests were sent again in %d reloads", n, reloads)
			}
			if is.Admitted < uint64(served.Load()) || is.Admitted+sum(is.Refused) < uint64(served.Load()+refused.Load()) {
				t.Errorf("%d admitted and %v refused; clients saw %d and %d", is.Admitted, is.Refused, served.Load(), refused.Load())
			}
			t.Logf("%d reloads in %v; %d served, %v refused; %d times a client connected again", reloads, took, served.Load(), is.Refused, again.Load())
		})
	}
}

// With requests in flight, Caddy stops and its states leave the pool. The requests are served
// to their end and release what they hold, and a new config begins anew.
func TestStopWhileInFlight(t *testing.T) {
	const shielded = `{"handler": "shield", "name": "s", "concurrency": {"limit": 2}, "zones": [{"name": "z", "rate": 1, "per": "1h", "burst": 2}]},`
	g := newGate(t)
	r := start(t, setup{handlers: shielded + proxyTo(g.Server, "")})
	results := make(chan answered, 2)
	for range 2 {
		go func() {
			a, err := answer(http.Get("http://" + r.addr + "/"))
			if err != nil {
				t.Error(err)
			}
			results <- a
		}()
		receive(t, "a request at the backend", g.entered)
	}
	if a := r.get("/"); a.StatusCode != http.StatusTooManyRequests {
		t.Errorf("the third request got %d, want 429", a.StatusCode)
	}
	old := r.app().configured.shields[0].record
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	wantRefs(t, nil)
	if n := old.Stats(shield.Now()).InFlight; n != 2 {
		t.Errorf("%d in flight after the stop, want 2", n)
	}

	r.load(setup{handlers: shielded + respondOK}) // while they are still there
	r.client.CloseIdleConnections()
	if a := r.get("/"); a.StatusCode != http.StatusOK {
		t.Errorf("after a new start: %d, want 200", a.StatusCode)
	}
	for range 2 {
		g.goOn <- struct{}{}
	}
	for range 2 {
		if a := receive(t, "an answer", results); a.StatusCode != http.StatusOK || a.body != "served" {
			t.Errorf("a request that was in flight got %d %q, want it served", a.StatusCode, a.body)
		}
	}
	eventually(t, "the old places are given back", func() bool { return old.Stats(shield.Now()).InFlight == 0 })
	if n := r.inFlight(); n != 0 {
		t.Errorf("%d in flight in the new state, want 0", n)
	}
}
