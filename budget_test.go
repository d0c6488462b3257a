package shield

import (
	"compress/gzip"
	"context"
	"fmt"
	"github.com/herdshield/shield/loadshed"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/meter"
)

// tokensZone is a zone of tokens that responses report in the header X-Cost.
func tokensZone(t testing.TB, z Zone) Zone {
	source := must(meter.Parse("header X-Cost"))
	z.Name, z.Unit, z.Settle = "tokens", "tokens", &source
	return z
}

// finish ends a request that has really cost so much.
func (g *Guard) finish(now time.Duration, d *Decision, cost float64) {
	g.settle(now, d.charges, Served, meter.End{Status: http.StatusOK, Header: http.Header{"X-Cost": {fmt.Sprint(cost)}}})
	d.charges = nil
	d.Done(now, Served)
}

// A key of 100 tokens a minute has 20 workers that send requests of 5 to 60 tokens, and wait as long as they are told. The tokens
// that limiters charge after the response let 663 pass in a minute (BerriAI/litellm#18730). Here it is what the bucket allows, and
// nearly all of it. With a guess of a tenth 33 requests pass at once, and the
// key has a debt, which it pays in the next six minutes: what it gets in all is the same.
func TestTokensKeepToTheRate(t *testing.T) {
	for _, c := range []struct {
		name string
		zone Zone
	}{
		{"learned", Zone{AutoCost: true}},
		{"a tenth", Zone{Cost: 3}},
		{"ten times", Zone{Cost: 100}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(10) {
				z := tokensZone(t, c.zone)
				z.Limit = limiter.Config{Rate: 100, Per: time.Minute}
				s := newStage(t, Config{Zones: []Zone{z}}, 0, 0, seed)
				g, rng := s.g, s.random
				used := make([]float64, 11) // by the minute
				rejected := 0
				var send func(now time.Duration)
				send = func(now time.Duration) {
					d := g.Admit(now, Request{Keys: []limiter.Key{1}, Client: 1, Agent: "python-httpx"})
					if !d.Admit {
						rejected++
						s.at(now+d.Hold+time.Duration(d.Hint.Ms)*time.Millisecond, send)
						return
					}
					cost, took := 5+rng.IntN(56), time.Duration((0.5+2.5*rng.Float64())*float64(time.Second))
					s.at(now+took, func(now time.Duration) {
						used[min(10, now/time.Minute)] += float64(cost)
						g.finish(now, &d, float64(cost))
						send(now)
					})
				}
				for range 20 {
					s.at(time.Duration(rng.IntN(1e9)), send)
				}
				s.play(10*time.Minute - 1)
				first, sum := used[0], 0.
				for _, n := range used[1:10] {
					sum += n
				}
				t.Logf("seed %d: %v in the first minute, %v in the next nine, %d rejections", seed, first, sum, rejected)
				if late := sum < 0.9*900; sum > 1.1*900 || late && c.name != "a tenth" || first+sum < 0.9*1100 || first+sum > 1.1*1100 {
					t.Errorf("seed %d: %v tokens in the first minute, and %v in the next nine; want 810 to 990 there, and 990 to 1210 in all", seed, first, sum)
				}
			}
		})
	}
}

// newYear has the process begin at the last instant of a year in Berlin, less so much.
func newYear(t *testing.T, before time.Duration) (in *time.Location) {
	in = must(time.LoadLocation("Europe/Berlin"))
	was := clock
	clock = func() time.Time { return time.Date(2027, 1, 1, 0, 0, 0, 0, in).Add(Now() - before) }
	t.Cleanup(func() { clock = was })
	return in
}

// A quota of a day by the calendar is whole at midnight, and not before. The 100,000 clients that have used it up are told times of
// which no second has more than 1 in 500.
func TestCalendar(t *testing.T) {
	const before = 3 * time.Hour
	in := newYear(t, before)
	g := mustNew(t, Config{
		Zones: []Zone{{Name: "contract", Limit: limiter.Config{Rate: 2, Per: 24 * time.Hour}, Calendar: &Calendar{In: in}, MaxKeys: 400_000}},
	}, nil)
	of := func(i int) Request {
		return Request{Keys: []limiter.Key{limiter.Key(i+1) * 0x9e3779b97f4a7c15}, Client: limiter.Key(i + 1)}
	}
	told := map[int]int{}
	for i := range 100_000 {
		for n := range 2 {
			if d := g.Admit(time.Duration(n), of(i)); !d.Admit {
				t.Fatalf("client %d: request %d is rejected", i, n)
			}
		}
		d := g.Admit(time.Hour, of(i))
		if wait := time.Duration(d.Hint.Seconds) * time.Second; d.Admit || wait < 2*time.Hour || wait > 2*time.Hour+15*time.Minute {
			t.Fatalf("client %d: admitted %v, told %v; want 2h to 2h15m", i, d.Admit, wait)
		}
		told[d.Hint.Seconds]++
	}
	for _, at := range []time.Duration{before - time.Second, before + time.Second} {
		for i := 0; i < 100_000; i += 1000 {
			if d := g.Admit(at, of(i)); d.Admit != (at > before) {
				t.Fatalf("client %d is admitted %v before midnight: %v", i, before-at, d.Admit)
			}
		}
	}
	for second, n := range told {
		if n > 200 {
			t.Errorf("%d clients are told %d s", n, second)
		}
	}
	if z := g.Explain(before+time.Hour, of(0)).Zones[0]; z.Tokens != 1 || z.Burst != 2 {
		t.Errorf("%d of %d tokens are left after one request of the new day; want 1 of 2", z.Tokens, z.Burst)
	}
}

// A zone that gets a calendar in a reload, or one of another period, or loses it, has whole buckets, and goes by the clock of its new limit. In
// another time zone on the same day nobody has more.
func TestCalendarIsReloaded(t *testing.T) {
	newYear(t, time.Hour)
	state, now, r := new(State), time.Second, Request{Keys: []limiter.Key{1 << 40}}
	for i, z := range []Zone{
		{Limit: limiter.Config{Rate: 5, Per: time.Second}},
		{Limit: limiter.Config{Rate: 5, Per: 24 * time.Hour}, Calendar: &Calendar{}},
		{Limit: limiter.Config{Rate: 5, Per: Month}, Calendar: &Calendar{Month: true}},
		{Limit: limiter.Config{Rate: 5, Per: 24 * time.Hour}, Calendar: &Calendar{}},
		{Limit: limiter.Config{Rate: 5, Per: 24 * time.Hour}, Calendar: &Calendar{In: must(time.LoadLocation("America/Los_Angeles"))}},
		{Limit: limiter.Config{Rate: 5, Per: time.Second}},
	} {
		z.Name = "z"
		g := mustNew(t, Config{Zones: []Zone{z}}, state)
		for round := range 2 {
			n, want := 0, 5
			for g.Admit(now, r).Admit {
				n++
			}
			if z.Calendar != nil && (round == 1 || z.Calendar.In != nil) {
				want = 0
			}
			if n != want {
				t.Errorf("config %d: %d requests are admitted at %v, want %d", i, n, now, want)
			}
			now += time.Second
		}
	}
}

// A request of the config before that is decided on after one of a config without the calendar leaves the bucket to that.
func TestCalendarThatIsTakenAway(t *testing.T) {
	var state State
	guard := func(z Zone) *Guard { return must(New(Config{Zones: []Zone{z}}, &state)) }
	day := guard(Zone{Name: "z", Limit: limiter.Config{Rate: 10, Per: 24 * time.Hour}, Calendar: &Calendar{}})
	ask := func(g *Guard, now time.Duration) (admitted bool) {
		d := g.Admit(now, Request{Keys: []limiter.Key{1}})
		d.Done(now, Served)
		return d.Admit
	}
	ask(day, time.Minute)
	minute := guard(Zone{Name: "z", Limit: limiter.Config{Rate: 600, Per: time.Minute, Burst: 10}})
	ask(minute, 61*time.Second)
	ask(day, 62*time.Second)
	for range 30 { // the burst is used up
		ask(minute, 63*time.Second)
	}
	n := 0
	for range 30 {
		if ask(minute, time.Hour) {
			n++
		}
	}
	if n != 10 {
		t.Errorf("%d of 30 are admitted an hour later; want the burst of 10", n)
	}
}

// Months have different lengths, and so do days. Wherever they begin, each instant is in the window that begins before it and ends after it.
func TestCalendarPeriods(t *testing.T) {
	at := func(zone string) *time.Location {
		in := must(time.LoadLocation(zone))
		return in
	}
	berlin := at("Europe/Berlin")
	for _, c := range []struct {
		of   Calendar
		at   string
		want time.Duration
	}{
		{Calendar{In: berlin}, "2026-03-29T12:00:00+02:00", 23 * time.Hour},
		{Calendar{In: berlin}, "2026-10-25T12:00:00+01:00", 25 * time.Hour},
		{Calendar{}, "2026-03-29T12:00:00+02:00", 24 * time.Hour},
		{Calendar{Month: true}, "2028-02-29T23:59:59Z", 29 * 24 * time.Hour},
		{Calendar{Month: true, In: berlin}, "2026-12-31T23:30:00Z", 31 * 24 * time.Hour}, // January
	} {
		now, err := time.Parse(time.RFC3339, c.at)
		begins, ends := c.of.around(now)
		if err != nil || begins.After(now) || !ends.After(now) || ends.Sub(begins) != c.want {
			t.Errorf("%s: %v to %v, %v; want %v", c.at, begins, ends, err, c.want)
		}
	}
	for _, name := range []string{"America/Santiago", "America/Havana", "Atlantic/Azores", "Asia/Beirut", "Australia/Lord_Howe", "Europe/Berlin"} {
		in := at(name)
		for now := time.Date(2026, 1, 1, 0, 1, 0, 0, in); now.Year() == 2026; now = now.Add(20 * time.Minute) {
			if begins, ends := (&Calendar{In: in}).around(now); begins.After(now) || !ends.After(now) || ends.Sub(begins) > 25*time.Hour {
				t.Fatalf("%s: the window of %v is %v to %v", name, now, begins, ends)
			}
		}
	}
}

// A request may carry its client's rate. The burst follows; a value that is missing, wrong or out of range is counted, or cut.
func TestCarriedRates(t *testing.T) {
	g := mustNew(t, Config{Zones: []Zone{{Name: "plan", Limit: limiter.Config{Rate: 60, Per: time.Minute, Burst: 60}, MinRate: 6}}}, nil)
	for i, c := range []struct{ rate, burst float64 }{{60, 60}, {30, 30}, {45, 45}, {6, 6}, {1, 6}, {math.NaN(), 6}, {600, 60}, {0, 6}} {
		q := Request{Keys: []limiter.Key{limiter.Key(i + 1)}, Client: limiter.Key(i + 1), Asks: []Ask{{Rate: c.rate}}}
		n, d := 0., g.Admit(0, q)
		for ; d.Admit; n++ {
			d = g.Admit(0, q)
		}
		if n != c.burst {
			t.Errorf("rate %v: %v at once; want %v", c.rate, n, c.burst)
		}
		if want := time.Duration(60/min(60, max(6, c.burst))*1000) * time.Millisecond; d.Wait < want-20*time.Millisecond || d.Wait > want+time.Second {
			t.Errorf("rate %v: told %v; want %v", c.rate, d.Wait, want)
		}
	}
	if n := g.ZoneStats(0)["plan"].Unknown; n != 12 {
		t.Errorf("%d values are counted as missing or wrong; want the 12 requests without one", n)
	}
}

// Admitted responses tell what a next request would find.
func TestRemaining(t *testing.T) {
	z := tokensZone(t, Zone{AutoCost: true, Headers: HeadersOpenAI})
	z.Limit = limiter.Config{Rate: 100, Per: time.Minute}
	g := mustNew(t, Config{Zones: []Zone{{Name: "few", Limit: limiter.Config{Rate: 10, Per: time.Minute}, Cost: 2, Headers: HeadersOn}, z, {Name: "quiet", Limit: limiter.Config{Rate: 1}}}}, nil)
	q := Request{Keys: []limiter.Key{1, 1, 1}, Client: 1}
	tell := func() http.Header {
		h := http.Header{}
		g.Remaining(h, 0, &q)
		return h
	}
	d := g.Admit(0, q)
	h := tell()
	if got, want := h["Ratelimit"], []string{`"few";r=4;t=6`, `"tokens";r=0;t=60`}; !slices.Equal(got, want) {
		t.Errorf("RateLimit is %q, want %q", got, want)
	}
	if got, want := h["Ratelimit-Policy"], []string{`"few";q=5;w=60`, `"tokens";q=100;w=60;qu="tokens"`}; !slices.Equal(got, want) {
		t.Errorf("RateLimit-Policy is %q, want %q", got, want)
	}
	g.finish(0, &d, 30)
	h = tell()
	if got, want := h["Ratelimit"], []string{`"few";r=4;t=6`, `"tokens";r=70;t=1`}; !slices.Equal(got, want) {
		t.Errorf("RateLimit is %q, want %q", got, want)
	}
	for name, want := range map[string]string{"limit": "100", "remaining": "70", "reset": "18s"} {
		if got := h.Get("x-ratelimit-" + name + "-tokens"); got != want {
			t.Errorf("x-ratelimit-%s-tokens is %q, want %q", name, got, want)
		}
	}
}

// What is left is that of the client's own rate, and of several zones with one unit the least is told. A request that should say its
// rate, and says nothing at all, has the lowest, whatever it is asked.
func TestRemainingOfCarriedRates(t *testing.T) {
	day := limiter.Config{Rate: 100, Per: 24 * time.Hour}
	source := must(meter.Parse("header X-Cost"))
	zones := []Zone{
		{Name: "plan", Unit: "tokens", Limit: day, MinRate: 10, Settle: &source, Headers: HeadersOpenAI},
		{Name: "all", Unit: "tokens", Limit: day, Cost: 45, Settle: &source, Headers: HeadersOpenAI},
	}
	for i, c := range []struct {
		asks        []Ask
		left, limit string
		after       int
	}{
		{[]Ask{{Rate: 50}, {}}, "49", "50", 92}, // 55 of the other zone
		{[]Ask{{Rate: 100}, {}}, "55", "100", 96},
		{nil, "9", "10", 60},
	} {
		g := mustNew(t, Config{Zones: zones}, nil)
		q := Request{Keys: []limiter.Key{1, 1}, Client: 1, Asks: c.asks}
		d := g.Admit(0, q)
		h := http.Header{}
		g.Remaining(h, 0, &q)
		if got, limit := h.Get("x-ratelimit-remaining-tokens"), h.Get("x-ratelimit-limit-tokens"); got != c.left || limit != c.limit {
			t.Errorf("row %d: %s of %s are left, want %s of %s", i, got, limit, c.left, c.limit)
		}
		g.finish(0, &d, 4)
		if got := g.Explain(0, q).Zones[0].Tokens; got != c.after { // of the zone's 100
			t.Errorf("row %d: %d are left after a cost of 4, want %d", i, got, c.after)
		}
		if n := g.ZoneStats(0)["plan"].Unknown; (n == 1) != (c.asks == nil) {
			t.Errorf("row %d: %d rates are missing", i, n)
		}
	}
}

// A key that owes tokens is told how long it takes to earn them, and owes no more than a burst, or an hour's worth.
func TestDebtIsBounded(t *testing.T) {
	for _, c := range []struct {
		cost float64
		want time.Duration
	}{{130, 31 * time.Second}, {1e12, 61*time.Minute + 1*time.Second}} {
		z := tokensZone(t, Zone{Cost: 1})
		z.Limit = limiter.Config{Rate: 60, Per: time.Minute, Burst: 100}
		g := mustNew(t, Config{Zones: []Zone{z}}, nil)
		q := Request{Keys: []limiter.Key{1}, Client: 1}
		d := g.Admit(0, q)
		g.finish(0, &d, c.cost)
		if d = g.Admit(0, q); d.Admit || d.Wait < c.want-time.Minute || d.Wait > c.want+time.Second {
			t.Errorf("cost %v: admitted %v, told %v; want %v", c.cost, d.Admit, d.Wait, c.want)
		}
	}
}

// The first requests of a zone take all that is earned in a minute, as nothing is known of costs: of a quota of a month that leaves others to
// come. What does not tell its cost in the end
// costs as much as others have by then, and an error of the client nothing: it need not wait for a minute after its first mistake.
func TestFirstCosts(t *testing.T) {
	z := tokensZone(t, Zone{AutoCost: true})
	z.Limit = limiter.Config{Rate: 100, Per: time.Minute}
	g := mustNew(t, Config{Zones: []Zone{z}}, nil)
	of := func(key limiter.Key) Request { return Request{Keys: []limiter.Key{key}, Client: limiter.Key(key)} }
	ends := []struct {
		what string
		o    Outcome
		end  meter.End
		left int
	}{
		{"not found", Served, meter.End{Status: http.StatusNotFound}, 100},
		{"told", Served, meter.End{Status: http.StatusOK, Header: http.Header{"X-Cost": {"7"}}}, 93},
		{"not told", Served, meter.End{Status: http.StatusOK}, 93},
		{"cut off", Detached, meter.End{Status: http.StatusOK}, 93},
		{"cut off after more", Detached, meter.End{Status: http.StatusOK, Header: http.Header{"X-Cost": {"20"}}}, 80},
		{"no response", Aborted, meter.End{}, 93},
		{"the client has left", Aborted, meter.End{Status: 499}, 93}, // as proxies write it
	}
	var all []Decision
	for i := range ends {
		all = append(all, g.Admit(0, of(limiter.Key(i+1))))
	}
	for i, c := range ends {
		d := &all[i]
		g.settle(0, d.charges, c.o, c.end)
		if e := g.Explain(0, of(limiter.Key(i+1))).Zones[0]; !d.Admit || e.Tokens != c.left {
			t.Errorf("%s: %d tokens are left; want %d", c.what, e.Tokens, c.left)
		}
	}
	z.Limit = limiter.Config{Rate: 20_000_000, Per: 30 * 24 * time.Hour}
	g = mustNew(t, Config{Zones: []Zone{z}}, nil)
	for range 20 {
		if d := g.Admit(0, of(1)); !d.Admit || d.charges[0].n != 463 {
			t.Fatalf("admitted: %v, with a deposit of %d of a month's 20,000,000; want 463", d.Admit, d.charges[0].n)
		}
	}
}

// Requests end in all the ways that there are, many at a time, while configs are reloaded. In the end each has been charged once: what
// its response told, or what was taken for it if that is more and it was cut off, or nothing if the backend has rejected it, or has blamed its client.
func TestEachRequestIsChargedOnce(t *testing.T) {
	const burst, reserve, requests = 10_000_000, 50, 3000
	usage := must(meter.Parse("usage"))
	var unknown atomic.Int64
	config := Config{
		Zones: []Zone{{
			Name: "tokens", Unit: "tokens", Limit: limiter.Config{Rate: burst, Per: 300 * 24 * time.Hour, Burst: burst}, Cost: reserve, Settle: &usage,
			Key: func(*http.Request) string { return "one" },
		}},
		Concurrency: 1000, Queue: loadshed.QueueConfig{Size: 1000, Timeout: time.Minute},
		CostUnknown: func(string) { unknown.Add(1) },
	}
	state := new(State)
	var serve atomic.Pointer[http.Handler]
	var charged atomic.Int64
	backend := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rng := rand.New(rand.NewPCG(uint64(r.ContentLength), 1))
		n := int64(rng.IntN(200))
		text := fmt.Sprintf(`{"usage": {"total_tokens": %d}}`, n)
		switch r.ContentLength % 8 {
		case 0: // nothing that is told
			charged.Add(reserve)
			_, _ = io.WriteString(w, "{}")
		case 1:
			charged.Add(reserve)
			panic(http.ErrAbortHandler)
		case 2:
			w.WriteHeader([]int{http.StatusServiceUnavailable, http.StatusNotFound}[r.ContentLength/8%2])
		case 3: // a stream that breaks off after it has told something
			charged.Add(max(reserve, n))
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprintf(w, "data: %s\n\n", text)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case 4: // its client leaves
			charged.Add(max(reserve, n))
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprintf(w, "data: %s\n\n", text)
			r.Context().Value(cancelKey{}).(context.CancelFunc)()
			<-r.Context().Done()
		case 6: // its client leaves when all has been said
			charged.Add(n)
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprintf(w, "data: %s\n\ndata: [DONE]\n\n", text)
			r.Context().Value(cancelKey{}).(context.CancelFunc)()
			<-r.Context().Done()
		case 5:
			charged.Add(n)
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, text)
			_ = z.Close()
		default:
			charged.Add(n)
			_, _ = w.(io.ReaderFrom).ReadFrom(strings.NewReader(text))
		}
	})
	reload := func(n int) {
		c := config
		c.Zones = slices.Clone(c.Zones)
		c.Zones[0].MaxKeys = limiter.MinKeys + n
		h := mustNew(t, c, state).Handler(backend)
		serve.Store(&h)
	}
	reload(0)
	began := Now()
	var all sync.WaitGroup
	slots := make(chan struct{}, 30)
	for i := range requests {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			defer func() { _ = recover() }()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r := httptest.NewRequestWithContext(context.WithValue(ctx, cancelKey{}, cancel), http.MethodPost, "/", nil)
			r.ContentLength = int64(i)
			(*serve.Load()).ServeHTTP(httptest.NewRecorder(), r)
		})
		if i%100 == 0 {
			reload(i)
		}
	}
	all.Wait()
	g := mustNew(t, config, state)
	e := g.Explain(Now(), Request{Keys: []limiter.Key{g.Hasher().KeyOf("one")}, Client: 1})
	earned := int64(burst * (Now() - began).Seconds() / (300 * 24 * time.Hour).Seconds())
	if got := int64(burst-e.Zones[0].Tokens) + earned; got < charged.Load()-1 || got > charged.Load()+1 {
		t.Errorf("%d tokens are charged; want %d", got, charged.Load())
	}
	if n, by := g.ZoneStats(Now())["tokens"].Unknown, unknown.Load(); n != requests/8 || by != 1 {
		t.Errorf("%d unknown costs, told %d times; want %d, told once", n, by, requests/8)
	}
}

type cancelKey struct{}

// A request that was admitted before a reload is settled under the limit that holds when it ends, by a rate that is higher or lower.
func TestReloadBeforeTheEnd(t *testing.T) {
	for _, c := range []struct {
		rate  float64 // per hour, after one of 1
		burst int     // after one of 100
		cost  float64 // in the end, of a deposit of 50
		left  int
	}{{2, 1000, 40, 10}, {.1, 100, 0, 50}} {
		state := new(State)
		config := func(rate float64, burst int) *Guard {
			z := tokensZone(t, Zone{Cost: 50})
			z.Limit = limiter.Config{Rate: rate, Per: time.Hour, Burst: burst}
			return mustNew(t, Config{Zones: []Zone{z}}, state)
		}
		q := Request{Keys: []limiter.Key{1}, Client: 1}
		before := config(1, 100)
		first := before.Admit(0, q)
		after := config(c.rate, c.burst)
		for range c.burst/50 - 1 { // all that is left
			d := after.Admit(time.Second, q)
			after.finish(time.Second, &d, 50)
		}
		before.finish(time.Second, &first, c.cost)
		if got := after.Explain(2*time.Second, q).Zones[0].Tokens; got != c.left {
			t.Errorf("%+v: %d tokens are left", c, got)
		}
	}
}

// A client cannot choose that its cost is not found: by an encoding that nobody here reads, or by hanging up before the end.
func TestCostsAreNotEvaded(t *testing.T) {
	usage := must(meter.Parse("usage"))
	z := Zone{Name: "tokens", Limit: limiter.Config{Rate: 100_000, Per: 24 * time.Hour}, AutoCost: true, Settle: &usage}
	z.Key = func(r *http.Request) string { return r.Header.Get("X-Key") }
	g := mustNew(t, Config{Zones: []Zone{z}}, nil)
	left := func(key string) int {
		return g.Explain(Now(), Request{Keys: []limiter.Key{g.Hasher().KeyOf(key)}, Client: 1}).Zones[0].Tokens
	}
	accepted := ""
	h := g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		accepted = r.Header.Get("Accept-Encoding")
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"usage\": null}\n\n")
		if cancel, ok := r.Context().Value(cancelKey{}).(context.CancelFunc); ok {
			cancel()
			return
		}
		_, _ = fmt.Fprintf(w, "data: {\"usage\": {\"total_tokens\": %s}}\n\n", r.Header.Get("X-Cost"))
	}))
	ask := func(key, cost string, ctx context.Context) {
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil)
		r.Header = http.Header{"X-Key": {key}, "X-Cost": {cost}, "Accept-Encoding": {"br, gzip;q=0.5, deflate", "zstd"}}
		h.ServeHTTP(httptest.NewRecorder(), r)
		if got := r.Header["Accept-Encoding"]; len(got) != 2 {
			t.Errorf("the client's header is now %q", got)
		}
	}
	ask("honest", "2000", t.Context())
	if accepted != "gzip;q=0.5, zstd" {
		t.Errorf("the backend is told to accept %q", accepted)
	}
	for range 8 {
		ask("sly", "1", t.Context())
	}
	before := left("sly")
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		ask("sly", "2000", context.WithValue(ctx, cancelKey{}, cancel))
	}
	if used := before - left("sly"); used < 19*1900 {
		t.Errorf("20 requests that were hung up on in time have cost %d; want what the last ones of others have", used)
	}
}

// Amounts that only some limits have: parts of a unit, costs by status of what the request asked for, quotas above a billion.
func TestUnusualAmounts(t *testing.T) {
	status := must(meter.Parse("status 401"))
	day := limiter.Config{Rate: 100, Per: 24 * time.Hour}
	g := mustNew(t, Config{Zones: []Zone{
		{Name: "half", Limit: day, Cost: 0.5},
		{Name: "wrong", Limit: day, CostAsked: true, Settle: &status},
		{Name: "huge", Limit: limiter.Config{Rate: 5e9, Per: 24 * time.Hour}, Calendar: &Calendar{}},
	}}, nil)
	q := Request{Keys: []limiter.Key{1, 1, 1}, Client: 1, Asks: []Ask{{}, {Cost: 40}, {}}}
	for i := range 10 {
		d := g.Admit(Now(), q)
		if !d.Admit {
			t.Fatal(d.Reason)
		}
		g.settle(Now(), d.charges, Served, meter.End{Status: []int{http.StatusUnauthorized, http.StatusOK}[min(i, 1)]})
	}
	for i, want := range []int{95, 60, 5e9 - 10} {
		if z := g.Explain(Now(), q).Zones[i]; z.Tokens != want {
			t.Errorf("%s: %d are left, want %d", z.Name, z.Tokens, want)
		}
	}
}
