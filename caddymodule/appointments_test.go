package caddymodule

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
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
func (r *rig) shieldStatus(name string) ShieldStatus {
	r.Helper()
	for _, s := range r.status().Shields {
		if s.Name == name {
			return s
		}
	}
	r.Fatalf("there is no shield %s", name)
	return ShieldStatus{}
}

// wantStatus requests path and checks the answer's status.
func (r *rig) wantStatus(status int, path string, headers ...string) answered {
	r.Helper()
	a := r.get(path, headers...)
	if a.StatusCode != status {
		r.Errorf("%s %q: %d, want %d", path, headers, a.StatusCode, status)
	}
	return a
}

// told returns how long a refused client is told to wait.
func told(t testing.TB, a answered) time.Duration {
	t.Helper()
	ms, err := strconv.Atoi(a.Header.Get("Retry-After-Ms"))
	if err != nil {
		t.Errorf("%d without Retry-After-Ms", a.StatusCode)
	}
	return time.Duration(ms) * time.Millisecond
}

// rounding is how much of a promise is lost when it is written down.
const rounding = 5 * time.Millisecond

// Clients wait for real here, so their stories run at the same time, each with a
// shield of its own. Tokens come once a second, and the burst lets a client be
// late without harm to the next.
func TestAppointments(t *testing.T) {
	t.Setenv("SHIELD_TEST_SECRET", "a secret of the replicas")
	const (
		byKey  = `"retries": {"key": "{http.request.header.X-Key}"}, "pushback": {"dither": false}`
		slow   = `"capacity": {"rate": 1, "burst": 3},`
		ticket = `"capacity": {"rate": 1, "per": "3s", "burst": 10}, "pushback": {"dither": false}, "retries": {"key": "{http.request.header.X-Key}", "tickets": true, "secret": %q}`
	)
	r := start(t, setup{handlers: newHook(t, seesAnswers) + "," + behind(map[string]string{
		"appointment": slow + byKey,
		"keys":        slow + byKey,
		"address":     slow + `"pushback": {"dither": false}`,
		"lenient":     slow + `"pushback": {"dither": false}, "retries": {"enforce": false}`,
		"one":         fmt.Sprintf(ticket, "a secret of the replicas"),
		"two":         fmt.Sprintf(ticket, "{env.SHIELD_TEST_SECRET}"),
		"three":       fmt.Sprintf(ticket, "another's secret"),
		"gone":        `"capacity": {"rate": 1, "per": "1900ms", "burst": 1}`,
		"held":        `"capacity": {"rate": 1, "per": "1900ms", "burst": 1}`,
	})})
	t.Run("at once", func(t *testing.T) {
		for name, story := range map[string]func(*rig){
			"early and on time": earlyAndOnTime,
			"keys":              keysTellClientsApart,
			"leniency":          lenientToEarlyClients,
			"tickets":           ticketsAreHonouredElsewhere,
			"gone":              heldRefusalOfAClientThatIsGone,
			"held":              heldRefusalHitsTheSlot,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				own := *r
				own.T = t
				story(&own)
			})
		}
	})
}

// Who comes early is told the remaining time, and refused while others wait. Who
// comes on time is admitted, and warned while others wait.
func earlyAndOnTime(r *rig) {
	for i := range 3 {
		if a := r.wantStatus(200, "/appointment", "X-Key", "burst"); a.Header.Get("RateLimit") != "" {
			r.Errorf("request %d was warned, and nobody waits: %v", i, a.Header)
		}
	}
	bAsks := time.Now()
	b := r.wantStatus(503, "/appointment", "X-Key", "b")
	bTold, bAt := time.Now(), told(r, b)
	c := r.wantStatus(503, "/appointment", "X-Key", "c")
	cTold, cAt := time.Now(), told(r, c)
	if bAt < time.Second || cAt < bAt+500*time.Millisecond {
		r.Errorf("told %v and then %v; want a second or more, and about a second later", bAt, cAt)
	}
	heard()
	again := told(r, r.wantStatus(503, "/appointment", "X-Key", "b"))
	if remains := bAt - time.Since(bAsks); again > bAt || again < remains-rounding {
		r.Errorf("told %v, and early %v; want what remains: %v", bAt, again, remains)
	}
	if s := r.shieldStatus("appointment"); s.Refused["early"] != 1 || s.Calendar.Promises != 2 || s.Calendar.BacklogSeconds < 0.1 || s.Clients["unknown"] != 1 {
		r.Errorf("%+v %+v; want one early, and two promises", s, s.Calendar)
	}
	time.Sleep(time.Until(bTold.Add(bAt)))
	if a := r.wantStatus(200, "/appointment", "X-Key", "b"); !strings.HasPrefix(a.Header.Get("RateLimit"), `"capacity";r=1;t=`) && time.Now().Before(cTold.Add(cAt)) {
		r.Errorf("on time, while another waits: %v; want a warning", a.Header)
	}
	time.Sleep(time.Until(cTold.Add(cAt)))
	if a := r.wantStatus(200, "/appointment", "X-Key", "c"); a.Header.Get("RateLimit") != "" {
		r.Errorf("the last one was warned, and nobody waits: %v", a.Header)
	}
	s := r.shieldStatus("appointment")
	if c := s.Calendar; c.Kept+c.Late != 2 || c.Broken != 0 || c.Early != 0 || c.Promises != 2 {
		r.Errorf("%+v; want two promises kept", c)
	}
	if s.Admitted != 5 || s.Refused["capacity"] != 2 || s.Refused["early"] != 1 {
		r.Errorf("%+v; want 5 admitted, 2 refused, and 1 for being early", s)
	}
}

// With the address as key, two clients of one address that ask for the same are
// one that repeats itself. With a key of their own each gets its own time.
func keysTellClientsApart(r *rig) {
	for path, apart := range map[string]bool{"/keys": true, "/address": false} {
		for range 3 {
			r.wantStatus(200, path, "X-Key", "burst")
		}
		b := told(r, r.wantStatus(503, path, "X-Key", "b"))
		r.anotherWaits(path)
		heard()
		c := told(r, r.wantStatus(503, path, "X-Key", "c"))
		if later := c > b; later != apart {
			r.Errorf("%s: told %v and %v; apart: %v, want %v", path, b, c, later, apart)
		}
		early := r.shieldStatus(path[1:]).Refused["early"]
		if (early == 0) != apart {
			r.Errorf("%s: %d refused for being early", path, early)
		}
	}
}

// anotherWaits has a client of another address and key refused, so that who comes
// early does so before somebody else.
func (r *rig) anotherWaits(path string) {
	r.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "http://"+r.addr+path, nil)
	if err != nil {
		r.Fatal(err)
	}
	req.Header.Set("X-Key", "another")
	if a, err := answer(client.Do(req)); err != nil || a.StatusCode != 503 {
		r.Errorf("%v %v, want another client refused", a, err)
	}
}

// With enforcement off nobody is refused for being early.
func lenientToEarlyClients(r *rig) {
	for range 3 {
		r.wantStatus(200, "/lenient")
	}
	first := told(r, r.wantStatus(503, "/lenient"))
	for range 3 {
		heard()
		if again := told(r, r.wantStatus(503, "/lenient")); again > first {
			r.Errorf("told %v, and early %v; want no more", first, again)
		}
	}
	if s := r.shieldStatus("lenient"); s.Refused["early"] != 0 || s.Refused["capacity"] != 4 {
		r.Errorf("%v; want all refused over capacity", s.Refused)
	}
}

// Another replica, or one that has lost its state, honours a ticket: before
// strangers, when it is due, once, from the client that it was given to; if it has
// the same secret.
func ticketsAreHonouredElsewhere(r *rig) {
	for _, path := range []string{"/two", "/three", "/one"} {
		for range 10 {
			r.wantStatus(200, path, "X-Key", "burst")
		}
		for i := range 4 { // and for 12 s a stranger finds no room
			if path != "/one" {
				r.wantStatus(503, path, "X-Key", fmt.Sprint("waits ", i))
			}
		}
	}
	asked := time.Now()
	refused := r.wantStatus(503, "/one", "X-Key", "k")
	from := time.Now()
	_, field, _ := strings.Cut(refused.Header.Get("Shield-Retry"), `ticket="`)
	ticket, _, _ := strings.Cut(field, `"`)
	if len(ticket) < 20 {
		r.Fatalf("no ticket in %v", refused.Header)
	}
	bring := func(status int, path, key string) answered {
		r.Helper()
		return r.wantStatus(status, path, "X-Key", key, "Shield-Retry", `ticket="`+ticket+`"`)
	}
	due := told(r, refused)
	heard()
	if early := told(r, bring(503, "/two", "k")); early > due || early < due-time.Since(asked)-rounding {
		r.Errorf("told %v, and early elsewhere %v; want the same time", due, early)
	}
	time.Sleep(time.Until(from.Add(due)))
	bring(503, "/three", "k")   // has another secret
	bring(503, "/two", "thief") // is another client
	bring(200, "/two", "k")
	bring(503, "/two", "k") // used
	for name, want := range map[string]TicketStatus{"one": {0, 0}, "two": {1, 2}, "three": {0, 1}} {
		if got := *r.shieldStatus(name).Tickets; got != want {
			r.Errorf("tickets at %s: %+v, want %+v", name, got, want)
		}
	}
}

// wrote holds, by request, whether anything has been written when it was done.
var wrote sync.Map // X-Visit -> chan bool

// seesAnswers notes whether a request is answered at all.
func seesAnswers(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	rec := &notingWriter{ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: w}}
	err := next.ServeHTTP(rec, r)
	if ch, ok := wrote.Load(r.Header.Get("X-Visit")); ok {
		ch.(chan bool) <- rec.wrote
	}
	return err
}

type notingWriter struct {
	*caddyhttp.ResponseWriterWrapper
	wrote bool
}

func (w *notingWriter) WriteHeader(status int) {
	w.wrote = true
	w.ResponseWriterWrapper.WriteHeader(status)
}

// A refusal that is held back is dropped when its client goes away. The client
// has some 0.9 s to do so; on a loaded machine that may take another attempt.
func heldRefusalOfAClientThatIsGone(r *rig) {
	for attempt := range 5 {
		r.get("/gone") // takes the token, if there is one
		visit, done := fmt.Sprint("gone ", attempt), make(chan bool, 1)
		wrote.Store(visit, done)
		defer wrote.Delete(visit)
		ctx, cancel := context.WithCancel(r.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.addr+"/gone?"+visit[5:], nil)
		if err != nil {
			r.Fatal(err)
		}
		req.Header.Set("X-Visit", visit)
		req.Header.Set("Idempotency-Key", visit) // not a repetition of what the others ask for
		go func() {
			if a, err := answer(r.client.Do(req)); err == nil {
				r.Logf("answered %d before it was gone", a.StatusCode)
			}
		}()
		held := 0
		for deadline := time.Now().Add(time.Second); held == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			held = r.shieldStatus("gone").Held
		}
		cancel()
		answered := receive(r, "the end of the request", done)
		eventually(r, "no refusal is held", func() bool { return r.shieldStatus("gone").Held == 0 })
		if held == 1 && !answered {
			return
		}
	}
	r.Error("a held refusal was written to a client that was gone, each time")
}

// A held refusal is sent within a second, and says whole seconds that end at the
// slot: 1.9 s after the token was taken.
func heldRefusalHitsTheSlot(r *rig) {
	began := time.Now()
	r.wantStatus(200, "/held")
	sent := time.Now()
	a := r.wantStatus(503, "/held")
	took := time.Since(sent)
	if a.Header.Get("Retry-After") != "1" || a.Header.Get("Retry-After-Ms") != "1000" {
		r.Errorf("Retry-After %s, %s ms; want a whole second", a.Header.Get("Retry-After"), a.Header.Get("Retry-After-Ms"))
	}
	if took > 2*time.Second { // promised is 1 s
		r.Errorf("the refusal took %v", took)
	}
	time.Sleep(time.Second)
	if is := time.Since(began); is < 1900*time.Millisecond {
		r.Errorf("the client is told to come after %v; want 1.9 s, when there is a token", is)
	}
	r.wantStatus(200, "/held")
	r.Logf("held for %v", took)
}

// A reload, or the end, of a config lets held refusals be sent, and lets go of all
// that held them. What a client was told under the old config holds in the new.
func TestReloadKeepsAppointments(t *testing.T) {
	config := func(fields string) setup {
		return setup{handlers: behind(map[string]string{
			"s": `"capacity": {"rate": 1, "burst": 3}, "retries": {"key": "{http.request.header.X-Key}"}` + fields,
			"h": `"capacity": {"rate": 1, "per": "1900ms", "burst": 1}`,
		})}
	}
	r := start(t, config(`, "pushback": {"dither": false}`))
	for range 3 {
		r.wantStatus(200, "/s", "X-Key", "burst")
	}
	asked := time.Now()
	wait := told(t, r.wantStatus(503, "/s", "X-Key", "b"))
	from := time.Now()
	r.anotherWaits("/s")

	holding := func() <-chan answered {
		t.Helper()
		r.get("/h", "Idempotency-Key", "first")
		results := make(chan answered, 1)
		go func() {
			a, err := answer(http.Get("http://" + r.addr + "/h"))
			if err != nil {
				t.Error(err)
			}
			results <- a
		}()
		eventually(t, "a refusal is held", func() bool { return r.shieldStatus("h").Held == 1 })
		return results
	}
	released := func(results <-chan answered, held func() int) {
		t.Helper()
		if a := receive(t, "a held refusal", results); a.StatusCode != 503 || a.Header.Get("Retry-After") == "" || a.body == "" {
			t.Errorf("%d %v %q; want a whole refusal", a.StatusCode, a.Header, a.body)
		}
		eventually(t, "no refusal is held", func() bool { return held() == 0 })
	}
	results := holding()
	r.load(config(`, "pushback": {"dither": false, "max": "20s"}`))
	heard()
	again := told(t, r.wantStatus(503, "/s", "X-Key", "b"))
	if remains := wait - time.Since(asked); again > wait || again < remains-rounding {
		t.Errorf("told %v by the old config, and early %v by the new; want what remains: %v", wait, again, remains)
	}
	if s := r.shieldStatus("s"); s.Refused["early"] != 1 {
		t.Errorf("%v; want one refused for being early", s.Refused)
	}
	released(results, func() int { return r.shieldStatus("h").Held })
	time.Sleep(time.Until(from.Add(wait)))
	r.wantStatus(200, "/s", "X-Key", "b")
	if c := r.shieldStatus("s").Calendar; c.Kept+c.Late != 1 || c.Promises != 2 {
		t.Errorf("%+v; want a promise of the old config kept", c)
	}

	time.Sleep(time.Second) // the last one held comes no more; the token is there again
	results = holding()
	var state *backendRecord
	for _, b := range r.app().configured.shields {
		if b.name == "h" {
			state = b.record
		}
	}
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	released(results, func() int { return state.Stats(shield.Now()).Held })
	eventually(t, "no goroutine of shield is left", func() bool { return len(shieldStacks()) == 0 })
}

// What metrics, status and reports say of promises is what has become of them. The
// clients are played in a time of their own, against the state of a running shield:
// one of four comes when it is told, one late, one too early until it is let in,
// and one never.
func TestPromisesAreReported(t *testing.T) {
	r := start(t, setup{handlers: `{"handler": "shield", "name": "s", "capacity": {"rate": 20, "burst": 10}, "pushback": {"max": "4s"}},` + respondOK})
	b := r.app().configured.shields[0]
	g, err := shield.New(shield.Config{
		Capacity: limiter.Config{Rate: 20, Burst: 10}, Pushback: pushback.AnswerConfig{Max: 4 * time.Second},
	}, &shield.State{Backend: b.record.Backend})
	if err != nil {
		t.Fatal(err)
	}
	const clients = 300
	const begin = time.Hour
	next := [clients]time.Duration{} // when each comes
	for i := range next {
		next[i] = begin + time.Duration(i)*time.Millisecond
	}
	const never = time.Duration(math.MaxInt64)
	for now := begin; now < begin+40*time.Second; now += 5 * time.Millisecond {
		if now > begin+3*time.Second && now < begin+4*time.Second {
			g.Admit(now, shield.Request{Client: limiter.Key(10_000 + now/time.Millisecond), Fingerprint: 1}) // strangers
		}
		for i := range next {
			if next[i] > now {
				continue
			}
			d := g.Admit(now, shield.Request{Client: limiter.Key(i + 1), Fingerprint: 1, Agent: "curl/8.1"})
			if d.Hold > 0 {
				d.Sent()
			}
			switch {
			case d.Admit, i%4 == 3 && d.Wait < 3*time.Second:
				next[i] = never
			case i%4 == 0 || i%4 == 3:
				next[i] = now + d.Wait
			case i%4 == 1:
				next[i] = now + d.Wait + 5*time.Second
			default:
				next[i] = now + 700*time.Millisecond
			}
		}
	}
	// Of a small crowd all but one never come. It comes too early, and finds a
	// backend that is not busy.
	then := begin + time.Minute
	for i := range limiter.Key(80) {
		d := g.Admit(then, shield.Request{Client: 20_000 + i, Fingerprint: 1})
		if d.Hold > 0 {
			d.Sent()
		}
	}
	g.Admit(then+2500*time.Millisecond, shield.Request{Client: 20_059, Fingerprint: 1})
	s := b.record.Stats(shield.Now())
	p := s.Promises
	values := []uint64{p.Made, p.Deferred, p.Kept, p.Late, p.NoShow, s.EarlyAdmitted, s.Broken, s.Refused[shield.Early], s.Refused[shield.Capacity]}
	t.Logf("%+v, early %d, broken %d, refused %v", p, s.EarlyAdmitted, s.Broken, s.Refused)
	slices.Sort(values)
	if values[0] == 0 || len(slices.Compact(values)) != 9 {
		t.Errorf("%v: not all different, so the following would not tell them apart", values)
	}
	metrics := fmt.Sprintf(`
caddy_shield_deferrals_total{shield="s"} %d
caddy_shield_promise_outcomes_total{outcome="broken",shield="s"} %d
caddy_shield_promise_outcomes_total{outcome="early",shield="s"} %d
caddy_shield_promise_outcomes_total{outcome="kept",shield="s"} %d
caddy_shield_promise_outcomes_total{outcome="late",shield="s"} %d
caddy_shield_promise_outcomes_total{outcome="no_show",shield="s"} %d
caddy_shield_promises_total{shield="s"} %d
`, p.Deferred, s.Broken, s.EarlyAdmitted, p.Kept, p.Late, p.NoShow, p.Made)
	wantMetrics(t, r.app(), metrics, "caddy_shield_deferrals_total", "caddy_shield_promise_outcomes_total", "caddy_shield_promises_total")
	c := r.shieldStatus("s").Calendar
	if c.Promises != p.Made || c.Deferrals != p.Deferred || c.Kept != p.Kept || c.Late != p.Late || c.NoShow != p.NoShow || c.Early != s.EarlyAdmitted || c.Broken != s.Broken || c.KeptRatio != s.KeptShare {
		t.Errorf("status: %+v, want what the metrics say", c)
	}
	if f := r.shieldStatus("s").Families["curl"]; f != FamilyStatus(s.Families[pushback.FamilyCurl]) || f.Kept == 0 || f.Kept == f.Late || f.Early == 0 {
		t.Errorf("curl: %+v, want %+v", f, s.Families[pushback.FamilyCurl])
	}
	r.app().reportOnce(shield.Now())
	if seen, want := b.record.overload.seen, (reasonCounts{shield.Capacity: s.Refused[shield.Capacity], shield.Concurrency: s.Refused[shield.Concurrency], shield.Early: s.Refused[shield.Early]}); seen != want {
		t.Errorf("reported: %+v, want %+v", seen, want)
	}
}

// In observe mode nobody is refused: not those either who were told a time before
// it began.
func TestObserveAfterEnforcing(t *testing.T) {
	config := func(mode string) setup {
		return setup{handlers: behind(map[string]string{"s": `"mode": "` + mode + `", "capacity": {"rate": 1, "burst": 1}, "pushback": {"dither": false}`})}
	}
	r := start(t, config("enforce"))
	r.wantStatus(200, "/s")
	r.wantStatus(503, "/s")
	r.load(config("observe"))
	r.wantStatus(200, "/s")
}

// R1: a config that failed had changed how many clients the one that ran
// remembers.
func TestFailedReloadForgetsNoClient(t *testing.T) {
	config := func(maxClients int) string {
		return fmt.Sprintf(`{"handler": "shield", "name": "s", "capacity": {"rate": 1}, "retries": {"max_clients": %d}},`, maxClients)
	}
	r := start(t, setup{handlers: config(65536) + respondOK})
	r.get("/")
	if err := r.tryLoad(setup{handlers: config(1024) + failingHook}); err == nil {
		t.Fatal("no error")
	}
	if n := r.shieldStatus("s").MaxClients; n != 65536 {
		t.Errorf("%d clients can be remembered after a failed reload, want 65536", n)
	}
	r.load(setup{handlers: config(1024) + respondOK})
	r.get("/")
	if n := r.shieldStatus("s").MaxClients; n != 1024 {
		t.Errorf("%d clients can be remembered after a good one, want 1024", n)
	}
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
		{with(`"tickets": true, "secret": "correct horse"`), "the secret for tickets has 13 bytes; want at least 16"},
		{with(`"secret": "` + secret + `"`), "there is a secret, but tickets are off"},
		{with(`"tickets": true, "secret": "` + secret + ` {horse}"`), "secret has an empty or unknown placeholder"},
		{with(`"tickets": true, "secret": "` + secret + ` {horse.battery}"`), "secret has an empty or unknown placeholder"},
		{with(`"tickets": true, "secret": "` + secret + ` {env.SHIELD_TEST_NO_SUCH_SECRET}"`), "secret has an empty or unknown placeholder"},
		{with(`"tickets": true, "secret": "{env.SHIELD_TEST_NO_SUCH_SECRET}"`), "secret has an empty or unknown placeholder"},
		{with(`"tickets": true, "secret": "{file./no/such/secret}"`), "secret has an empty or unknown placeholder"},
		{with(`"tickets": true, "secret": "`+secret+`"`) + "," + with(`"tickets": true, "secret": "the other horse battery staple"`), `retries of shield "s" is defined twice, with different secrets`},
		{with(`"tickets": true, "secret": "`+secret+`"`) + "," + with(``), `retries of shield "s" is defined twice: as {"enforce":true,"max_clients":524288,"key":"{http.vars.client_ip}","tickets":true}, and as {"enforce":true,"max_clients":524288,"key":"{http.vars.client_ip}"}`},
		{with(`"tickets": true, "secret": "`+secret+`", "max_clients": 1`) + "," + with(``), "max_clients is 1; want 1024"},
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

// A refusal that is held back costs a timer and what it waits with, beyond its
// request, which would wait for the backend at the same cost.
func TestMemoryOfHeldRefusals(t *testing.T) {
	const n = 1000
	requests := make([]context.Context, n)
	for i := range requests {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		requests[i] = ctx
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, ctx := range requests {
		var d shield.Decision
		d.Hold = time.Nanosecond
		if _, ok := d.Deliver(ctx); !ok {
			t.Error("no client has gone")
		}
	}
	runtime.ReadMemStats(&after)
	bytes, pieces := (after.TotalAlloc-before.TotalAlloc)/n, (after.Mallocs-before.Mallocs)/n
	t.Logf("%d bytes in %d pieces", bytes, pieces)
	if bytes > 512 || pieces > 5 {
		t.Errorf("to hold a refusal takes %d bytes in %d pieces, want at most 512 in 5", bytes, pieces)
	}
}
