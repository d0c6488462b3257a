package pushback

import (
	"reflect"
	"testing"
	"time"
)

// A copy of a calendar is the same in all that its mutex guards.
func TestCalendarCopy(t *testing.T) {
	var c, to Calendar
	now := time.Hour
	r := Rates{Rate: 10, Min: time.Second, Max: 30 * time.Second}
	for i := range 500 {
		now += 7 * time.Millisecond
		c.Book(now, r, Trust(i%2))
		if i%50 == 0 {
			c.Arrived(now, time.Second, uint64(i), 3)
			c.BookFrom(now, now+3*time.Second, r)
		}
	}
	c.copyTo(&to)
	if to.ring == c.ring {
		t.Fatal("the ring is shared with the copy")
	}
	if !reflect.DeepEqual(&c, &to) {
		t.Errorf("the copy is %+v, want %+v", &to, &c)
	}
	to.Book(now, r, Untried)
	if reflect.DeepEqual(&c, &to) {
		t.Error("a booking in the copy is one in the original")
	}
}

// A forgiven client's slot is the next one's.
func TestForgiveGivesSlotsBack(t *testing.T) {
	terms := termsOf(t, AnswerConfig{})
	a := new(Appointments)
	a.Resize(MinMaxClients)
	now := time.Hour
	book := func(key uint64) time.Duration {
		var d Told
		v := new(Visit)
		c := Caller{Key: key, Fingerprint: 1}
		a.Arrive(now, &c, terms, v)
		a.Refuse(now, &c, v, terms, Supply{Rate: 4}, &d)
		return d.Wait
	}
	for key := range uint64(20) {
		book(key + 1)
	}
	before := a.Stats(now).Promises
	waiting := a.calendar.Waiting()
	of := a.Client(now, 5)
	if of.Promises != 1 || of.Due <= now {
		t.Fatalf("the client has %+v", of)
	}
	promises, strikes := a.Forgive(now, 5)
	if promises != 1 || strikes != 0 {
		t.Errorf("forgiven: %d promises, %d strikes", promises, strikes)
	}
	if again := a.Client(now, 5); again.Promises != 0 || again.Strikes != 0 {
		t.Errorf("the client still has %+v", again)
	}
	if got := a.calendar.Waiting(); got != waiting-1 {
		t.Errorf("%d clients are waited for, want %d", got, waiting-1)
	}
	if wait := book(100); now+wait > of.Due+SlotWidth {
		t.Errorf("the slot at %v is not given to the next client, which waits until %v", of.Due, now+wait)
	}
	if after := a.Stats(now).Promises; after.Made != before.Made+1 || after.Kept != before.Kept {
		t.Errorf("the counts were %+v and are %+v", before, after)
	}
	if promises, _ := a.Forgive(now, 5); promises != 0 {
		t.Errorf("a client that was forgiven has %d promises", promises)
	}
}

// A crowd that is forgiven gives back all of its slots.
func TestForgiveACrowd(t *testing.T) {
	terms := termsOf(t, AnswerConfig{})
	a := new(Appointments)
	a.Resize(MinMaxClients)
	now := time.Hour
	for i := range 40 {
		var d Told
		v := new(Visit)
		c := Caller{Key: 7, Fingerprint: uint64(i)}
		a.Arrive(now, &c, terms, v)
		a.Refuse(now, &c, v, terms, Supply{Rate: 4}, &d)
	}
	before := a.Client(now, 7)
	if !before.Crowd || before.Promises < 2*CrowdThreshold {
		t.Fatalf("the crowd has %+v", before)
	}
	if promises, _ := a.Forgive(now, 7); promises != before.Promises {
		t.Errorf("%d promises are forgiven, want %d", promises, before.Promises)
	}
	if after := a.Client(now, 7); after.Promises != 0 {
		t.Errorf("the crowd has %+v", after)
	}
	if n := a.calendar.Waiting(); n != 0 {
		t.Errorf("%d clients are waited for", n)
	}
}
