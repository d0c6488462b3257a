package shield

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/meter"
	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/virtual"
)

// carried is a link whose exchanges a test carries.
type carried interface {
	Due(now time.Duration) (share.LeaseAsk, bool)
	Heard(now, sent time.Duration, answer share.LeaseAnswer)
	Missed(now time.Duration)
}

// sharedGuards returns Guards of some replicas that share a zone, and what carries their
// exchanges with a store: trips take no time.
func sharedGuards(t *testing.T, n int, z Zone) (guards []*Guard, carry func(now time.Duration)) {
	t.Helper()
	z.Name, z.Shared = "each", true
	for range n {
		g, err := New(Config{Zones: []Zone{z}, Secret: make([]byte, 16), Replica: string(rune('a' + len(guards)))}, nil)
		if err != nil {
			t.Fatal(err)
		}
		guards = append(guards, g)
	}
	store := virtual.New()
	return guards, func(now time.Duration) {
		for _, g := range guards {
			l := g.Zones(now)[0]
			for ask, ok := l.Due(now); ok; ask, ok = l.Due(now) {
				l.Heard(now, now, store.Do(1_795_000_000_000+now.Milliseconds(), ask))
			}
		}
	}
}

// Replicas that share a zone admit what one would, and a request that finds no token here
// waits for the store, and for no more than its response.
func TestReplicasShareAZone(t *testing.T) {
	guards, carry := sharedGuards(t, 4, Zone{Limit: limiter.Config{Rate: 10, Burst: 20}})
	r := Request{Keys: []limiter.Key{42 << 40}, Client: 42 << 40}
	now := time.Second
	for ; now < 3*time.Second; now += 10 * time.Millisecond {
		carry(now)
	}
	began, admitted, waited := now, 0, 0
	for ; now < began+10*time.Second; now += 10 * time.Millisecond {
		carry(now)
		g := guards[int(now/(10*time.Millisecond))%len(guards)]
		d := g.Admit(now, r)
		if d.Queued() {
			waited++
			carry(now)
			select {
			case <-d.Awaits():
			default:
				t.Fatalf("at %v the store has answered, and the request waits", now)
			}
			g.Settle(now, r, &d, 0)
		}
		if d.Queued() {
			t.Fatalf("at %v a request waits for the store twice", now)
		}
		if d.Admit {
			admitted++
		} else if d.Reason != Quota || d.Hint.Seconds < 1 {
			t.Errorf("at %v: rejected for %v, told %d s; want the quota, and a second at least", now, d.Reason, d.Hint.Seconds)
		}
		if most := 20 + 10*(now-began).Seconds(); float64(admitted) > most+1e-9 {
			t.Fatalf("at %v: %d requests are admitted, want at most %v", now, admitted, most)
		}
	}
	t.Logf("4 replicas: %d of 120 admitted, %d of 1000 waited for the store", admitted, waited)
	if admitted < 116 || waited > 450 {
		t.Errorf("%d admitted, %d waited; want 116 of 120 at least, and 450 at most", admitted, waited)
	}
}

// A zone to which requests come is not idle: the store is told of it each beat.
func TestABusyZoneKeepsItsBeat(t *testing.T) {
	guards, _ := sharedGuards(t, 1, Zone{Limit: limiter.Config{Rate: 10, Burst: 20}})
	store, beats := virtual.New(), 0
	for now := time.Second; now < 21*time.Second; now += 10 * time.Millisecond {
		guards[0].Admit(now, Request{Keys: []limiter.Key{limiter.Key(now) << 30}})
		l := guards[0].Zones(now)[0]
		if ask, ok := l.Due(now); ok {
			l.Heard(now, now, store.Do(1_795_000_000_000+now.Milliseconds(), ask))
			if now >= 20*time.Second {
				beats++
			}
		}
	}
	if want := int(time.Second/share.Beat) - 1; beats < want {
		t.Errorf("%d beats in a second, want %d", beats, want)
	}
}

// A Guard of another limit is another zone to the store, and forgives no client; one that
// shares no zone has its own again.
func TestASharedZoneIsReloaded(t *testing.T) {
	state := new(State)
	guard := func(burst int, shared bool) *Guard {
		g, err := New(Config{Secret: make([]byte, 16), Zones: []Zone{{Name: "each", Limit: limiter.Config{Rate: 1, Per: time.Hour, Burst: burst}, Shared: shared}}}, state)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	r := Request{Keys: []limiter.Key{42 << 40}}
	taken := func(g *Guard, now time.Duration) (n int) {
		for range 100 {
			if d := g.Admit(now, r); d.Admit {
				n++
			}
		}
		return n
	}
	if n := taken(guard(40, true), time.Second); n != 10 { // of 2 replicas, half of it without a store
		t.Errorf("%d are admitted alone, want 10", n)
	}
	same := guard(40, true)
	if n := taken(same, 2*time.Second); n != 0 {
		t.Errorf("%d are admitted after a reload, want 0", n)
	}
	if n := taken(guard(80, true), 3*time.Second); n != 0 {
		t.Errorf("%d are admitted after a reload with a larger burst, want 0", n)
	}
	z := same.Zones(4 * time.Second)[0]
	if g := guard(40, false); taken(g, 5*time.Second) > 40 || g.Zones(6 * time.Second)[0] != nil {
		t.Error("a zone that is not shared any more is linked, or admits more than its burst")
	}
	if z == nil {
		t.Error("a shared zone has no link")
	}
}

// A replica without the store admits what docs/guides/replicas.md says: of a zone, half of the burst divided by
// the replicas; of the backend, its part of everything; and of all rates, its part.
func TestPartsWithoutTheStore(t *testing.T) {
	page, err := os.ReadFile("docs/guides/replicas.md")
	if err != nil {
		t.Fatal(err)
	}
	limit := limiter.Config{Rate: 10, Burst: 40}
	for _, replicas := range []int{2, 3, 8, 50} {
		// admitted returns how many requests are admitted at once, and per second in the next 100 s. None ends.
		admitted := func(c Config) (burst int, rate float64) {
			c.Replicas, c.Secret, c.Pushback = replicas, make([]byte, 16), undithered
			g, now := mustNew(t, c, nil), time.Second
			q := Request{Keys: []limiter.Key{42 << 40}[:len(c.Zones)]}
			for l := g.Link(now); now < 100*time.Second; now += 10 * time.Millisecond {
				if l != nil {
					l.Due(now)
					l.Missed(now)
				}
			}
			for g.Admit(now, q).Admit {
				burst++
			}
			more := 0
			for end := now + 100*time.Second; now < end; now += 10 * time.Millisecond {
				if g.Admit(now, q).Admit {
					more++
				}
			}
			return burst, float64(more) / 100
		}
		zone, zoneRate := admitted(Config{Zones: []Zone{{Name: "each", Limit: limit, Shared: true}}})
		capacity, capacityRate := admitted(Config{Capacity: limit, Shared: true})
		capacity-- // on credit: a shared capacity is overdrawn by one
		permits, _ := admitted(Config{Concurrency: 8, Queue: loadshed.QueueConfig{Size: loadshed.NoQueue}, Shared: true})
		if wants := [3]int{max(1, 40/(2*replicas)), max(1, 40/replicas), max(1, 8/replicas)}; [3]int{zone, capacity, permits} != wants {
			t.Errorf("%d replicas: %d, %d and %d are admitted at once; want %d", replicas, zone, capacity, permits, wants)
		}
		part := 10 / float64(replicas)
		if math.Abs(zoneRate-part) > .1*part || math.Abs(capacityRate-part) > .1*part {
			t.Errorf("%d replicas: %v/s and %v/s are admitted; want %v", replicas, zoneRate, capacityRate, part)
		}
		for row, is := range map[string]string{
			"the rate of a zone": fmt.Sprintf("%.0f/s", zoneRate), "the burst of a zone": fmt.Sprint(zone),
			"the rate of a capacity": fmt.Sprintf("%.0f/s", capacityRate), "the burst of a capacity": fmt.Sprint(capacity),
			"permits in flight": fmt.Sprint(permits),
		} {
			if replicas == 2 && !regexp.MustCompile(`\n\| `+row+` \|[^|]+\| `+is+` \|\n`).Match(page) {
				t.Errorf("docs/guides/replicas.md does not say of %s that it is %s", row, is)
			}
		}
	}
}

// A first attempt that waits for the store is one, whether it waits for a token of its client's quota or of the
// capacity: retries have what first attempts leave, 40/s of 100/s, also where two replicas share these.
func TestWaitForTheStoreIsOneAttempt(t *testing.T) {
	for name, c := range map[string]Config{
		"quota":    {Zones: []Zone{{Name: "each", Limit: limiter.Config{Rate: 60, Burst: 3}, Shared: true}}, Capacity: perSecond(100, 10)},
		"capacity": {Capacity: perSecond(100, 10), Shared: true},
	} {
		var guards [2]*Guard
		for i := range guards {
			c.Secret, c.Replica = make([]byte, 16), string(rune('a'+i))
			guards[i] = mustNew(t, c, nil)
		}
		store, now, begin := virtual.New(), time.Minute, 65*time.Second
		carry := func() {
			for _, g := range guards {
				var l carried = g.Link(now)
				if !c.Shared {
					l = g.Zones(now)[0]
				}
				for ask, ok := l.Due(now); ok; ask, ok = l.Due(now) {
					l.Heard(now, now, store.Do(1e12+now.Milliseconds(), ask))
				}
			}
		}
		passed, waited := 0, 0
		ask := func(n int, r Request) {
			g := guards[0]
			if c.Shared {
				g = guards[n/2%2]
			}
			d := g.Admit(now, r)
			if d.Queued() {
				waited++
				carry()
				g.Settle(now, r, &d, 0)
			}
			if r.Retry && d.Reason != RetryBudget && now >= begin {
				passed++
			}
		}
		for n := 0; now < begin+10*time.Second; now += 5 * ms {
			carry()
			if n++; n%10 < 3 {
				ask(n, Request{Keys: []limiter.Key{7 << 40}, Client: limiter.Key(n)})
			}
			ask(n, Request{Client: limiter.Key(1<<40 + n), Retry: true})
		}
		if t.Logf("%s: %d retries passed the budget in 10 s, %d requests waited", name, passed, waited); waited < 100 || passed < 350 || passed > 450 {
			t.Errorf("%s: %d retries passed the budget in 10 s, want 400; %d requests waited, want 100", name, passed, waited)
		}
	}
}

// Four replicas share a calendar's quota of 120 a day. The last one's clock is ahead by a second. However requests come, and whichever
// replicas are restarted or are without the store for a while, each key can use its quota, and no more than one request for each replica
// beyond it; what replicas admit without the store comes on top, up to half a quota. All of that is whole after the reset, and those who
// have used it up are told times that are spread over a hundredth of the day.
func TestReplicasShareACalendar(t *testing.T) {
	const quota, replicas, keys, before = 120, 4, 20, 2 * time.Hour
	settle, err := meter.Parse("header X-Cost")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		pick     func(n int) int // which replica gets request n
		restarts int             // of a replica, one after the other, which are killed or say goodbye in turn
		silence  time.Duration   // of the store
		lost     bool            // the store loses all that it knows
		settles  bool            // requests turn out to cost a half of what they took
		most     int             // of a key, in a day
	}{
		{name: "by turns", pick: func(n int) int { return n % replicas }, most: quota},
		{name: "one replica", pick: func(int) int { return 2 }, most: quota},
		{name: "one after the other", pick: func(n int) int { return n / 97 % replicas }, most: quota},
		{name: "restarts", pick: func(n int) int { return n % replicas }, restarts: 12, most: quota},
		{name: "silence", pick: func(n int) int { return n % replicas }, silence: 2 * time.Minute, most: quota * 3 / 2},
		{name: "lost", pick: func(n int) int { return n % replicas }, lost: true, most: 2 * quota},
		{name: "deposits", pick: func(n int) int { return n % replicas }, settles: true, most: quota},
	} {
		t.Run(c.name, func(t *testing.T) {
			newYear(t, before)
			zone := Zone{Name: "contract", Shared: true, Limit: limiter.Config{Rate: quota, Per: 24 * time.Hour}, Calendar: &Calendar{}, Headers: HeadersOn}
			var err error
			if zone.Calendar.In, err = time.LoadLocation("Europe/Berlin"); err != nil {
				t.Fatal(err)
			}
			if c.settles {
				zone.Cost, zone.Settle = 2, &settle
			}
			started, store, down, now := 0, virtual.New(), false, time.Duration(0)
			start := func() *Guard {
				started++
				return mustNew(t, Config{Zones: []Zone{zone}, Secret: make([]byte, 16), Replica: fmt.Sprint(started), Replicas: replicas, Pushback: undithered}, nil)
			}
			var guards [replicas]*Guard
			at := func(i int) time.Duration { return now + time.Duration(i/(replicas-1))*time.Second }
			carry := func() {
				for i, g := range guards {
					l := g.Zones(at(i))[0]
					for ask, ok := l.Due(at(i)); ok; ask, ok = l.Due(at(i)) {
						if down {
							l.Missed(at(i))
							break
						}
						l.Heard(at(i), at(i), store.Do(1_798_000_000_000+now.Milliseconds(), ask))
					}
				}
			}
			pass := func(d time.Duration) {
				for end := now + d; now < end; now += 20 * ms {
					carry()
				}
			}
			key := func(k int) limiter.Key { return guards[0].Hasher().KeyOf(fmt.Sprint(k)) }
			ask := func(i, k int) Decision {
				r := Request{Keys: []limiter.Key{key(k)}, Client: key(k)}
				d := guards[i].Admit(at(i), r)
				if d.Queued() {
					carry()
					guards[i].Settle(at(i), r, &d, 0)
				}
				if d.Admit && c.settles {
					guards[i].Cost(at(i), &d, 0, 1)
				}
				if d.Admit {
					d.Done(at(i), Served)
				}
				return d
			}
			// use has each key ask for twice its quota, and returns how often it is admitted, the least and the most of all keys.
			use := func() (least, most int) {
				var used [keys]int
				for n := range 2 * quota {
					for k := range keys {
						if ask(c.pick(n), k).Admit {
							used[k]++
						}
					}
					if c.restarts > 0 && n%(quota/c.restarts) == 0 && n < quota {
						i := n / (quota / c.restarts) % replicas
						if bye, ok := guards[i].Zones(at(i))[0].Bye(at(i)); ok && n%2 == 0 {
							store.Do(1_798_000_000_000+now.Milliseconds(), bye)
						}
						guards[i] = start()
					}
					if n == quota/2 && c.silence > 0 {
						down = true
						pass(c.silence)
					}
					if n == quota*3/4 && down {
						down = false
						pass(time.Second)
					}
					if n == quota/2 && c.lost {
						store = virtual.New()
					}
					pass(20 * ms)
				}
				return slices.Min(used[:]), slices.Max(used[:])
			}
			for i := range guards {
				guards[i] = start()
			}
			pass(time.Second)
			for i := range 3 { // of a key that nobody else has
				header, r := http.Header{}, Request{Keys: []limiter.Key{key(keys)}}
				left := quota - 1 - i
				if ask(i, keys); c.settles { // a deposit of 2 costs 1
					pass(100 * ms)
					ask(i, keys)
					left = quota - 2 - 2*i
				}
				guards[i].Remaining(header, at(i), &r)
				if got := header.Get("Ratelimit"); !strings.Contains(got, fmt.Sprintf("r=%d;", left)) {
					t.Errorf("replica %d tells %s, want r=%d", i, got, left)
				}
			}
			yesterday, most := use()
			told := map[time.Duration]int{}
			for k := range keys {
				d := ask(k%replicas, k)
				wait := before - at(k%replicas)
				if got := time.Duration(d.Hint.Seconds) * time.Second; d.Admit || got < wait || got > wait+16*time.Minute {
					t.Errorf("key %d: admitted %v, told %v; want %v to a quarter of an hour later", k, d.Admit, got, wait)
				}
				told[(now+time.Duration(d.Hint.Seconds)*time.Second).Truncate(time.Minute)]++
			}
			now = before - 5*time.Second
			if pass(3900 * ms); ask(0, 0).Admit {
				t.Error("a key without tokens is admitted before the reset")
			}
			if pass(300 * ms); !ask(replicas-1, 0).Admit || ask(0, 0).Admit {
				t.Error("only where the clock is ahead the new day has begun, but that is not what is decided")
			}
			pass(before + ms - now)
			c.silence, c.lost, c.restarts = 0, false, 0
			today, mostToday := use()
			t.Logf("each key uses %d to %d of %d, and on the next day %d to %d", yesterday, most, quota, today, mostToday)
			if yesterday < quota*95/100 || most > c.most+replicas {
				t.Errorf("each key could use %d to %d; want %d to %d", yesterday, most, quota*95/100, c.most+replicas)
			}
			if today < quota*95/100 || mostToday > quota+replicas {
				t.Errorf("each key could use %d to %d on the next day; want %d to %d", today, mostToday, quota*95/100, quota+replicas)
			}
			for minute, n := range told {
				if n > keys/4 {
					t.Errorf("%d of %d keys are told to come within one minute, %v", n, keys, minute)
				}
			}
		})
	}
}
