package pushback

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
)

func slotAt(at time.Duration) Appointment { return Appointment{At: at} }

func deferredTo(at time.Duration, number float64) Appointment {
	return Appointment{At: at, Deferred: true, Number: number}
}

// inOneSet returns n keys that belong to the same set of a ledger.
func inOneSet(n, maxClients int) []uint64 {
	sets := int64(maxClients+ways-1) / ways
	want := index(tagOf(1), sets)
	keys := []uint64{1}
	for k := uint64(2); len(keys) < n; k++ {
		if index(tagOf(k), sets) == want {
			keys = append(keys, k)
		}
	}
	return keys
}

func smallLedger() *Ledger {
	l := new(Ledger)
	l.Resize(MinMaxClients)
	return l
}

const (
	horizon = 30 * time.Second
	crowded = 1000 // other promises wait
)

// One client's story, at any time of the life of a process.
func TestVisitsAreComparedWithPromises(t *testing.T) {
	for _, epoch := range []time.Duration{0, 100 * ms, time.Hour, 18 * time.Hour, 67_108_864 * ms, 24 * 7 * time.Hour, 10 * 365 * 24 * time.Hour} {
		for _, step := range []struct {
			name string
			at   time.Duration // after it was told
			kind uint64
			want Standing
			late bool
		}{
			{"before it can have heard", -200 * ms, 1, OtherRequest, false},
			{"at once", 20 * ms, 1, TooEarly, false},
			{"at once, for something else", 20 * ms, 2, OtherRequest, false},
			{"half way", 10 * time.Second, 1, TooEarly, false},
			{"two in a hundred too early", 19*time.Second + 620*ms, 1, OnTime, false},
			{"three in a hundred too early", 19*time.Second + 400*ms, 1, TooEarly, false},
			{"to the millisecond", 20 * time.Second, 1, OnTime, false},
			{"to the millisecond, for something else", 20 * time.Second, 2, OnTime, false},
			{"a fifth later", 24 * time.Second, 1, OnTime, false},
			{"half as late again", 30 * time.Second, 1, OnTime, true},
			{"a minute late", 79 * time.Second, 1, OnTime, true},
			{"later than that", 81 * time.Second, 1, Stranger, false},
			{"an hour later", time.Hour, 1, Stranger, false},
			{"a day later", 24 * time.Hour, 1, Stranger, false},
		} {
			l := smallLedger()
			told := epoch + time.Second
			if !l.Write(told-300*ms, 7, 1, slotAt(told+20*time.Second), told, ReplaceNone) {
				t.Fatal("no room in an empty ledger")
			}
			v := l.Visit(told+step.at, 7, step.kind, 0, crowded)
			if v.Standing != step.want || v.Late != step.late || v.Rejected || v.Deferred {
				t.Errorf("%s, %v after the epoch: %+v, want %v", step.name, epoch, v, step.want)
			}
			if d := told + 20*time.Second - v.At; v.Standing != Stranger && (d < 0 || d >= dueUnit) {
				t.Errorf("%s: promised %v, read as %v", step.name, told+20*time.Second, v.At)
			}
			if l.Visit(told+step.at, 8, step.kind, horizon, crowded) != (Visit{}) {
				t.Errorf("%s: another client is known too", step.name)
			}
		}
	}
}

// Eight early returns of one kind move the promise by five seconds, at most
// three times and never beyond the horizon; one return on time forgives.
func TestStrikes(t *testing.T) {
	l := smallLedger()
	promised := 30 * time.Second
	l.Write(15*time.Second, 7, 1, slotAt(promised), 15*time.Second, ReplaceNone)
	now, at := 15*time.Second, promised
	for i := 1; i <= 100; i++ {
		now += 200 * ms
		v := l.Visit(now, 7, 1, horizon, crowded)
		if want := promised + time.Duration(min(i/8, 3))*5*time.Second; v.Standing != TooEarly || !v.Rejected || (v.At-want).Abs() > dueUnit {
			t.Fatalf("early return %d: %+v, want %v", i, v, want)
		}
		if v.Hammers != (i > 1) {
			t.Errorf("early return %d: hammers is %v", i, v.Hammers)
		}
		at = v.At
	}
	if v := l.Visit(at, 7, 1, horizon, crowded); v.Standing != OnTime || !v.Hammers {
		t.Errorf("in the end on time: %+v", v)
	}
	if v := l.Keep(at, 7); v.Standing != OnTime || v.Promises != 1 {
		t.Errorf("kept: %+v", v)
	}
	now = at + time.Second
	l.Write(now, 7, 1, slotAt(now+20*time.Second), now, ReplaceNone)
	for i := 1; i <= 7; i++ {
		now += 200 * ms
		if v := l.Visit(now, 7, 1, horizon, crowded); (v.At-(at+21*time.Second)).Abs() > dueUnit || i == 1 && v.Hammers {
			t.Errorf("forgiven, early return %d: %+v", i, v)
		}
	}

	// Not beyond the horizon.
	l = smallLedger()
	l.Write(0, 7, 1, slotAt(29*time.Second), 0, ReplaceNone)
	for i := range 31 {
		now := time.Duration(i+1) * 10 * ms
		if v := l.Visit(now, 7, 1, horizon, crowded); v.At > now+horizon {
			t.Errorf("at %v told %v, beyond the horizon", now, v.At)
		}
	}
	// Nor for one who waits for long, nor for one who is not held to anything.
	for _, step := range []struct{ after, horizon time.Duration }{{11 * time.Second, horizon}, {200 * ms, 0}} {
		l = smallLedger()
		l.Write(0, 7, 1, slotAt(29*time.Second), 0, ReplaceNone)
		for i := range 20 {
			if v := l.Visit(step.after+time.Duration(i), 7, 1, step.horizon, crowded); v.Rejected || v.Hammers && i == 0 || (v.At-29*time.Second).Abs() > dueUnit {
				t.Errorf("%v after it was told, horizon %v: %+v", step.after, step.horizon, v)
			}
		}
	}
}

// A shared address with n promises is due n times, and gets no strikes.
func TestSharedAddress(t *testing.T) {
	for _, n := range []int{2, 8, MaxPromises} {
		l := smallLedger()
		for i := range n {
			v := l.Visit(time.Second, 7, 1, horizon, crowded)
			if v.Promises != i || v.Rejected || i > 0 && v.Standing != OtherRequest {
				t.Fatalf("parallel request %d while the answers are held: %+v", i, v)
			}
			if !l.Write(time.Second, 7, 1, slotAt(20*time.Second+time.Duration(i)*100*ms), 1900*ms, ReplaceNone) {
				t.Fatalf("promise %d found no room", i)
			}
		}
		if n == MaxPromises && l.Write(time.Second, 7, 1, slotAt(50*time.Second), time.Second, ReplaceNone) {
			t.Error("one promise too many was counted")
		}
		for range 40 {
			if v := l.Visit(5*time.Second, 7, 1, horizon, crowded); v.Standing != Ambiguous || !v.Rejected || v.At != 20*time.Second { // refused, but no promise moves
				t.Fatalf("one of %d, too early: %+v", n, v)
			}
		}
		for i := range n {
			now := 20*time.Second + time.Duration(i)*100*ms
			if v := l.Visit(now, 7, 1, horizon, crowded); v.Standing != OnTime || v.Promises != n-i {
				t.Fatalf("return %d of %d: %+v", i, n, v)
			}
			if v := l.Keep(now, 7); v.Standing != OnTime || v.Promises != n-i {
				t.Fatalf("return %d of %d was kept as %+v", i, n, v)
			}
		}
		if v := l.Visit(21*time.Second+time.Duration(n)*100*ms, 7, 1, horizon, crowded); v.Standing != Stranger || v.Promises != 0 {
			t.Errorf("return %d of %d: %+v", n+1, n, v)
		}
	}
}

func TestPlaces(t *testing.T) {
	now := time.Second
	three := func() *Ledger {
		l := smallLedger()
		for i := range 3 {
			l.Write(now, 7, 1, slotAt(time.Duration(5+i)*time.Second), now, ReplaceNone)
		}
		return l
	}
	for _, step := range []struct {
		p    Replace
		want int
		due  time.Duration
	}{{ReplaceNone, 4, 5 * time.Second}, {ReplaceOne, 2, 5 * time.Second}, {ReplaceAll, 1, 9 * time.Second}} {
		l := three()
		l.Write(now, 7, 1, slotAt(9*time.Second), now, step.p)
		if v := l.Visit(2*time.Second, 7, 2, 0, crowded); v.Promises != step.want || (v.At-step.due).Abs() > dueUnit {
			t.Errorf("place %d: %+v, want %d from %v", step.p, v, step.want, step.due)
		}
	}
	// A stranger has nothing that could be replaced.
	l := smallLedger()
	l.Write(now, 7, 1, slotAt(5*time.Second), now, ReplaceOne)
	if v := l.Visit(2*time.Second, 7, 2, 0, crowded); v.Promises != 1 {
		t.Errorf("a stranger's only promise: %+v", v)
	}
	// The queue's number stays with the client until it has a slot.
	l.Write(now, 9, 1, deferredTo(20*time.Second, 1000), now, ReplaceNone)
	if v := l.Visit(2*time.Second, 9, 1, 0, crowded); !v.Deferred || v.number(900) > 1000 || v.number(900) <= 1000-numberUnit {
		t.Errorf("deferred: %+v", v)
	}
	l.Write(20*time.Second, 9, 1, slotAt(25*time.Second), 20*time.Second, ReplaceOne)
	if v := l.Visit(25*time.Second, 9, 1, 0, crowded); v.Deferred || v.Standing != OnTime {
		t.Errorf("deferred, then a slot: %+v", v)
	}
	if v := l.Keep(25*time.Second, 9); v.Deferred {
		t.Errorf("kept: %+v", v)
	}
}

// A newcomer takes the place of the record that matters least, or finds none.
func TestWhichRecordIsForgotten(t *testing.T) {
	keys := inOneSet(64, MinMaxClients)
	now := 100 * time.Second
	fill := func(l *Ledger, a Appointment) {
		t.Helper()
		for _, k := range keys[:ways] {
			if !l.Write(now, k, 1, a, now, ReplaceNone) {
				t.Fatal("no room in an empty set")
			}
		}
	}
	known := func(l *Ledger, now time.Duration) (n int) {
		for _, k := range keys[:ways] {
			if l.Visit(now, k, 1, 0, crowded).Promises > 0 {
				n++
			}
		}
		return n
	}
	for _, step := range []struct {
		name        string
		has, wants  Appointment
		after       time.Duration
		writes      bool
		knownBefore int
	}{
		{"a slot for one who has none", deferredTo(now+20*time.Second, 5), slotAt(now + 30*time.Second), 0, true, ways},
		{"no slot for one who has none", deferredTo(now+20*time.Second, 5), deferredTo(now+30*time.Second, 99), 0, false, ways},
		{"a slot for one who has one", slotAt(now + 20*time.Second), slotAt(now + 30*time.Second), 0, false, ways},
		{"one that is a little late", slotAt(now + 20*time.Second), slotAt(now + 40*time.Second), 24 * time.Second, false, ways},
		{"one that is late", slotAt(now + 20*time.Second), deferredTo(now+40*time.Second, 9), 26 * time.Second, true, ways},
		{"one that has expired", slotAt(now + 20*time.Second), deferredTo(now+120*time.Second, 9), 90 * time.Second, true, 0},
	} {
		l := smallLedger()
		fill(l, step.has)
		if got := l.Write(now+step.after, keys[ways], 1, step.wants, now, ReplaceNone); got != step.writes {
			t.Errorf("%s: written is %v", step.name, got)
		}
		want := step.knownBefore
		if step.writes && want > 0 {
			want--
		}
		if got := known(l, now+step.after); got != want {
			t.Errorf("%s: %d of %d are still known, want %d", step.name, got, ways, want)
		}
	}

	// A client that has kept a promise is never forgotten for newcomers: half of the set.
	l := smallLedger()
	fill(l, slotAt(now+2*time.Second))
	for _, k := range keys[:ways] {
		l.Keep(now+2*time.Second, k)
	}
	later := now + time.Hour
	for _, k := range keys[:ways] {
		l.Write(later, k, 1, deferredTo(later+20*time.Second, 3), later, ReplaceNone)
	}
	for _, k := range keys[ways:] {
		l.Write(later, k, 1, slotAt(later+30*time.Second), later, ReplaceNone)
	}
	if got := known(l, later); got != protectedWays {
		t.Errorf("%d clients that kept a promise are known after a flood, want %d", got, protectedWays)
	}
}

// Half of a set at the most is for those who keep promises, whatever came before,
// or a set would be closed to newcomers for ever.
func TestNewcomersAlwaysHaveHalf(t *testing.T) {
	var l Ledger
	l.Resize(4 * MinMaxClients)
	now := time.Second
	for k := uint64(1); k <= 4*MinMaxClients; k++ {
		if l.Write(now, k, 1, slotAt(now+time.Second), now, ReplaceNone) {
			l.Keep(now+time.Second, k)
		}
	}
	l.Resize(MinMaxClients)
	for i := range *l.table.Load() {
		n := 0
		for _, r := range (*l.table.Load())[i] {
			n += int(r.get(fProtected))
		}
		if n > protectedWays {
			t.Fatalf("after the ledger was made smaller, %d of %d records of a set are protected, want at most %d", n, ways, protectedWays)
		}
	}
	// An hour later no client is expected.
	now += time.Hour
	written := 0
	for k := uint64(1e6); k < 1e6+MinMaxClients/4; k++ {
		if l.Write(now, k, 1, slotAt(now+20*time.Second), now, ReplaceNone) {
			written++
		}
	}
	if written < MinMaxClients/4*95/100 {
		t.Errorf("%d of %d newcomers found room", written, MinMaxClients/4)
	}
}

func TestResizeKeepsRecords(t *testing.T) {
	var l Ledger
	const clients = 4_000
	now := time.Second
	for _, size := range []int{1 << 16, 1 << 19, 1 << 14, 100_001, 1 << 16} {
		l.Resize(size)
		if got := l.MaxClients(); got < size || got >= size+ways {
			t.Errorf("resized to %d: %d", size, got)
		}
		if now == time.Second {
			for k := uint64(1); k <= clients; k++ {
				l.Write(now, k, k, deferredTo(30*time.Second, float64(k)), now, ReplaceNone)
			}
		}
		now += ms
		lost := 0
		for k := uint64(1); k <= clients; k++ {
			v := l.Visit(now, k, k, 0, crowded)
			if v.Promises == 0 {
				lost++
			} else if !v.Deferred || v.Number != uint32(k)/numberUnit || v.Standing != OtherRequest && v.Standing != TooEarly {
				t.Fatalf("size %d, client %d: %+v", size, k, v)
			}
		}
		if lost > clients/100 {
			t.Errorf("resized to %d: %d of %d clients were lost", size, lost, clients)
		}
		n := 0
		for _, m := range l.Clients() {
			n += m
		}
		if n != clients-lost {
			t.Errorf("resized to %d: %d clients are counted, %d are known", size, n, clients-lost)
		}
	}
}

// A ledger without writes takes no memory, and none takes more than it was given.
func TestLedgerMemoryIsBounded(t *testing.T) {
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	var l Ledger
	l.Resize(1 << 17)
	l.Visit(0, 1, 1, horizon, crowded)
	l.Keep(0, 1)
	if used := heap() - before; used > 64<<10 {
		t.Errorf("an empty ledger takes %d bytes", used)
	}
	for k := uint64(1); k < 1_000_000; k++ {
		l.Write(time.Duration(k)*10*time.Microsecond, k, 1, slotAt(30*time.Second), 0, ReplaceNone)
	}
	if used := heap() - before; used < 16<<17-(256<<10) || used > 16<<17+(256<<10) {
		t.Errorf("a million clients in a ledger for %d take %d bytes, want 16 each", 1<<17, used)
	}
	runtime.KeepAlive(&l)
}

// Visits, writes, returns, scrapes and resizes at once, for the race detector;
// and no client is forgotten that fits.
func TestLedgerIsSafeForConcurrentUse(t *testing.T) {
	var l Ledger
	l.Resize(1 << 14)
	var users, others sync.WaitGroup
	done := make(chan struct{})
	for w := range 8 {
		users.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 3))
			for i := range 3_000 {
				key := uint64(w*40 + rng.IntN(40))
				now := time.Duration(i) * ms
				switch v := l.Visit(now, key, 1, horizon, crowded); v.Standing {
				case OnTime:
					l.Keep(now, key)
				case Stranger:
					l.Write(now, key, 1, slotAt(now+time.Second), now, ReplaceNone)
					if got := l.Visit(now, key, 1, 0, crowded); got.Promises != 1 {
						t.Errorf("client %d is forgotten at once: %+v", key, got)
						return
					}
				}
			}
		})
	}
	others.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
				l.Resize(1<<14 + i%3*(1<<13))
				l.Clients()
				l.MaxClients()
			}
		}
	})
	users.Wait()
	close(done)
	others.Wait()
}

// A client that has kept a promise has a pass: a request for each passInterval, some of
// them at once, for passLife. It is no other's, and no promise that it has adds to it.
func TestPass(t *testing.T) {
	const key, due = 7, time.Hour
	var l Ledger
	kept := func(at time.Duration) {
		l.Write(at-10*time.Second, key, 1, Appointment{At: at}, at-10*time.Second, ReplaceNone)
		if v := l.Visit(at-time.Second, key, 1, 0, 9); v.Pass {
			t.Error("a pass beside an appointment")
		}
		l.Keep(at, key)
	}
	uses := func(at time.Duration) (n int) {
		for l.Visit(at, key, uint64(n), 0, 9).Pass {
			l.UsePass(at, key)
			n++
		}
		return n
	}
	kept(due)
	for _, c := range []struct {
		after time.Duration
		want  int
	}{
		{0, 0}, {3 * time.Second, 0}, {passInterval + passUnit, 1}, {2*passInterval - time.Second, 0}, {4*passInterval + passUnit, 3},
		{4*passInterval + 2*time.Minute, passBurst}, {passLife - time.Second, passBurst}, {passLife + time.Second, 0}, {24 * time.Hour, 0},
	} {
		if n := uses(due + c.after); n != c.want {
			t.Errorf("%v after a promise was kept: %d requests for the pass, want %d", c.after, n, c.want)
		}
		if l.Visit(due+c.after, key+1, 1, 0, 9).Pass {
			t.Error("a pass of another client")
		}
	}
	for i := range 20 { // one appointment after the other
		at := 3*time.Hour + time.Duration(i)*10*time.Second
		if kept(at); uses(at) > 0 {
			t.Fatal("an appointment is worth another request")
		}
	}
	if l.Drop(key); l.Visit(4*time.Hour, key, 1, 0, 9).Pass {
		t.Error("a pass of a client that is forgotten")
	}
	l.Write(5*time.Hour, 9, 1, Appointment{At: 5*time.Hour + 5*time.Second}, 5*time.Hour, ReplaceNone)
	if l.Visit(5*time.Hour+2*time.Minute, 9, 1, 0, 9).Pass {
		t.Error("a pass of a client that did not come")
	}
}
