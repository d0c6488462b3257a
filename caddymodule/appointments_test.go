package caddymodule

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// behind returns routes of a path each, with a shield of that name before it.
func behind(shields map[string]string) string {
	var routes []string
	for name, fields := range shields {
		routes = append(routes, fmt.Sprintf(`{"match": [{"path": ["/%s"]}], "handle": [{"handler": "shield", "name": %q, "herd": {"detect": false}, %s}]}`, name, name, fields))
	}
	return `{"handler": "subroute", "routes": [` + strings.Join(routes, ",") + `]},` + respondOK
}

// shieldStatus returns the status of one shield.
func (r *rig) shieldStatus(name string) adminapi.ShieldStatus {
	r.Helper()
	for _, s := range r.app().roster().shields {
		if s.name == name {
			return s.reading(shield.Now()).status()
		}
	}
	r.Fatalf("there is no shield %s", name)
	return adminapi.ShieldStatus{}
}

// wantStatus requests path and checks the status of the answer.
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

// TestAppointments plays stories of clients in virtual time, each with a shield of its own.
// Tokens come once a second, and the burst lets a client be late without harm to the next.
func TestAppointments(t *testing.T) {
	const (
		byKey = `"retries": {"key": "{http.request.header.X-Key}", "max_clients": 1024}, "pushback": {"dither": false}`
		slow  = `"capacity": {"rate": 1, "burst": 3},`
	)
	r := start(t, setup{handlers: newHook(t, seesAnswers) + "," + behind(map[string]string{
		"appointment": slow + byKey,
		"keys":        slow + byKey,
		"address":     slow + `"pushback": {"dither": false}, "retries": {"max_clients": 1024}`,
		"lenient":     slow + `"pushback": {"dither": false}, "retries": {"enforce": false, "max_clients": 1024}`,
		"gone":        `"capacity": {"rate": 1, "per": "1900ms", "burst": 1}, "retries": {"max_clients": 1024}`,
		"held":        `"capacity": {"rate": 1, "per": "1900ms", "burst": 1}, "retries": {"max_clients": 1024}`,
	})})
	for name, story := range map[string]func(*rig){
		"early and on time": earlyAndOnTime,
		"keys":              keysTellClientsApart,
		"leniency":          lenientToEarlyClients,
		"gone":              heldRefusalOfAClientThatIsGone,
		"held":              heldRefusalHitsTheSlot,
	} {
		t.Run(name, func(t *testing.T) {
			r.inVirtualTime(t, func(r *rig, _ func(func())) { story(r) })
		})
	}
}

// A client that comes early is told the remaining time, if there is no token. A client that comes on time is admitted, and warned while others wait.
func earlyAndOnTime(r *rig) {
	for i := range 3 {
		if a := r.wantStatus(200, "/appointment", "X-Key", "burst"); a.Header.Get("RateLimit") != "" {
			r.Errorf("request %d was warned, and no client waits: %v", i, a.Header)
		}
	}
	b := told(r, r.wantStatus(503, "/appointment", "X-Key", "b"))
	c := told(r, r.wantStatus(503, "/appointment", "X-Key", "c"))
	asked := time.Now()
	if b != time.Second || c < b+time.Second || c > b+1100*time.Millisecond {
		r.Errorf("told %v and then %v; want 1 s, and about a second later", b, c)
	}
	awaitTransit()
	again := told(r, r.wantStatus(503, "/appointment", "X-Key", "b"))
	if remains := b - time.Since(asked); again != remains {
		r.Errorf("told %v, and early %v; want what remains: %v", b, again, remains)
	}
	if s := r.shieldStatus("appointment"); s.Refused["capacity"] != 3 || s.Line.Promises != 2 || s.Line.BacklogSeconds < 0.1 || s.Clients["unknown"] != 1 {
		r.Errorf("%+v %+v; want three refused, and two promises", s, s.Line)
	}
	pass(time.Until(asked.Add(b)))
	if a := r.wantStatus(200, "/appointment", "X-Key", "b"); !strings.HasPrefix(a.Header.Get("RateLimit"), `"capacity";r=1;t=`) {
		r.Errorf("on time, while another waits: %v; want a warning", a.Header)
	}
	pass(time.Until(asked.Add(c)))
	if a := r.wantStatus(200, "/appointment", "X-Key", "c"); a.Header.Get("RateLimit") != "" {
		r.Errorf("the last one was warned, and no client waits: %v", a.Header)
	}
	s := r.shieldStatus("appointment")
	if c := s.Line; c.Kept != 2 || c.Late+c.NoShow+c.Broken+c.Early != 0 || c.Promises != 2 {
		r.Errorf("%+v; want two promises kept", c)
	}
	if s.Admitted != 5 || s.Refused["capacity"] != 3 {
		r.Errorf("%+v; want 5 admitted, and 3 refused", s)
	}
}

// With the address as key, two clients of one address with the same request are one client
// that repeats itself. With their own keys, each gets its own appointment.
func keysTellClientsApart(r *rig) {
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
}

// With enforcement off, no client is refused for being early.
func lenientToEarlyClients(r *rig) {
	for range 3 {
		r.wantStatus(200, "/lenient")
	}
	first := told(r, r.wantStatus(503, "/lenient"))
	for range 3 {
		awaitTransit()
		if again := told(r, r.wantStatus(503, "/lenient")); again > first {
			r.Errorf("told %v, and early %v; want no more", first, again)
		}
	}
	if s := r.shieldStatus("lenient"); s.Refused["early"] != 0 || s.Refused["capacity"] != 4 {
		r.Errorf("%v; want all refused over capacity", s.Refused)
	}
}

// A server that has lost its state honours a ticket, as another replica does: before new
// clients, when it is due, once, from the client that it was given to. Another shield does
// not, and neither does the same one under another secret.
func TestTicketsAfterRestart(t *testing.T) {
	t.Setenv("SHIELD_TEST_SECRET", "a secret of the replicas")
	config := func(secret string) setup {
		fields := fmt.Sprintf(`"capacity": {"rate": 1, "per": "3s", "burst": 10}, "pushback": {"dither": false},
			"retries": {"key": "{http.request.header.X-Key}", "tickets": true, "secret": %q, "max_clients": 1024}`, secret)
		return setup{handlers: behind(map[string]string{"one": fields, "two": fields})}
	}
	running := start(t, config("a secret of the replicas"))
	running.inVirtualTime(t, func(r *rig, outside func(func())) {
		restart := func(secret string) {
			outside(func() {
				if err := caddy.Stop(); err != nil {
					t.Error(err)
				}
				running.load(config(secret))
				running.app().stopReports()
			})
			for _, path := range []string{"/one", "/two"} {
				for range 10 {
					r.wantStatus(200, path, "X-Key", "burst")
				}
				for i := range 6 { // and for 18 s a new client is refused
					r.wantStatus(503, path, "X-Key", fmt.Sprint("waits ", i))
				}
			}
		}
		for range 10 {
			r.wantStatus(200, "/one", "X-Key", "burst")
		}
		asked := time.Now()
		refused := r.wantStatus(503, "/one", "X-Key", "k")
		if len(refused.Cookies()) != 1 {
			r.Fatalf("%v, want a ticket", refused.Header)
		}
		cookie := refused.Cookies()[0]
		bring := func(status int, path, key string) answered {
			r.Helper()
			return r.wantStatus(status, path, "X-Key", key, "Cookie", cookie.Name+"="+cookie.Value)
		}
		wantTickets := func(name string, want adminapi.TicketStatus) {
			r.Helper()
			if got := *r.shieldStatus(name).Tickets; got != want {
				r.Errorf("tickets at %s: %+v, want %+v", name, got, want)
			}
		}
		due := told(r, refused)
		restart("{env.SHIELD_TEST_SECRET}")
		awaitTransit()
		if early, remains := told(r, bring(503, "/one", "k")), due-time.Since(asked); early != remains {
			r.Errorf("told %v, and early after the restart %v; want the same time: %v", due, early, remains)
		}
		pass(time.Until(asked.Add(due)))
		bring(503, "/two", "k")     // is another shield
		bring(503, "/one", "thief") // is another client
		bring(200, "/one", "k")
		bring(503, "/one", "k") // used
		wantTickets("one", adminapi.TicketStatus{Honoured: 1, Worthless: 2})
		wantTickets("two", adminapi.TicketStatus{Honoured: 0, Worthless: 1})
		restart("another's secret")
		bring(503, "/one", "k")
		wantTickets("one", adminapi.TicketStatus{Honoured: 0, Worthless: 1})
	})
}

// A ticket is in no log: neither in that of the refusal, nor in that of the client's return,
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

// written has, by the request's X-Visit, a channel for what has been written of its answer.
var written sync.Map // string -> chan writing

// A writing is what a handler has written of an answer.
type writing struct{ status, bytes int }

// seesAnswers notes what is written of the answers to some requests.
func seesAnswers(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	rec := &notingWriter{ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: w}}
	err := next.ServeHTTP(rec, r)
	if ch, ok := written.Load(r.Header.Get("X-Visit")); ok {
		ch.(chan writing) <- rec.writing
	}
	return err
}

type notingWriter struct {
	*caddyhttp.ResponseWriterWrapper
	writing
}

func (w *notingWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriterWrapper.WriteHeader(status)
}

func (w *notingWriter) Write(b []byte) (int, error) {
	w.bytes += len(b)
	return w.ResponseWriterWrapper.Write(b)
}

// A refusal that is held is dropped when its client goes away: only its status is noted.
func heldRefusalOfAClientThatIsGone(r *rig) {
	r.wantStatus(200, "/gone") // takes the token
	done := make(chan writing, 1)
	written.Store("gone", done)
	defer written.Delete("gone")
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.addr+"/gone", nil)
	if err != nil {
		r.Fatal(err)
	}
	req.Header.Set("X-Visit", "gone")
	go func() {
		if a, err := answer(r.client.Do(req)); err == nil {
			r.Errorf("answered %d before it was gone", a.StatusCode)
		}
	}()
	synctest.Wait()
	if held := r.shieldStatus("gone").Held; held != 1 {
		r.Errorf("%d refusals are held, want 1", held)
	}
	cancel()
	if got := <-done; got != (writing{status: shield.StatusClientGone}) {
		r.Errorf("wrote %+v to a client that was gone, want only the status %d", got, shield.StatusClientGone)
	}
	synctest.Wait()
	if held := r.shieldStatus("gone").Held; held != 0 {
		r.Errorf("%d refusals are held for a client that is gone", held)
	}
}

// A held refusal is sent within a second, and says whole seconds that end at the
// slot: 1.9 s after the token was taken.
func heldRefusalHitsTheSlot(r *rig) {
	began := time.Now()
	r.wantStatus(200, "/held")
	a := r.wantStatus(503, "/held")
	if a.Header.Get("Retry-After") != "1" || a.Header.Get("Retry-After-Ms") != "1000" {
		r.Errorf("Retry-After %s, %s ms; want a whole second", a.Header.Get("Retry-After"), a.Header.Get("Retry-After-Ms"))
	}
	pass(time.Second)
	if took := time.Since(began); took < 1900*time.Millisecond || took > 1901*time.Millisecond {
		r.Errorf("the client is told to come after %v; want 1.9 s, when there is a token", took)
	}
	r.wantStatus(200, "/held")
}

// A reload, or the end, of a config lets held refusals be sent, and releases all that held
// them. Promises of the old config hold in the new.
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
				r.Errorf("%d refusals are held, want 1", held)
			}
			return results
		}
		wantRefusal := func(results <-chan answered) {
			if a := <-results; a.StatusCode != 503 || a.Header.Get("Retry-After") == "" || a.body == "" {
				r.Errorf("%d %v %q; want a whole refusal", a.StatusCode, a.Header, a.body)
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
		wantRefusal(results)
		if held := r.shieldStatus("h").Held; held != 0 {
			r.Errorf("%d refusals are held, want none", held)
		}
		pass(time.Until(asked.Add(wait)))
		r.wantStatus(200, "/s", "X-Key", "b")
		if c := r.shieldStatus("s").Line; c.Kept != 1 || c.Promises != 2 {
			r.Errorf("%+v; want a promise of the old config kept", c)
		}

		pass(5 * time.Second) // the last one held does not come back; the token is there again
		results = hold()
		var record *backendRecord
		for _, s := range r.app().configured.shields {
			if s.name == "h" {
				record = s.record
			}
		}
		outside(func() {
			if err := caddy.Stop(); err != nil {
				t.Error(err)
			}
		})
		wantRefusal(results)
		if held := record.Stats(shield.Now()).Held; held != 0 {
			r.Errorf("%d refusals are held after the end", held)
		}
	})
	eventually(t, "no goroutine of shield is left", func() bool { return len(shieldStacks()) == 0 })
}

// Metrics, status and reports count promises by what has become of them. The
// clients are played in a time of their own, against the state of a running shield:
// one of four comes when it is told, one late, one too early until it is let in,
// and one never.
func TestPromisesAreReported(t *testing.T) {
	r := start(t, setup{handlers: `{"handler": "shield", "name": "s", "capacity": {"rate": 20, "burst": 10}, "pushback": {"max": "4s"}},` + respondOK})
	r.app().stopReports()
	b := r.app().configured.shields[0]
	g, err := shield.New(shield.Config{
		Capacity: limiter.Config{Rate: 20, Burst: 10}, Pushback: pushback.AnswerConfig{Max: 4 * time.Second},
	}, &shield.State{Backend: &b.record.Backend})
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
			g.Admit(now, shield.Request{Client: limiter.Key(10_000 + now/time.Millisecond)}) // strangers
		}
		for i := range next {
			if next[i] > now {
				continue
			}
			d := g.Admit(now, shield.Request{Client: limiter.Key(i + 1), Agent: "curl/8.1"})
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
		d := g.Admit(then, shield.Request{Client: 20_000 + i})
		if d.Hold > 0 {
			d.Sent()
		}
	}
	g.Admit(then+2500*time.Millisecond, shield.Request{Client: 20_059})
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
	c := r.shieldStatus("s").Line
	if c.Promises != p.Made || c.Deferrals != p.Deferred || c.Kept != p.Kept || c.Late != p.Late || c.NoShow != p.NoShow || c.Early != s.EarlyAdmitted || c.Broken != s.Broken || c.KeptRatio != s.KeptShare {
		t.Errorf("status: %+v, want what the metrics say", c)
	}
	if f := r.shieldStatus("s").Families["curl"]; f != s.Families[pushback.FamilyOf("curl/8.0")] || f.Kept == 0 || f.Kept == f.Late || f.Early == 0 {
		t.Errorf("curl: %+v, want %+v", f, s.Families[pushback.FamilyOf("curl/8.0")])
	}
	r.app().reportOnce(shield.Now())
	if seen := b.record.reported.refused; seen != s.Refused {
		t.Errorf("reported: %+v, want %+v", seen, s.Refused)
	}
}

// In observe mode no client is refused, not even one that was told a time before.
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

// A config that failed had changed how many clients the running one remembers.
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
		{with(`"tickets": true, "secret": "correct horse"`), "secret has 13 bytes; want at least 16"},
		{with(`"secret": "` + secret + `"`), "secret is set, and tickets are off; want both or neither"},
		{with(`"tickets": true, "secret": "` + secret + ` {horse}"`), "secret has an empty or unknown placeholder"},
		{with(`"tickets": true, "secret": "` + secret + ` {horse.battery}"`), "secret has an empty or unknown placeholder"},
		{with(`"tickets": true, "secret": "` + secret + ` {env.SHIELD_TEST_NO_SUCH_SECRET}"`), "secret has an empty or unknown placeholder"},
		{with(`"tickets": true, "secret": "{env.SHIELD_TEST_NO_SUCH_SECRET}"`), "secret has an empty or unknown placeholder"},
		{with(`"tickets": true, "secret": "{file./no/such/secret}"`), "secret has an empty or unknown placeholder"},
		{with(`"tickets": true, "secret": "`+secret+`"`) + "," + with(`"tickets": true, "secret": "the other horse battery staple"`), `retries of shield "s" is defined twice, with different secrets`},
		{with(`"tickets": true, "secret": "`+secret+`"`) + "," + with(``), `retries of shield "s" is defined twice: with tickets true, and with tickets unset; want one`},
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
