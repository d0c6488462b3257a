package shield

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

// undithered is a Guard's pushback without held refusals.
var undithered = pushback.AnswerConfig{NoDither: true}

// inBubble lets time begin anew, in a synctest bubble.
func inBubble(t *testing.T) {
	was := epoch
	epoch = time.Now()
	t.Cleanup(func() { epoch = was })
	time.Sleep(time.Minute)
}

// paused returns how long the backend is left alone.
func paused(g *Guard, now time.Duration) time.Duration {
	left, _ := g.backend.Paused(now)
	return left
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

// A request waits for the place of another, and has it when that one is done.
func TestQueuedRequestGetsThePlace(t *testing.T) {
	g := mustNew(t, Config{
		Concurrency: 1, Queue: Queue{Size: 2, Timeout: 100 * ms}, Pushback: undithered,
		Zones: []Zone{{Name: "z", Limit: perSecond(1, 3)}},
	}, nil)
	ask := func(i int) Request { return Request{Client: limiter.Key(i), Keys: []limiter.Key{5}} }
	now := time.Minute
	first := g.Admit(now, ask(1))
	second, third, fourth := g.Admit(now, ask(2)), g.Admit(now, ask(3)), g.Admit(now, ask(4))
	if !first.Admit || !second.Queued() || !third.Queued() || fourth.Queued() || fourth.Admit {
		t.Fatalf("%+v %+v %+v %+v; want one admitted, two queued, one refused", first, second, third, fourth)
	}
	if fourth.Reason != Concurrency || fourth.Hint.Seconds < 1 {
		t.Errorf("%+v; want an appointment", fourth)
	}
	if _, told := verdict(&second); told {
		t.Error("told before there was a place")
	}
	now += 50 * ms
	first.Done(now, Served)
	v, told := verdict(&second)
	if !told || v != loadshed.Granted {
		t.Fatalf("verdict %v, told: %v", v, told)
	}
	g.Settle(now, ask(2), &second, v)
	if !second.Admit || second.Queued() || g.backend.inFlight.InFlight() != 1 {
		t.Fatalf("%+v; want it admitted, with its place", second)
	}
	now += 60 * ms // the third has waited for 110 ms
	g.Sweep(now)
	if v, told = verdict(&third); !told || v == loadshed.Granted {
		t.Fatalf("verdict %v, told: %v; want its time to be over", v, told)
	}
	g.Settle(now, ask(3), &third, v)
	if third.Admit || third.Reason != Concurrency || third.Hint.Seconds < 1 {
		t.Errorf("%+v; want an appointment", third)
	}
	// The quota has been charged for the two that were admitted, at 3 at once.
	second.Done(now, Served)
	if d := g.Admit(now, ask(5)); !d.Admit {
		t.Errorf("%+v; want the quota's third", d)
	} else {
		d.Done(now, Served)
	}
	if d := g.Admit(now, ask(6)); d.Reason != Quota {
		t.Errorf("%+v; want it over the quota", d)
	}
	if n := g.backend.inFlight.InFlight(); n != 0 {
		t.Errorf("%d in flight at the end", n)
	}
}

// A limit that was used up while a request waited refuses it, and it keeps no place.
func TestQuotaUsedUpInTheQueue(t *testing.T) {
	g := mustNew(t, Config{
		Concurrency: 1, Queue: Queue{Size: 2, Timeout: time.Second}, Pushback: undithered,
		Zones: []Zone{{Name: "z", Limit: perSecond(0.1, 2)}},
	}, nil)
	ask := func(i int) Request { return Request{Client: limiter.Key(i), Keys: []limiter.Key{5}} }
	first, second, third := g.Admit(time.Minute, ask(1)), g.Admit(time.Minute, ask(2)), g.Admit(time.Minute, ask(3))
	now := time.Minute + 10*ms
	first.Done(now, Served)
	v, _ := verdict(&second)
	g.Settle(now, ask(2), &second, v)
	second.Done(now, Served)
	v, told := verdict(&third)
	if !told || v != loadshed.Granted {
		t.Fatalf("verdict %v, %v", v, told)
	}
	g.Settle(now, ask(3), &third, v)
	if third.Admit || third.Reason != Quota || g.backend.inFlight.InFlight() != 0 {
		t.Errorf("%+v, %d in flight; want it over its quota and nothing in flight", third, g.backend.inFlight.InFlight())
	}
}

// Clients that go while they wait leave nothing behind, whether or not they have
// been given a place meanwhile.
func TestGoneFromTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inBubble(t)
		g := mustNew(t, Config{Concurrency: 1, PerClient: 2, Queue: Queue{Size: 3, Timeout: 100 * ms}}, nil)
		holds := g.Admit(Now(), Request{Client: 1, InFlightKey: 1})
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan bool)
		for range 2 {
			go func() {
				r := Request{Client: 2, InFlightKey: 2}
				d := g.Enter(ctx, Now(), r)
				gone <- !d.Gone
			}()
		}
		synctest.Wait()
		if n := g.backend.inFlight.Waiting(); n != 2 {
			t.Fatalf("%d in the queue, want 2", n)
		}
		if d := g.Admit(Now(), Request{Client: 2, InFlightKey: 2}); d.Reason != PerClient {
			t.Errorf("%+v; want it to be one too many of its client", d)
		}
		cancel()
		for range 2 {
			if <-gone {
				t.Error("still there")
			}
		}
		holds.Done(Now(), Served)
		if n := g.backend.inFlight.InFlight(); n != 0 || g.backend.inFlight.Waiting() != 0 || g.backend.ShedStats(0).Clients != 0 {
			t.Errorf("%d in flight, %d queued, %d clients", n, g.backend.inFlight.Waiting(), g.backend.ShedStats(0).Clients)
		}
	})
}

// A request that waits in vain is told so by the queue's one timer.
func TestEnterEndsWithoutTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inBubble(t)
		g := mustNew(t, Config{Concurrency: 1, Queue: Queue{Size: 30, Timeout: 50 * ms}, Pushback: undithered}, nil)
		holds := g.Admit(Now(), one(1))
		for round := range 3 {
			began := time.Now()
			done := make(chan Decision)
			for i := range 20 {
				go func() {
					r := one(10 + i)
					done <- g.Enter(t.Context(), Now(), r)
				}()
			}
			for range 20 {
				if d := <-done; d.Admit || d.Reason != Concurrency {
					t.Errorf("%+v; want it refused", d)
				}
			}
			if took := time.Since(began); took > 50*ms+2*sweepEvery {
				t.Errorf("round %d took %v", round, took)
			}
			time.Sleep(time.Hour) // and then all over again
		}
		holds.Done(Now(), Served)
	})
}

// A backend that answers 503 with a Retry-After is left alone for so long, but for
// one request per second. Clients refused meanwhile are told a time after it.
func TestPause(t *testing.T) {
	g := mustNew(t, Config{Adaptive: &loadshed.AdaptiveConfig{}, Pushback: undithered}, nil)
	begin := time.Minute
	for i := range 100 {
		d := g.Admit(begin+time.Duration(i)*10*ms, one(i+1))
		d.Done(begin+time.Duration(i)*10*ms+5*ms, Served)
	}
	begin += 2 * time.Second
	pause := func(now, wait time.Duration) {
		for range loadshed.RefusalsToPause {
			g.Pause(now, wait)
		}
	}
	for range loadshed.RefusalsToPause - 1 {
		g.Pause(begin-ms, 5*time.Second)
	}
	d := g.Admit(begin-ms, one(8))
	d.Done(begin-ms, Served)
	g.Pause(begin-ms, 5*time.Second)
	pause(begin+loadshed.RefusalsSpan/2, 5*time.Second)
	if paused(g, begin+loadshed.RefusalsSpan) > 0 {
		t.Error("paused by one of several answers, or by many at once")
	}
	begin += loadshed.RefusalsSpan
	pause(begin, 5*time.Second)
	probes := 0
	for now := begin; now < begin+5*time.Second; now += 20 * ms {
		d := g.Admit(now, one(int(now/ms)))
		switch {
		case d.Admit:
			probes++
			d.Done(now+ms, Overloaded)
		case d.Reason != Pause:
			t.Fatalf("%v: %+v", now-begin, d)
		case now+d.Wait < begin+5*time.Second:
			t.Fatalf("%v: told %v, and the backend is back in %v", now-begin, d.Wait, begin+5*time.Second-now)
		}
	}
	if probes < 4 || probes > 6 {
		t.Errorf("%d probes in 5 s, want one per second", probes)
	}
	before := g.Limit()
	if d := g.Admit(begin+5*time.Second+ms, one(9)); !d.Admit {
		t.Errorf("%+v after the pause", d)
	}
	g.Tick(begin + 6*time.Second)
	if after := g.Limit(); after > before/2+1 {
		t.Errorf("limit %d before the pause and %d after; want at most half", before, after)
	}
	begin += time.Hour
	pause(begin, 100*time.Hour)
	if wait := paused(g, begin); wait != loadshed.MaxPause {
		t.Errorf("a pause of %v, want at most %v", wait, loadshed.MaxPause)
	}
	probe := g.Admit(begin+time.Second, one(10))
	if !probe.Admit || g.Admit(begin+time.Second, one(11)).Admit {
		t.Error("want one probe")
	}
	probe.Done(begin+3*time.Second, Served)
	if d := g.Admit(begin+3*time.Second, one(12)); !d.Admit {
		t.Errorf("%+v after a probe was served", d)
	}
}

// In observe mode no request waits, and no pause is made.
func TestObserveShedsNothing(t *testing.T) {
	g := mustNew(t, Config{Observe: true, Adaptive: &loadshed.AdaptiveConfig{Max: 2, Initial: 2}, PerClient: 1, Classes: []loadshed.Class{{Name: "critical"}}}, nil)
	for i := range 2 * loadshed.RefusalsToPause {
		g.Pause(time.Duration(i)*loadshed.RefusalsSpan, time.Minute)
	}
	var open []Decision
	for i := range 50 {
		d := g.Admit(time.Minute+time.Duration(i)*ms, Request{Client: limiter.Key(1 + i), InFlightKey: 1, Class: uint8(i % 2), Retry: true})
		if !d.Admit || d.Queued() {
			t.Fatalf("%d: %+v", i, d)
		}
		open = append(open, d)
	}
	for _, d := range open {
		d.Done(time.Minute+time.Second, Served)
	}
	s := g.backend.Stats(time.Minute)
	if s.Observed[PerClient] == 0 || g.backend.inFlight.InFlight() != 0 || g.backend.ShedStats(0).Clients != 0 {
		t.Errorf("%+v; want requests beyond the client's limit counted", s)
	}
}

// Retries beyond what the backend can do besides first attempts are refused while
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
	admitted, refused := 0, 0
	for i := range 20_000 { // 90 first attempts per second and 910 retries
		d := ask(time.Minute+10*time.Second+time.Duration(i)*ms, i%100 >= 9)
		if i < 10_000 || i%100 < 9 {
			continue
		}
		if d.Admit {
			admitted++
		} else if d.Reason == RetryBudget {
			refused++
		}
	}
	if admitted > 200 || refused < 5000 {
		t.Errorf("%d retries of 9100 were admitted in 10 s, %d refused for the budget; want about 10 per second", admitted, refused)
	}
}

func TestShedConfigErrors(t *testing.T) {
	for want, c := range map[string]Config{
		"concurrency is 3, and adaptive; want one of them":                   {Concurrency: 3, Adaptive: &loadshed.AdaptiveConfig{}},
		"queue is set without a concurrency limit; want concurrency as well": {Queue: Queue{Size: 3}},
		"queue is -2; want 1 to 10000":                                       {Concurrency: 3, Queue: Queue{Size: -2}},
		"queue timeout is 2m0s; want more than 0, to 1m0s":                   {Concurrency: 3, Queue: Queue{Size: 2, Timeout: 2 * time.Minute}},
		"concurrency per client is -1; want 1 to 1000000":                    {PerClient: -1},
		"class is set without a concurrency limit; want concurrency as well": {Classes: []loadshed.Class{{Name: "critical"}}},
	} {
		if _, err := New(c, nil); err == nil || err.Error() != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A client that has an appointment for one thing is let in for something critical.
func TestCriticalRequestIsNotBarred(t *testing.T) {
	g := mustNew(t, Config{Concurrency: 10, Capacity: perSecond(10, 10), Classes: []loadshed.Class{{Name: loadshed.Critical}, {Name: loadshed.Sheddable}}, Pushback: undithered}, nil)
	critical, _ := g.Classes().Index(loadshed.Critical)
	sheddable, _ := g.Classes().Index(loadshed.Sheddable)
	now := time.Minute
	refused := 0
	for i := range 40 {
		r := Request{Client: limiter.Key(1 + i%20), Class: uint8(1 + sheddable)}
		if d := g.Admit(now, r); !d.Admit {
			refused++
		} else {
			d.Done(now, Served)
		}
	}
	now += 500 * ms
	for _, c := range []struct {
		class int
		admit bool
	}{{sheddable, false}, {critical, true}} {
		if d := g.Admit(now, Request{Client: 20, Class: uint8(1 + c.class)}); d.Admit != c.admit {
			t.Errorf("%s: %+v", g.Classes().At(c.class).Name, d)
		}
	}
}

// Whatever happens to requests, and whatever is reloaded meanwhile, each place is
// given back once.
func TestPlacesAreConserved(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		s := new(State)
		configs := []Config{
			{Concurrency: 5, PerClient: 3, Queue: Queue{Size: 4, Timeout: 50 * ms}},
			{Adaptive: &loadshed.AdaptiveConfig{Initial: 6}, Classes: []loadshed.Class{{Name: loadshed.Critical}, {Name: loadshed.Sheddable}}},
			{Concurrency: 3},
			{Capacity: perSecond(200, 20), Adaptive: &loadshed.AdaptiveConfig{Target: 50 * ms}, Queue: Queue{Size: NoQueue}},
			{Capacity: perSecond(100, 10), PerClient: 2},
		}
		var g *Guard
		type request struct {
			Request
			d Decision
			g *Guard
		}
		var waiting, open []*request
		now := time.Minute
		settle := func() {
			for i := 0; i < len(waiting); i++ {
				q := waiting[i]
				if v, told := verdict(&q.d); told {
					waiting = append(waiting[:i], waiting[i+1:]...)
					q.g.Settle(now, q.Request, &q.d, v)
					if q.d.Admit {
						open = append(open, q)
					} else if q.d.Hold > 0 {
						q.d.Sent()
					}
					i = -1
				}
			}
		}
		pick := func(list *[]*request) *request {
			i := random.IntN(len(*list))
			q := (*list)[i]
			*list = append((*list)[:i], (*list)[i+1:]...)
			return q
		}
		for step := range 20_000 {
			if step%500 == 0 {
				g = mustNew(t, configs[random.IntN(len(configs))], s)
			}
			now += time.Duration(random.IntN(5)) * ms
			switch k := random.IntN(10); {
			case k < 5:
				client := limiter.Key(1 + random.IntN(20))
				q := &request{g: g, Request: Request{Client: client, InFlightKey: client, Class: uint8(random.IntN(4)), Retry: k == 0}}
				if q.d = g.Admit(now, q.Request); q.d.Queued() {
					waiting = append(waiting, q)
				} else if q.d.Admit {
					open = append(open, q)
				} else if q.d.Hold > 0 {
					q.d.Sent()
				}
			case k < 8 && len(open) > 0:
				q := pick(&open)
				q.d.Done(now, Outcome(random.IntN(5)))
			case k == 8 && len(waiting) > 0:
				q := pick(&waiting)
				q.g.Abandon(now, &q.d)
			case k == 9:
				g.Sweep(now)
			}
			settle()
			inFlight := 0
			for _, q := range open {
				if q.d.HoldsPlace() && q.g.plan.Limits() {
					inFlight++
				}
			}
			b := s.Backend.ShedStats(now)
			if is := b.InFlight - b.Orphans; is != inFlight || b.Queue.Length != len(waiting) {
				t.Fatalf("seed %d, step %d: %d in flight, want %d; %d waiting, want %d", seed, step, is, inFlight, b.Queue.Length, len(waiting))
			}
		}
		for len(open) > 0 {
			pick(&open).d.Done(now, Served)
			settle()
		}
		now += time.Hour
		g.Sweep(now)
		settle()
		for len(open) > 0 {
			pick(&open).d.Done(now, Served)
			settle()
		}
		g.Sweep(now)
		if b := s.Backend.ShedStats(now); b.InFlight != 0 || b.Queue.Length != 0 || b.Clients != 0 || b.Orphans != 0 {
			t.Errorf("seed %d: at the end there is %+v", seed, b)
		}
	}
}

// No client is kept from its answer until it has given up.
func TestRefusalIsNotHeldBeyondTheDeadline(t *testing.T) {
	g := mustNew(t, Config{Capacity: limiter.Config{Rate: 1, Per: 3 * time.Second, Burst: 1}}, nil)
	g.Admit(time.Minute, one(1))
	held := 0
	for i := range 20 {
		r := one(2 + i)
		now := time.Minute + time.Duration(i)*70*ms
		r.Deadline = now + 500*ms
		d := g.Admit(now, r)
		if now+d.Hold >= r.Deadline {
			t.Errorf("held for %v, and it has 500ms", d.Hold)
		}
		if d.Hold > 0 {
			held++
			d.Sent()
		}
	}
	if held == 0 {
		t.Error("none was held at all")
	}
}

// Clients that give up before they are answered show that the backend is too slow
// for them: the limit falls until some are served.
func TestImpatientClientsAreSeen(t *testing.T) {
	g := mustNew(t, Config{Adaptive: &loadshed.AdaptiveConfig{}, Pushback: undithered}, nil)
	now := time.Minute
	for range 200 {
		d := g.Admit(now, one(1))
		now += 50 * ms
		d.Done(now, Served)
	}
	for range 40 {
		var open []Decision
		for i := range 20 {
			if d := g.Admit(now, one(10+i)); d.Admit {
				open = append(open, d)
			}
		}
		now += 450 * ms
		for _, d := range open {
			d.Done(now, Aborted)
		}
	}
	if n := g.Limit(); n > 4 {
		t.Errorf("limit %d after 18 s in which all clients gave up", n)
	}
}

// A client that breaks off its upload says nothing of the backend, whatever a proxy
// answers then.
func TestBrokenUploadIsNoFailure(t *testing.T) {
	for _, c := range []struct {
		body io.Reader
		want Outcome
	}{
		{iotest.ErrReader(io.ErrUnexpectedEOF), Detached},
		{strings.NewReader("whole"), Overloaded},
		{nil, Overloaded},
	} {
		r := httptest.NewRequest("POST", "/", c.body)
		body := WatchBody(r)
		r.Body = http.MaxBytesReader(nil, r.Body, 1000) // as another handler may do
		_, _ = io.Copy(io.Discard, r.Body)
		if got := OutcomeOf(r, body, 502); got != c.want {
			t.Errorf("%T: %v, want %v", c.body, got, c.want)
		}
	}
}

// A proxy closes the body when the backend has answered before all of it was read: what
// Read says then is not the client's doing.
func TestClosedBodyIsNotBroken(t *testing.T) {
	r := httptest.NewRequest("POST", "/", iotest.ErrReader(errors.New("body closed by handler")))
	body := WatchBody(r)
	_ = r.Body.Close()
	_, _ = io.Copy(io.Discard, r.Body)
	if got := OutcomeOf(r, body, 503); got != Overloaded {
		t.Errorf("%v, want the backend's refusal", got)
	}
}

// Clients that are slow to send, or that close what is being sent to them, take as
// long as they like: that says nothing of the backend, however many they are.
func TestClientsOwnTimeLowersNoLimit(t *testing.T) {
	gone, leave := context.WithCancel(t.Context())
	leave()
	for name, ends := range map[string]func() Outcome{
		"upload broken off": func() Outcome {
			r := httptest.NewRequest("POST", "/", iotest.ErrReader(errors.New("connection reset")))
			body := WatchBody(r)
			_, _ = io.Copy(io.Discard, r.Body)
			return OutcomeOf(r, body, 502)
		},
		"download closed": func() Outcome {
			return OutcomeOf(httptest.NewRequest("GET", "/film", nil).WithContext(gone), nil, 206)
		},
	} {
		g := mustNew(t, Config{Adaptive: &loadshed.AdaptiveConfig{}, Pushback: undithered}, nil)
		now := time.Minute
		for range 200 {
			d := g.Admit(now, one(1))
			now += 50 * ms
			d.Done(now, Served)
		}
		before := g.Limit()
		for range 20 {
			var open []Decision
			for i := range 20 {
				if d := g.Admit(now, one(10+i)); d.Admit {
					open = append(open, d)
				}
			}
			now += 5 * time.Second
			for _, d := range open {
				d.Done(now, ends())
			}
		}
		if n := g.Limit(); n < before {
			t.Errorf("%s: limit %d, %d before", name, n, before)
		}
	}
}

// A client that leaves before it is answered is a 499; one whose handler has no more time
// is still there, and gets a 504. Neither depends on what it waited for.
func TestUnansweredRequests(t *testing.T) {
	for name, c := range map[string]Config{
		"in the queue":     {Concurrency: 1, Queue: Queue{Size: 1, Timeout: time.Second}, Pushback: undithered},
		"while it is held": {Capacity: limiter.Config{Rate: .6, Burst: 1}},
	} {
		for want, end := range map[int]func(context.Context) (context.Context, context.CancelFunc){
			http.StatusGatewayTimeout: func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, 103*ms)
			},
			StatusClientGone: func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(103*ms, cancel)
				return ctx, cancel
			},
		} {
			synctest.Test(t, func(t *testing.T) {
				inBubble(t)
				g := mustNew(t, c, nil)
				holds := g.Admit(Now(), Request{})
				h := g.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("served") }))
				ctx, cancel := end(t.Context())
				defer cancel()
				w := httptest.NewRecorder()
				began := Now()
				r := httptest.NewRequestWithContext(ctx, "GET", "/", nil)
				if c.Queue.Size == 0 { // a deadline that is known is no reason to hold
					r = r.WithContext(untold{ctx})
				}
				h.ServeHTTP(w, r)
				if w.Code != want || Now()-began != 103*ms {
					t.Errorf("%s: %d after %v, want %d after 103ms", name, w.Code, Now()-began, want)
				}
				holds.Done(Now(), Served)
				if s := g.backend.Stats(Now()); s.InFlight != 0 || s.Held != 0 {
					t.Errorf("%s: %d in flight and %d held at the end", name, s.InFlight, s.Held)
				}
			})
		}
	}
}

// untold is a context whose deadline is not known before it has come.
type untold struct{ context.Context }

func (untold) Deadline() (time.Time, bool) { return time.Time{}, false }

// pauses has the backend ask to be left alone until it is.
func pauses(t *testing.T, g *Guard, now, wait time.Duration) time.Duration {
	t.Helper()
	for range loadshed.RefusalsToPause {
		g.Pause(now, wait)
		now += loadshed.RefusalsSpan/(loadshed.RefusalsToPause-1) + 1
	}
	if left, _ := g.backend.Paused(now); left == 0 {
		t.Fatal("no pause")
	}
	return now
}

// A request that may be tried during a pause stays one while it waits for room.
func TestProbeOfAPauseWaits(t *testing.T) {
	g := mustNew(t, Config{Concurrency: 1, Queue: Queue{Size: 5, Timeout: 200 * ms}, Pushback: undithered}, nil)
	now := time.Minute
	slow := g.Admit(now, Request{})
	now = pauses(t, g, now, 30*time.Second) + time.Second
	probe := g.Admit(now, Request{})
	if !probe.Queued() {
		t.Fatalf("%+v", probe)
	}
	now += 50 * ms
	slow.Done(now, Overloaded)
	v, _ := verdict(&probe)
	g.Settle(now, Request{}, &probe, v)
	if !probe.Admit {
		t.Errorf("%v: refused for %v", v, probe.Reason)
	}
}

// A backend whose answers are streams serves, too.
func TestStreamsAreAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inBubble(t)
		g := mustNew(t, Config{Adaptive: &loadshed.AdaptiveConfig{}, Pushback: undithered}, nil)
		refuse := true
		h := g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if refuse {
				w.Header().Set("Retry-After", "30")
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(http.StatusOK)
		}))
		ask := func() {
			r := httptest.NewRequest("GET", "/", nil)
			r.Header.Set("Accept", "text/event-stream")
			h.ServeHTTP(httptest.NewRecorder(), r)
			time.Sleep(loadshed.RefusalsSpan / loadshed.RefusalsToPause)
		}
		for range loadshed.RefusalsToPause {
			refuse = true
			ask()
			refuse = false
			ask()
		}
		if left, _ := g.backend.Paused(Now()); left > 0 {
			t.Errorf("a backend that has served every other stream is left alone for %v", left)
		}
	})
}

// A lowered limit is obeyed at once, by those who wait, too.
func TestReloadedLimitHoldsForTheQueue(t *testing.T) {
	s := new(State)
	wide := mustNew(t, Config{Concurrency: 10, Queue: Queue{Size: 5, Timeout: time.Minute}, Pushback: undithered}, s)
	now := time.Minute
	var open []Decision
	for i := range 10 {
		open = append(open, wide.Admit(now, one(1+i)))
	}
	waits := wide.Admit(now, one(11))
	narrow := mustNew(t, Config{Concurrency: 2, Queue: Queue{Size: 5, Timeout: time.Minute}, Pushback: undithered}, s)
	narrow.Admit(now, one(12))
	for i := range open {
		if _, told := verdict(&waits); told != (i == 9) {
			t.Fatalf("told: %v, with %d of 2 in flight", told, 10-i)
		}
		open[i].Done(now, Served)
		if i == 8 {
			if v, told := verdict(&waits); !told || v != loadshed.Granted {
				t.Errorf("%v, %v with one of 2 in flight", v, told)
			}
			break
		}
	}
}
