package oncall

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
)

// hashed is a key as a hash makes it (SplitMix64, Steele and others, 2014).
func hashed(n uint64) uint64 {
	n += 0x9e3779b97f4a7c15
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return max(1, n^n>>31)
}

func (t *Top) event(now time.Duration, n uint64, e Event) {
	e.Client = hashed(n)
	if t.Count(now, e) {
		t.Name(now, e.Client, fmt.Appendf(nil, "%d", n), 6, "GET", "/items/1")
	}
}

// Of 100,000 clients the most frequent 20 are found, whatever order they come in.
func TestTopFindsTheMostFrequent(t *testing.T) {
	for _, exponent := range []float64{1.01, 1.3} {
		for seed := range uint64(2) {
			random := rand.New(rand.NewPCG(seed, 1))
			zipf := rand.NewZipf(random, exponent, 1, 100_000-1)
			top, counts := new(Top), map[uint64]int{}
			const events = 300_000
			for i := range time.Duration(events) {
				n := zipf.Uint64()
				counts[n]++
				top.event(i*50*time.Second/events, n+seed<<32, Event{})
			}
			found := map[string]float64{}
			for _, c := range Most(top.Clients(50*time.Second), 30) {
				found[c.Name] = c.Events
			}
			for n := range uint64(20) { // the law's first are the stream's, too, with some luck
				got, want := found[fmt.Sprint(n+seed<<32)], float64(counts[n])
				if got < 0.9*want || got > want {
					t.Errorf("exponent %v, seed %d: client %d of the first 20 has %.0f events in the list of 30; want %.0f, or little less", exponent, seed, n, got, want)
				}
			}
		}
	}
}

// Clients that come once each, 4,000 per second, leave the others where they are.
func TestFloodPushesOutNoFrequentClient(t *testing.T) {
	top, next := new(Top), uint64(1000)
	for ms := range time.Duration(180_000) {
		now := ms * time.Millisecond
		for range 4 {
			top.event(now, next, Event{})
			next++
		}
		if ms%20 == 0 { // 50/s
			top.event(now, 1, Event{})
		}
		if ms > 150_000 && ms%10 == 0 { // one that comes late to the flood
			top.event(now, 2, Event{})
		}
	}
	first := Most(top.Clients(180*time.Second), 2)
	if len(first) != 2 || first[0].Name+first[1].Name != "12" && first[0].Name+first[1].Name != "21" {
		t.Fatalf("the first two are %+v; want clients 1 and 2", first)
	}
	for _, c := range first {
		if c.Events < 2850 || c.Events > 3050 {
			t.Errorf("client %s has %.0f events; want 3000", c.Name, c.Events)
		}
	}
}

// A client with more than an eighth of the events of its set is found, though all others come once.
func TestASeventhIsFound(t *testing.T) {
	top := new(Top)
	for i := range uint64(700) {
		client := 1 + i          // of the first set, as its highest bits are 0
		if i%7 == 0 && i > 100 { // it comes late
			client = 1000
		}
		if top.Count(0, Event{Client: client}) {
			top.Name(0, client, []byte("a"), 0, "GET", "/")
		}
	}
	if first := Most(top.Clients(0), 1); len(first) != 1 || first[0].Key != 1000 || first[0].Events < 60 {
		t.Errorf("the first is %+v; want client 1000, with nearly 86 events", first)
	}
}

func TestTopForgetsAfterAMinute(t *testing.T) {
	top := new(Top)
	for i := range time.Duration(60) { // one per second, half of them early
		top.event(i*time.Second, 7, Event{Early: i%2 == 0, Reason: 1, Class: 2})
	}
	top.event(59*time.Second, 7, Event{Reason: 4, Class: 5})
	at := func(now time.Duration) Client {
		t.Helper()
		list := top.Clients(now)
		if len(list) != 1 {
			t.Fatalf("after %v there are %d clients; want 1", now, len(list))
		}
		return list[0]
	}
	want := Client{Key: hashed(7), Name: "7", Events: 61, Early: 30, PerSecond: 61 / 59.5, Reason: 4, Class: 5, Agent: 6, Path: "GET /items/…"}
	if got := at(59*time.Second + 500*time.Millisecond); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := at(90 * time.Second); got.Events != 30.5 || got.Early != 15 || got.PerSecond != 30.5/60 {
		t.Errorf("half a minute later: %+v; want half of it", got)
	}
	if list := top.Clients(2 * time.Minute); len(list) != 0 {
		t.Errorf("a minute later there is %+v; want none", list)
	}
	for days := time.Duration(1); days < 100; days++ {
		if list := top.Clients(days * 24 * time.Hour); len(list) != 0 {
			t.Errorf("%d days later there is %+v; want none", days, list)
		}
	}
	top.event(3*time.Minute, 7, Event{})
	if got := at(3 * time.Minute); got.Events != 1 || got.Early != 0 {
		t.Errorf("one more event: %+v", got)
	}
	top.event(3*time.Minute-time.Second, 7, Event{}) // of a goroutine that was slow
	if got := at(3 * time.Minute); got.Events != 2 {
		t.Errorf("one of the minute before: %+v", got)
	}
}

func TestNames(t *testing.T) {
	top := new(Top)
	long := make([]byte, 100)
	for i := range long {
		long[i] = 'a' + byte(i%26)
	}
	for range 2 {
		if !top.Count(0, Event{Client: 1}) {
			t.Error("a name that was not told is known")
		}
	}
	if list := top.Clients(0); len(list) != 0 {
		t.Errorf("a client without a name is shown: %+v", list)
	}
	top.Name(0, 1, long, 0, "GET", "/")
	top.Name(0, 2, long, 0, "GET", "/") // not there
	if top.Count(0, Event{Client: 1}) {
		t.Error("a name that was told is not known")
	}
	if list := top.Clients(0); len(list) != 1 || list[0].Name != string(long[:MaxClientName]) || !list[0].Cut || list[0].Events != 3 {
		t.Errorf("got %+v", list)
	}
	top.Count(0, Event{Client: 1 << 60})
	top.Name(0, 1<<60, nil, 0, "GET", "/") // a name may be empty
	if list := top.Clients(0); len(list) != 2 || list[1].Name != "" || list[1].Cut {
		t.Errorf("got %+v", list)
	}
}

// Many goroutines count, name and look at once. No event of a client that keeps its entry is lost.
func TestTopAtOnce(t *testing.T) {
	const each = 5000
	top := new(Top)
	var all sync.WaitGroup
	for g := range uint64(8) {
		all.Go(func() {
			for i := range uint64(each) {
				now := 30*time.Second + time.Duration(i)*time.Millisecond
				top.event(now, 1, Event{Early: true, Reason: uint8(g)})
				top.event(now, 2+i%3000*8+g, Event{})
				if i%500 == 0 {
					top.Clients(now)
				}
			}
		})
	}
	all.Wait()
	first := Most(top.Clients(40*time.Second), 1)
	if len(first) != 1 || first[0].Name != "1" || first[0].Events < 8*each || first[0].Early != first[0].Events {
		t.Errorf("got %+v; want %d events of client 1", first, 8*each)
	}
}

func TestCountDoesNotAllocate(t *testing.T) {
	top, n, name := new(Top), uint64(0), []byte("192.0.2.1")
	if got := testing.AllocsPerRun(1000, func() {
		n++
		if top.Count(0, Event{Client: hashed(n)}) {
			top.Name(0, hashed(n), name, 0, "GET", "/")
		}
		top.Count(0, Event{Client: hashed(n)})
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// Of a path its first element is shown, as much of it as fits.
func TestPathClasses(t *testing.T) {
	for in, want := range map[[2]string]string{
		{"GET", "/"}:                           "GET /",
		{"GET", "/items"}:                      "GET /items",
		{"GET", "/items/"}:                     "GET /items/",
		{"POST", "/items/1/2"}:                 "POST /items/…",
		{"GET", "//items"}:                     "GET //…",
		{"GET", "items/1"}:                     "GET items/…",
		{"OPTIONS", "*"}:                       "OPTIONS *",
		{"GET", ""}:                            "GET ",
		{"GET", "/" + strings.Repeat("a", 27)}: "GET /" + strings.Repeat("a", 27),
		{"GET", "/" + strings.Repeat("a", 28)}: "GET /" + strings.Repeat("a", 23) + "/…",
		{strings.Repeat("M", 99), "/" + strings.Repeat("a", 9)}: strings.Repeat("M", 9) + " /" + strings.Repeat("a", 9),
	} {
		var got [MaxPathClass]byte
		setPathClass(&got, in[0], in[1])
		if text := strings.TrimRight(string(got[:]), "\x00"); text != want {
			t.Errorf("%q: %q; want %q", in, text, want)
		}
	}
}

// A client is named again each minute: what it asks for may change.
func TestNamesAreRenewed(t *testing.T) {
	top, e := new(Top), Event{Client: 7}
	if !top.Count(0, e) {
		t.Error("a new client is not to be named")
	}
	top.Name(0, 7, []byte("seven"), 1, "GET", "/")
	if top.Count(59*time.Second, e) {
		t.Error("a client is to be named twice in a minute")
	}
	if !top.Count(60*time.Second, e) {
		t.Error("a client is not to be named again in the next minute")
	}
	top.Name(60*time.Second, 7, []byte("seven"), 1, "POST", "/pay/now")
	if got := top.Clients(60 * time.Second); len(got) != 1 || got[0].Path != "POST /pay/…" {
		t.Errorf("%+v; want the path of the last minute", got)
	}
}
