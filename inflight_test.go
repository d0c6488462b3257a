package shield

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
	"github.com/herdshield/shield/share/virtual"
)

// undithered is a Guard's pushback without held rejections.
var undithered = pushback.ResponseConfig{NoDither: true}

// inBubble lets time begin anew, in a synctest bubble.
func inBubble(t *testing.T) {
	was := epoch
	epoch = time.Now()
	t.Cleanup(func() {
		synctest.Wait()
		epoch = was
	})
	time.Sleep(time.Minute)
}

// verdict returns what a queued request has been told, if it has been.
func verdict(d *Decision) (v loadshed.Verdict, told bool) {
	select {
	case v = <-d.Verdict():
		return v, true
	default:
		return v, false
	}
}

// settle ends the wait of a queued request, which must have been given that verdict.
func settle(t *testing.T, g *Guard, now time.Duration, r Request, d *Decision, want loadshed.Verdict) {
	t.Helper()
	v, told := verdict(d)
	if !told || v != want {
		t.Fatalf("verdict %v, told: %v; want %v", v, told, want)
	}
	g.Settle(now, r, d, v)
}

// A request waits for the permit of another, and has it when that one is done. A limit that
// was used up while it waited rejects it, and it keeps no permit.
func TestQueuedRequestGetsThePermit(t *testing.T) {
	g := mustNew(t, Config{
		Concurrency: 1, Queue: loadshed.QueueConfig{Size: 3, Timeout: 100 * ms}, Pushback: undithered,
		Zones: []Zone{{Name: "z", Limit: perSecond(.1, 2)}},
	}, nil)
	now := time.Minute
	var rs [6]Request
	var ds [6]Decision
	for i := 1; i < len(rs); i++ {
		rs[i] = Request{Client: limiter.Key(i), Keys: []limiter.Key{5}}
		if i == 4 {
			rs[i].Keys = nil // not in the zone
		}
		ds[i] = g.Admit(now, rs[i])
		if queued := i > 1 && i < 5; ds[i].Queued() != queued || !queued && ds[i].Admit != (i == 1) {
			t.Fatalf("request %d: %+v; want one admitted, three queued, one rejected", i, ds[i])
		}
	}
	if ds[5].Reason != Concurrency || ds[5].Hint.Seconds < 1 {
		t.Errorf("%+v; want an appointment", ds[5])
	}
	if _, told := verdict(&ds[2]); told {
		t.Error("told before there was a permit")
	}
	now += 50 * ms
	ds[1].Done(now, Served)
	settle(t, g, now, rs[2], &ds[2], loadshed.Granted)
	if !ds[2].Admit || ds[2].Queued() || g.backend.inFlight.InFlight() != 1 {
		t.Fatalf("%+v; want it admitted, with its permit", ds[2])
	}
	ds[2].Done(now, Served) // the quota is used up
	settle(t, g, now, rs[3], &ds[3], loadshed.Granted)
	if ds[3].Admit || ds[3].Reason != Quota {
		t.Errorf("%+v; want it over its quota", ds[3])
	}
	settle(t, g, now, rs[4], &ds[4], loadshed.Granted)
	late := g.Admit(now, rs[4])
	now += 110 * ms
	if v, told := verdict(&late); told || late.Until() > now {
		t.Fatalf("verdict %v, told: %v; want its time to be over", v, told)
	} else if g.Settle(now, rs[4], &late, v); late.Admit || late.Reason != Concurrency || late.Hint.Seconds < 1 {
		t.Errorf("%+v; want an appointment", late)
	}
	ds[4].Done(now, Served)
	if n := g.backend.inFlight.InFlight(); n != 0 {
		t.Errorf("%d in flight at the end", n)
	}
}

// Clients that go while they wait leave nothing behind, whether or not they have
// been given a permit meanwhile.
func TestGoneFromTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inBubble(t)
		g := mustNew(t, Config{Concurrency: 1, PerClient: 2, Queue: loadshed.QueueConfig{Size: 3, Timeout: 100 * ms}}, nil)
		holds := g.Admit(Now(), Request{Client: 1, InFlightKey: 1})
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan bool)
		r := Request{Client: 2, InFlightKey: 2}
		for range 2 {
			go func() {
				d := g.Enter(ctx, Now(), r)
				gone <- d.Gone
			}()
		}
		synctest.Wait()
		if n := g.backend.inFlight.Waiting(); n != 2 {
			t.Fatalf("%d in the queue, want 2", n)
		}
		if d := g.Admit(Now(), r); d.Reason != PerClient {
			t.Errorf("%+v; want it to be one too many of its client", d)
		}
		cancel()
		for range 2 {
			if !<-gone {
				t.Error("still there")
			}
		}
		holds.Done(Now(), Served)
		if s := g.backend.Stats(0); s.InFlight != 0 || s.Queue.Length != 0 || s.Clients != 0 {
			t.Errorf("in the end %+v", s)
		}
	})
}

// A request that waits in vain is told so on time.
func TestEnterEndsWithoutTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inBubble(t)
		g := mustNew(t, Config{Concurrency: 1, Queue: loadshed.QueueConfig{Size: 30, Timeout: 50 * ms}, Pushback: undithered}, nil)
		holds := g.Admit(Now(), one(1))
		for round := range 3 {
			began := time.Now()
			done := make(chan Decision)
			for i := range 20 {
				go func() { done <- g.Enter(t.Context(), Now(), one(10+i)) }()
			}
			for range 20 {
				if d := <-done; d.Admit || d.Reason != Concurrency {
					t.Errorf("%+v; want it rejected", d)
				}
			}
			if took := time.Since(began); took > 51*ms {
				t.Errorf("round %d took %v", round, took)
			}
			time.Sleep(time.Hour) // and then all over again
		}
		holds.Done(Now(), Served)
	})
}

// Permits that were kept for a higher class go to a request that waits, though no other comes or ends.
func TestShareEndsWithoutTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inBubble(t)
		g := mustNew(t, Config{
			Concurrency: 10, Queue: loadshed.QueueConfig{Timeout: 30 * time.Second},
			Classes: []loadshed.Class{{Name: loadshed.Critical}, {Name: loadshed.Sheddable}},
		}, nil)
		for i := range 8 {
			r := one(1 + i)
			g.Classify(&r, loadshed.Critical)
			g.Admit(Now(), r)
		}
		began, r := Now(), one(20)
		g.Classify(&r, loadshed.Sheddable)
		if d := g.Enter(t.Context(), began, r); !d.Admit || d.At()-began > 3*time.Second+wakeEvery {
			t.Errorf("admitted: %v, after %v", d.Admit, d.At()-began)
		}
	})
}

// asksForPause has the backend ask in the answer to a request to be left alone.
func asksForPause(g *Guard, now, wait time.Duration) {
	var d Decision
	d.permit.Watch(&g.backend.inFlight, g.plan, now)
	d.Pause(now, wait)
}

// A backend that answers 503 with a Retry-After, ten times in a row and for six seconds, is left
// alone for so long, but for one request per second. Clients rejected meanwhile are told a time
// after it.
func TestPause(t *testing.T) {
	g := mustNew(t, Config{Adaptive: &loadshed.AdaptiveConfig{}, Pushback: undithered}, nil)
	now := time.Minute
	asks := func(n int, wait time.Duration) {
		for range n {
			asksForPause(g, now, wait)
		}
	}
	paused := func() time.Duration {
		return g.backend.Stats(now).Paused
	}
	old := g.Admit(now, one(7))
	asks(loadshed.RefusalsToPause-1, 5*time.Second)
	served := g.Admit(now, one(8))
	served.Done(now, Served)
	asks(1, 5*time.Second)
	now += loadshed.RefusalsSpan / 2
	asks(loadshed.RefusalsToPause, 5*time.Second)
	if now += loadshed.RefusalsSpan/2 - ms; paused() > 0 {
		t.Error("paused by answers before one that was served, or by many at once")
	}
	now += ms
	asks(loadshed.RefusalsToPause, 4*time.Second)
	asks(1, 5*time.Second) // of the same pause
	if old.Done(now, Served); paused() != 5*time.Second {
		t.Error("a request from before the pause ends it")
	}
	probes, end := 0, now+5*time.Second
	for ; now < end; now += 20 * ms {
		d := g.Admit(now, one(int(now/ms)))
		switch {
		case d.Admit:
			probes++
			d.Done(now+ms, Overloaded)
		case d.Reason != Pause || now+d.Wait < end:
			t.Fatalf("%v before its end: %+v", end-now, d)
		}
	}
	if pauses := g.backend.Stats(now).Pauses; probes < 4 || probes > 6 || pauses != 1 {
		t.Errorf("%d probes in 5 s, and %d pauses; want one per second of one", probes, pauses)
	}
	before := g.Limit()
	if d := g.Admit(now+ms, one(9)); !d.Admit {
		t.Errorf("%+v after the pause", d)
	}
	now += time.Second
	if g.Tick(now); g.Limit() > before/2+1 {
		t.Errorf("limit %d before the pause and %d after; want at most half", before, g.Limit())
	}
	now += time.Hour
	asks(loadshed.RefusalsToPause, 100*time.Hour)
	if paused() != loadshed.MaxPause {
		t.Errorf("a pause of %v, want at most %v", paused(), loadshed.MaxPause)
	}
	now += time.Second
	probe := g.Admit(now, one(10))
	if !probe.Admit || g.Admit(now, one(11)).Admit {
		t.Error("want one probe")
	}
	probe.Done(now, Served)
	if d := g.Admit(now, one(12)); !d.Admit {
		t.Errorf("%+v after a probe was served", d)
	}
}

// A request that may be tried during a pause stays one while it waits for room.
func TestProbeOfAPauseWaits(t *testing.T) {
	g := mustNew(t, Config{Concurrency: 1, Queue: loadshed.QueueConfig{Size: 5, Timeout: 200 * ms}, Pushback: undithered}, nil)
	now := time.Minute
	slow := g.Admit(now, Request{})
	for range loadshed.RefusalsToPause {
		now += time.Second
		asksForPause(g, now, 30*time.Second)
	}
	now += time.Second
	probe := g.Admit(now, Request{})
	if pauses := g.backend.Stats(now).Pauses; pauses != 1 || !probe.Queued() {
		t.Fatalf("%d pauses; %+v", pauses, probe)
	}
	slow.Done(now, Overloaded)
	if settle(t, g, now, Request{}, &probe, loadshed.Granted); !probe.Admit {
		t.Errorf("rejected for %v", probe.Reason)
	}
}

// Retries beyond what the backend can do besides first attempts are rejected while
// there is not room for all, and only then.
func TestRetryBudget(t *testing.T) {
	g := mustNew(t, Config{Capacity: perSecond(100, 100), Pushback: undithered}, nil)
	client := 0
	ask := func(now time.Duration, retry bool) Decision {
		client++
		r := one(client)
		r.Retry = retry
		return g.Admit(now, r)
	}
	for i := range 600 { // 60 per second
		if d := ask(time.Minute+time.Duration(i)*time.Second/60, i%3 == 0); !d.Admit {
			t.Fatalf("%+v, and there is room", d)
		}
	}
	admitted, rejected := 0, 0
	for i := range 20_000 { // 90 first attempts per second and 910 retries
		d := ask(time.Minute+10*time.Second+time.Duration(i)*ms, i%100 >= 9)
		if i < 10_000 || i%100 < 9 {
			continue
		}
		if d.Admit {
			admitted++
		} else if d.Reason == RetryBudget {
			rejected++
		}
	}
	if admitted > 200 || rejected < 5000 {
		t.Errorf("%d retries of 9100 were admitted in 10 s, %d rejected for the budget; want about 10 per second", admitted, rejected)
	}
}

// A client that has an appointment for one thing is let in for something critical, which leaves
// no tokens to others.
func TestCriticalRequestIsNotBarred(t *testing.T) {
	g := mustNew(t, Config{Concurrency: 10, Capacity: perSecond(10, 10), Classes: []loadshed.Class{{Name: loadshed.Critical}, {Name: loadshed.Sheddable}}, Pushback: undithered}, nil)
	now := time.Minute
	ask := func(client int, class string) Decision {
		r := one(client)
		g.Classify(&r, class)
		d := g.Admit(now, r)
		if d.Admit {
			d.Done(now, Served)
		}
		return d
	}
	for i := range 40 {
		ask(1+i%20, loadshed.Sheddable)
	}
	now += 500 * ms
	if d := ask(20, loadshed.Sheddable); d.Admit {
		t.Errorf("sheddable: %+v", d)
	}
	for i := range 5 { // as many tokens as there are
		if d := ask(20+i, loadshed.Critical); !d.Admit {
			t.Errorf("critical %d: %+v", i, d)
		}
	}
}

// Whatever happens to requests, and whatever is reloaded meanwhile, each permit is
// given back once.
func TestPermitsAreConserved(t *testing.T) {
	t.Parallel()
	configs := []Config{
		{Concurrency: 5, PerClient: 3, Queue: loadshed.QueueConfig{Size: 4, Timeout: 50 * ms}},
		{Adaptive: &loadshed.AdaptiveConfig{Initial: 6}, Classes: []loadshed.Class{{Name: loadshed.Critical}, {Name: loadshed.Sheddable}}},
		{Concurrency: 3},
		{Capacity: perSecond(200, 20), Adaptive: &loadshed.AdaptiveConfig{Target: 50 * ms}, Queue: loadshed.QueueConfig{Size: loadshed.NoQueue}},
		{Capacity: perSecond(100, 10), PerClient: 2},
		{Capacity: perSecond(100, 10), Concurrency: 6, Queue: loadshed.QueueConfig{Size: 4}, Shared: true, Zones: []Zone{{Name: "each", Limit: limiter.Config{Rate: 10, Burst: 3}, Shared: true}}},
		{Adaptive: &loadshed.AdaptiveConfig{}, PerClient: 3, Shared: true},
	}
	type request struct {
		Request
		d Decision
		g *Guard
	}
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		s := new(State)
		var g *Guard
		var all []*request                                                          // that are queued or admitted
		now, stores := time.Minute, [2]*virtual.Store{virtual.New(), virtual.New()} // of the backend, and of the zone
		carry := func() {
			if !g.shared {
				return
			}
			for i, l := range sharers(g, now) {
				if ask, ok := l.Due(now); ok && random.IntN(20) == 0 {
					l.Missed(now)
				} else if ok {
					l.Heard(now, now, stores[i].Do(1e12+now.Milliseconds(), ask))
				}
			}
		}
		settle := func() {
			for i := 0; i < len(all); i++ {
				q := all[i]
				if !q.d.Queued() {
					continue
				}
				var v loadshed.Verdict
				select {
				case <-q.d.Awaits():
				case v = <-q.d.Verdict():
				default:
					if now < q.d.Until() {
						continue
					}
				}
				q.g.Settle(now, q.Request, &q.d, v)
				i = -1 // others may have got its permit
			}
			all = slices.DeleteFunc(all, func(q *request) bool {
				if q.d.Queued() || q.d.Admit {
					return false
				}
				q.d.Sent()
				return true
			})
		}
		end := func(i int) {
			q := all[i]
			if all = slices.Delete(all, i, i+1); q.d.Queued() {
				q.g.Abandon(now, &q.d)
			} else {
				q.d.Done(now, Outcome(random.IntN(5)))
			}
		}
		for step := range 8_000 {
			if step%500 == 0 {
				c := configs[random.IntN(len(configs))]
				c.Secret = make([]byte, 16)
				g = mustNew(t, c, s)
			}
			now += time.Duration(random.IntN(5)) * ms
			switch k := random.IntN(10); {
			case k < 5:
				client := limiter.Key(1 + random.IntN(20))
				q := &request{g: g, Request: Request{Client: client, InFlightKey: client, Class: uint8(random.IntN(4)), Retry: k == 0}}
				for range g.zones {
					q.Keys = append(q.Keys, client)
				}
				q.d = g.Admit(now, q.Request)
				all = append(all, q)
			case k < 9 && len(all) > 0:
				end(random.IntN(len(all)))
			case k == 9:
				g.Tick(now)
			}
			carry()
			if random.IntN(4) == 0 { // some clients leave before they hear their verdict
				continue
			}
			settle()
			inFlight, waiting := 0, 0
			for _, q := range all {
				if q.d.permit.Waits() {
					waiting++
				} else if q.d.permit.Held() && q.g.plan.Limits() {
					inFlight++
				}
			}
			if b := s.Backend.Stats(now); b.InFlight-b.Disconnected != inFlight || b.Queue.Length != waiting {
				t.Fatalf("seed %d, step %d: %d in flight, want %d; %d waiting, want %d", seed, step, b.InFlight-b.Disconnected, inFlight, b.Queue.Length, waiting)
			}
		}
		for ; len(all) > 0; settle() {
			end(0)
		}
		if b := s.Backend.Stats(now); b.InFlight != 0 || b.Queue.Length != 0 || b.Clients != 0 || b.Disconnected != 0 {
			t.Errorf("seed %d: at the end there is %+v", seed, b)
		}
	}
}

// A client that breaks off its upload says nothing of the backend, whatever a proxy
// answers then; nor does one that closes what is sent to it. But a proxy closes the body when the
// backend has answered before all of it was read: what Read says then is not the client's doing.
func TestOutcome(t *testing.T) {
	gone, leave := context.WithCancel(t.Context())
	leave()
	late, end := context.WithTimeout(t.Context(), 0)
	defer end()
	broken, g := iotest.ErrReader(io.ErrUnexpectedEOF), mustNew(t, Config{}, nil)
	for _, c := range []struct {
		ctx    context.Context
		body   io.Reader
		closes bool
		status int
		want   Outcome
	}{
		{t.Context(), broken, false, 502, Detached},
		{t.Context(), iotest.ErrReader(errors.New("connection reset")), false, 502, Detached},
		{t.Context(), iotest.ErrReader(errors.New("body closed by handler")), true, 503, Overloaded},
		{t.Context(), strings.NewReader("whole"), false, 502, Overloaded},
		{t.Context(), nil, false, 502, Overloaded},
		{t.Context(), nil, false, 504, TimedOut},
		{t.Context(), nil, false, 500, Served},
		{late, nil, false, 200, TimedOut}, // the server's own deadline
		{gone, nil, false, 206, Detached},
		{gone, nil, false, 502, Aborted},
		{gone, nil, false, 0, Aborted},
	} {
		r := httptest.NewRequestWithContext(c.ctx, "POST", "/", c.body)
		x, r := g.Begin(httptest.NewRecorder(), r, new(Decision), false, 0)
		if c.closes {
			_ = r.Body.Close()
		}
		r.Body = http.MaxBytesReader(nil, r.Body, 1000) // as another handler may do
		_, _ = io.Copy(io.Discard, r.Body)
		if got, _ := x.Result(c.status, http.Header{}.Get); got != c.want {
			t.Errorf("%+v: %v, want %v", c, got, c.want)
		}
	}
}

// A client that leaves before it is answered is a 499; one whose handler has no more time
// is still there, and gets a 504. Neither depends on what it waited for. A rejection is lost whose
// client goes while it is held back.
func TestUnansweredRequests(t *testing.T) {
	for name, c := range map[string]Config{
		"in the queue":     {Concurrency: 1, Queue: loadshed.QueueConfig{Size: 1, Timeout: time.Second}, Pushback: undithered},
		"while it is held": {Capacity: limiter.Config{Rate: .6, Burst: 1}},
	} {
		for _, want := range []int{StatusClientGone, http.StatusGatewayTimeout} {
			synctest.Test(t, func(t *testing.T) {
				inBubble(t)
				g := mustNew(t, c, nil)
				holds := g.Admit(Now(), Request{})
				ctx, cancel := context.WithCancel(t.Context())
				if time.AfterFunc(103*ms, cancel); want == http.StatusGatewayTimeout {
					ctx, cancel = context.WithTimeout(t.Context(), 103*ms)
				}
				defer cancel()
				began, lost := Now(), uint64(0)
				r := httptest.NewRequestWithContext(ctx, "GET", "/", nil)
				if c.Queue.Size == 0 { // a deadline that is known is no reason to hold
					r, lost = r.WithContext(untold{ctx}), 1
				}
				if code := answerTo(g.Handler(nil), r).Code; code != want || Now()-began != 103*ms {
					t.Errorf("%s: %d after %v, want %d after 103ms", name, code, Now()-began, want)
				}
				holds.Done(Now(), Served)
				if s := g.backend.Stats(Now()); s.InFlight != 0 || s.Held != 0 || s.Lost != lost {
					t.Errorf("%s: %d in flight, %d held and %d lost at the end; want %d lost", name, s.InFlight, s.Held, s.Lost, lost)
				}
			})
		}
	}
}

// untold is a context whose deadline is not known before it has come.
type untold struct{ context.Context }

func (untold) Deadline() (time.Time, bool) { return time.Time{}, false }

// A lowered limit is obeyed at once, by those who wait, too.
func TestReloadedLimitHoldsForTheQueue(t *testing.T) {
	s := new(State)
	limit := func(n int) *Guard {
		return mustNew(t, Config{Concurrency: n, Queue: loadshed.QueueConfig{Size: 5, Timeout: time.Minute}, Pushback: undithered}, s)
	}
	wide, now := limit(10), time.Minute
	var all []Decision
	for i := range 10 {
		all = append(all, wide.Admit(now, one(1+i)))
	}
	waits, late := wide.Admit(now, one(11)), limit(10)
	limit(2).Admit(now, one(12))
	late.Admit(now, one(13)) // it was replaced before its first request
	for i := range 9 {
		if _, told := verdict(&waits); told {
			t.Fatalf("told with %d in flight, want 1", 10-i)
		}
		all[i].Done(now, Served)
	}
	settle(t, wide, now, one(11), &waits, loadshed.Granted)
}

// What a backend fails to serve is counted with a capacity alone, too.
func TestFailuresAreCountedWithoutALimitInFlight(t *testing.T) {
	g := mustNew(t, Config{Capacity: perSecond(10, 10)}, nil)
	for i, outcome := range []Outcome{Overloaded, Limited, Served} {
		d := g.Admit(0, one(1+i))
		d.Done(ms, outcome)
	}
	if failed, limited := g.backend.Stats(ms).Failed, g.backend.inFlight.Limited(); failed != 1 || limited != 1 {
		t.Errorf("%d failures and %d 429s are counted, want one of each", failed, limited)
	}
}
