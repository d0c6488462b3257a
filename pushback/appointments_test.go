package pushback

import (
	"fmt"
	"testing"
	"time"
)

func termsOf(t testing.TB, c ResponseConfig) *Terms {
	t.Helper()
	answers, err := NewResponses(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &Terms{Responses: answers, Enforce: true}
}

// Three clients are rejected at once by a backend that does two requests per second. Each is
// told its own time; the first comes back too early, and then on time.
func ExampleAppointments() {
	answers, err := NewResponses(ResponseConfig{NoDither: true}, nil)
	if err != nil {
		panic(err)
	}
	terms, supply := &Terms{Responses: answers, Enforce: true}, Supply{Rate: 2}
	var a Appointments
	now := time.Minute // since an epoch of the caller's
	for key := range uint64(8) {
		var told Told
		a.Reject(now, &Caller{Key: 1 + key}, &Visit{}, terms, supply, &told)
		fmt.Printf("client %d is told %d s\n", 1+key, told.Hint.Seconds)
	}
	come := func(now time.Duration) (v Visit) {
		a.Arrive(now, &Caller{Key: 2}, terms, supply.Rate, true, &v)
		return v
	}
	fmt.Println("too early:", come(now+300*time.Millisecond).Rejected)
	fmt.Println("due:", come(now+2*time.Second).Standing == Due)
	// Output:
	// client 1 is told 1 s
	// client 2 is told 2 s
	// client 3 is told 3 s
	// client 4 is told 3 s
	// client 5 is told 4 s
	// client 6 is told 4 s
	// client 7 is told 5 s
	// client 8 is told 5 s
	// too early: true
	// due: true
}

// One address may have far more clients than a key has promises of its own. Each of them is
// told a time, in their order, and each is due once.
func TestSharedAddress(t *testing.T) {
	const n, rate = 1_000, 100
	terms, supply := termsOf(t, ResponseConfig{NoDither: true}), Supply{Rate: rate}
	var a Appointments
	now := time.Minute
	last := time.Duration(0)
	for i := range n {
		var v Visit
		var told Told
		c := Caller{Key: 7}
		a.Arrive(now, &c, terms, rate, true, &v)
		a.Reject(now, &c, &v, terms, supply, &told)
		if told.Wait < last || told.Wait > 12*time.Second {
			t.Fatalf("client %d is told %v after %v", i, told.Wait, last)
		}
		last = told.Wait
	}
	if c := a.Client(now, 7); !c.Shared || c.Promises != n {
		t.Fatalf("%+v, want a group with %d promises", c, n)
	}
	due := 0
	for at := now + time.Second; at < now+13*time.Second; at += 5 * time.Millisecond {
		var v Visit
		if a.Arrive(at, &Caller{Key: 7}, terms, rate, true, &v); v.Standing == Due {
			due++
		}
		a.Admitted(at, 7, &v)
	}
	if due != n {
		t.Errorf("%d of %d are due", due, n)
	}
	// One that reads milliseconds, and is told less than a quarter of a second, is due then.
	precise, at := Caller{Key: 7, Precise: true}, now+13*time.Second
	for i, want := range []Standing{NewClient, Due} {
		var v Visit
		if a.Arrive(at, &precise, terms, rate, true, &v); v.Standing != want {
			t.Errorf("visit %d is %+v, want %d", i, v, want)
		}
		a.Reject(at, &precise, &v, terms, supply, new(Told))
		at += 50 * time.Millisecond
	}
	if a.Forgive(at, 7); a.Client(at, 7) != (Client{}) {
		t.Errorf("a group that is forgiven is %+v", a.Client(at, 7))
	}
	// More addresses than can be groups cost the group with the fewest promises, and not all of their promises are told to other replicas.
	a.HearSlots(0, 0, 2, new(SlotsAnswer))
	for key := range uint64(2 * maxGroups) {
		for range GroupThreshold + 2 {
			var v Visit
			c := Caller{Key: 100 + key}
			a.Arrive(now, &c, terms, rate, true, &v)
			a.Reject(now, &c, &v, terms, supply, new(Told))
		}
	}
	if n, told := len(a.groups.of), len(*a.news.Load()); n != maxGroups || told != maxNews {
		t.Errorf("%d groups, want %d; %d notes, want %d", n, maxGroups, told, maxNews)
	}
	// When those have stayed away for two minutes, they hold no slots.
	a.groups.begin(now+2*maxLate, 6)
	a.groups.mu.Unlock()
	if a.Tick(now+2*maxLate+1, 0, 0, 0); len(a.groups.of) != 1 || a.groups.promises != (kinds{}) {
		t.Errorf("%d groups with %d promises, want one without any", len(a.groups.of), a.groups.promises)
	}
}

// Slots of the store that are over are not kept, and nobody waits for a time that no replica has promised, as of a damaged store.
func TestSlotsAndNotesOfOtherTimes(t *testing.T) {
	var a Appointments
	a.HearSlots(0, 0, 2, &SlotsAnswer{Times: []int64{1000}})
	a.HearSlots(time.Minute, 0, 2, &SlotsAnswer{Times: []int64{61_000}})
	a.Hear(time.Minute, &Note{Key: 1, Turn: Turn{At: time.Hour, Slot: true}})
	if len(a.times) != 1 || a.Backlogged(time.Minute) {
		t.Errorf("it has slots at %v; new clients wait for %v", a.times, a.Ahead(time.Minute))
	}
}

// A promise that is not remembered, for want of room, does not count as broken by its client.
func TestForgottenPromisesAreNotBroken(t *testing.T) {
	terms, supply := termsOf(t, ResponseConfig{NoDither: true}), Supply{Rate: 100}
	var a Appointments
	a.Resize(MinMaxClients)
	for key := range uint64(8 * MinMaxClients) {
		a.Reject(time.Minute, &Caller{Key: 1 + key}, new(Visit), terms, supply, new(Told))
	}
	var told, remembered int
	for i := range a.ring {
		told += int(a.ring[i].told[untried])
	}
	for _, n := range a.Clients() {
		remembered += n
	}
	if told != remembered {
		t.Errorf("%d promises are waited for, and %d remembered", told, remembered)
	}
}
