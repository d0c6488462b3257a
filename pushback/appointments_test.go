package pushback

import (
	"fmt"
	"testing"
	"time"
)

func termsOf(t testing.TB, c AnswerConfig) *Terms {
	t.Helper()
	answers, err := NewAnswers(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &Terms{Answers: answers, Enforce: true}
}

// Three clients are refused at once by a backend that does two requests per second. Each
// is told its own time; the first comes back too early, and then on time.
func ExampleAppointments() {
	answers, err := NewAnswers(AnswerConfig{NoDither: true}, nil)
	if err != nil {
		panic(err)
	}
	terms, supply := &Terms{Answers: answers, Enforce: true}, Supply{Rate: 2}
	var a Appointments
	now := time.Minute // since an epoch of the caller's
	for key := range uint64(3) {
		var told Told
		a.Refuse(now, &Caller{Key: 1 + key, Fingerprint: 1}, &Visit{}, terms, supply, &told)
		fmt.Printf("client %d is told %d s\n", 1+key, told.Hint.Seconds)
	}
	come := func(now time.Duration) (v Visit) {
		a.Arrive(now, &Caller{Key: 1, Fingerprint: 1}, terms, &v)
		return v
	}
	fmt.Println("too early:", come(now+300*time.Millisecond).Rejected)
	fmt.Println("due:", come(now+2*time.Second).Due)
	// Output:
	// client 1 is told 1 s
	// client 2 is told 2 s
	// client 3 is told 3 s
	// too early: true
	// due: true
}

// A herd is promised no more per second than can be spared, however it is told, and
// everything that it held is given back.
func TestAppointmentsOfAHerd(t *testing.T) {
	const n, rate = 1_000, 100
	terms, supply := termsOf(t, AnswerConfig{}), Supply{Rate: rate}
	var a Appointments
	perSecond := map[time.Duration]int{}
	now := time.Minute
	for key := range uint64(n) {
		var told Told
		a.Refuse(now, &Caller{Key: 1 + key, Fingerprint: 1}, &Visit{}, terms, supply, &told)
		if told.Hold > 0 && told.Hold+time.Duration(told.Hint.Seconds)*time.Second != told.Wait {
			t.Fatalf("client %d: %+v", key, told)
		}
		perSecond[told.Wait/time.Second]++
		told.Sent()
	}
	for second, n := range perSecond {
		if n > rate+rate/4+1 {
			t.Errorf("%d are promised second %d", n, second)
		}
	}
	if s := a.Stats(now); s.Held != 0 || s.Promises.Made != n {
		t.Errorf("%+v", s)
	}
	// A client that never comes back is forgotten; one that does has no more promises.
	for key := range uint64(n) {
		due := now + 12*time.Second
		if a.Promised(due, 1+key) != 1 {
			t.Fatalf("client %d has %d promises", key, a.Promised(due, 1+key))
		}
		a.Keep(due, 1+key, &Visit{})
		if a.Promised(due, 1+key) != 0 {
			t.Fatalf("client %d was served, and has a promise left", key)
		}
	}
	a.Refuse(now, &Caller{Key: 1, Fingerprint: 1}, &Visit{}, terms, supply, new(Told))
	if a.Forget(1); a.Promised(now, 1) != 0 {
		t.Error("a promise that was forgotten is still there")
	}
}

// A client that asks for many things at a person's pace has one promise, and does not
// hammer: the flag is set by its behaviour alone.
func TestHonestClientsDoNotHammer(t *testing.T) {
	terms, supply := termsOf(t, AnswerConfig{}), Supply{Rate: 10}
	var a Appointments
	now := time.Minute
	var v Visit
	for i := range uint64(40) { // one client that asks for many things
		var told Told
		v = Visit{}
		a.Arrive(now, &Caller{Key: 1, Fingerprint: i}, terms, &v)
		a.Refuse(now, &Caller{Key: 1, Fingerprint: i}, &v, terms, supply, &told)
		now += slowPollInterval
		told.Sent()
	}
	if v.Hammers {
		t.Error("a client that asks for many things is taken for one that does not listen")
	}
	if v.Promises > 1 {
		t.Errorf("%d promises", v.Promises)
	}
}
