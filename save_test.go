package shield

import (
	"bytes"
	"compress/gzip"
	"encoding/gob"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
)

var savedConfig = Config{
	Zones:    []Zone{{Name: "z", Limit: limiter.Config{Rate: 6, Per: time.Minute, Burst: 6}}},
	Capacity: limiter.Config{Rate: 2, Burst: 2},
	Secret:   []byte("0123456789abcdef"),
	Retries:  Retries{Issuer: "shop"},
}

// wall0 is the time of day at instant 0 of the process before the restart.
var wall0 = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// saved1 is what is saved of a client that has used up its quota 12 s after the process began.
func saved1(t *testing.T, c Config) []byte {
	t.Helper()
	g, key := mustNew(t, c, nil), limiter.Key(7)<<50
	now := 12 * time.Second
	for i := range 6 {
		if d := g.Admit(now-time.Duration(6-i)*time.Second, Request{Keys: []limiter.Key{key}}); !d.Admit {
			t.Fatalf("request %d: %v", i, d.Reason)
		}
	}
	var b bytes.Buffer
	if err := Save(&b, now, wall0.Add(now), []byte("s"), g, g); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// What clients owed is earned while the process is down. If the clock was set back, they wait no longer than they had to
// before; if it was set forward, they have a full burst and no more.
func TestSavedStateByTheClock(t *testing.T) {
	data := saved1(t, savedConfig)
	for _, c := range []struct {
		name      string
		restarted time.Duration // by the clock, after it was saved
		tokens    int
	}{
		{"at once", 0, 0}, // it had earned half of one, in 5 s
		{"after 10 s", 10 * time.Second, 1},
		{"after 33 s", 33 * time.Second, 3},
		{"after a day", 24 * time.Hour, 6},
		{"with a clock set back by a year", -365 * 24 * time.Hour, 0},
		{"with a clock set forward by 200 years", 200 * 365 * 24 * time.Hour, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			is, err := ReadSaved(bytes.NewReader(data))
			if err != nil || string(is.Secret) != "s" || !is.At.Equal(wall0.Add(12*time.Second)) {
				t.Fatalf("%v: %+v", err, is)
			}
			g, now := mustNew(t, savedConfig, nil), 300*time.Millisecond // the new process
			if err := is.Load(g, now, is.At.Add(c.restarted)); err != nil {
				t.Fatal(err)
			}
			r := Request{Keys: []limiter.Key{limiter.Key(7) << 50}}
			for i := range 7 {
				g.capacityIsFull(now)
				if d := g.Admit(now, r); d.Admit != (i < c.tokens) {
					t.Fatalf("request %d: %v; want %d admitted", i, d.Reason, c.tokens)
				} else if !d.Admit {
					if d.Wait > 10*time.Second {
						t.Errorf("it waits %v, more than before", d.Wait)
					}
					break
				}
			}
		})
	}
}

// capacityIsFull gives back what the test has used.
func (g *Guard) capacityIsFull(now time.Duration) {
	for range 2 {
		c, _ := g.backend.capacity.Claim(g.capacity, now, -1)
		c.Commit()
		c.Release()
	}
}

// What a zone or a backend was promised goes to the Guard of that name, once: a second that shares it takes nothing, and others neither.
func TestSavedStateGoesByName(t *testing.T) {
	g := mustNew(t, savedConfig, nil)
	for key := range limiter.Key(9) {
		g.Admit(time.Second, Request{Keys: []limiter.Key{1 + key}, Client: 1 + key})
	}
	var b bytes.Buffer
	if err := Save(&b, time.Second, wall0, nil, g); err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer
	if err := Save(&again, time.Second, wall0, nil, g, mustNew(t, savedConfig, &State{Zones: map[string]*ZoneState{"z": g.zones[0].ZoneState}, Backend: g.backend})); err != nil || again.Len() > b.Len() {
		t.Errorf("%v: two Guards on one State take %d bytes, and one %d", err, again.Len(), b.Len())
	}
	is, err := ReadSaved(&b)
	if err != nil {
		t.Fatal(err)
	}
	other := savedConfig
	other.Zones, other.Retries.Issuer = []Zone{{Name: "y", Limit: other.Zones[0].Limit}}, "bar"
	foreign := savedConfig
	foreign.Secret = []byte("0123456789abcdeX")
	none := foreign
	none.Secret = nil
	savedConfig := savedConfig
	savedConfig.Retries.MaxClients = 2048
	for i, c := range []Config{other, foreign, none, savedConfig, savedConfig} {
		g := mustNew(t, c, nil)
		err := is.Load(g, 0, wall0)
		s, keys := g.Backend().Stats(0), 0
		for _, z := range g.ZoneStats(0) {
			keys += z.Keys
		}
		if want := i == 3; (s.Waiting > 0) != want || (keys > 0) != want || (err != nil) != (i == 1 || i == 2) {
			t.Errorf("config %d: %v, %d clients wait, %d keys", i, err, s.Waiting, keys)
		} else if want && s.MaxClients != 2048 {
			t.Errorf("%d clients can be remembered, want 2048", s.MaxClients)
		}
	}
}

// Whatever happens to the bytes, it is told, or they still say the same. A newer version is told apart from damage, and what a
// newer program adds to this one is skipped.
func TestSavedStateDamaged(t *testing.T) {
	data := saved1(t, savedConfig)
	good, err := ReadSaved(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for n := range data {
		if _, err := ReadSaved(bytes.NewReader(data[:n])); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Fatalf("%d of %d bytes: %v", n, len(data), err)
		}
	}
	if _, err := ReadSaved(bytes.NewReader(append(bytes.Clone(data), 0))); err == nil {
		t.Error("a byte more is not told")
	}
	for i := range data {
		for bit := range 8 {
			bad := bytes.Clone(data)
			bad[i] ^= 1 << bit
			if is, err := ReadSaved(bytes.NewReader(bad)); err == nil && !reflect.DeepEqual(is, good) { // gzip has a time in its head, which nothing reads
				t.Fatalf("bit %d of byte %d: it is read as something else", bit, i)
			}
		}
	}
	encode := func(values ...any) io.Reader {
		var b bytes.Buffer
		zip := gzip.NewWriter(&b)
		to := gob.NewEncoder(zip)
		for _, v := range values {
			if err := to.Encode(v); err != nil {
				t.Fatal(err)
			}
		}
		if err := zip.Close(); err != nil {
			t.Fatal(err)
		}
		return &b
	}
	for _, c := range []struct {
		values []any
		want   string
	}{
		{[]any{saved{Version: 2}, struct{ Other int }{7}}, "its version is 2; this build reads version 1"},
		{[]any{saved{Version: 1}, "text"}, "damaged"},
		{nil, "damaged"},
	} {
		if _, err := ReadSaved(encode(c.values...)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v; want %q", c.values, err, c.want)
		}
	}
	type newer struct { // a saved part of later, under its name
		Zone  string
		Later map[string]float64
	}
	if is, err := ReadSaved(encode(saved{Version: 1}, newer{"z", map[string]float64{"a": 1}})); err != nil || is.Load(mustNew(t, savedConfig, nil), 0, wall0) != nil {
		t.Errorf("a new field: %v", err)
	}
}

// While a state is written, here of 100,000 clients of which half are to come again, requests are decided, and what is written can be read.
func TestSaveWhileDeciding(t *testing.T) {
	c := savedConfig
	c.Zones = []Zone{{Name: "z", Limit: limiter.Config{Rate: 2, Per: time.Minute, Burst: 1}}, {Name: "admitted", Limit: limiter.Config{Rate: 1e6, Burst: 1000}}}
	c.Capacity = limiter.Config{Rate: 1e6}
	g, rng := mustNew(t, c, nil), rand.New(rand.NewPCG(1, 2))
	keys := make([]limiter.Key, 100_000)
	for i := range keys {
		keys[i] = limiter.Key(rng.Uint64())
		for range 1 + i%2 {
			g.Admit(time.Second, Request{Keys: []limiter.Key{keys[i], NoKey}, Client: keys[i]})
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i, key := range keys[:20_000] {
			d := g.Admit(2*time.Second+time.Duration(i)*time.Microsecond, Request{Keys: []limiter.Key{NoKey, key}, Client: key})
			d.Done(2*time.Second, Served)
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		var b bytes.Buffer
		if err := Save(&b, 2*time.Second, wall0, nil, g); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadSaved(&b); err != nil {
			t.Fatal(err)
		}
	}
}

// A restart keeps the debt of a key, what its zone has learned, and what is used of a day.
func TestSavedBudgets(t *testing.T) {
	const before = 3 * time.Hour
	in := newYear(t, before)
	z := tokensZone(t, Zone{AutoCost: true})
	z.Limit = limiter.Config{Rate: 100, Per: time.Minute}
	config := Config{
		Zones:  []Zone{z, {Name: "day", Limit: limiter.Config{Rate: 5, Per: 24 * time.Hour}, Calendar: &Calendar{In: in}}},
		Secret: []byte("0123456789abcdef"),
	}
	g := mustNew(t, config, nil)
	q := Request{Keys: []limiter.Key{1, 1}, Client: 1}
	for _, cost := range []float64{40, 700} { // the second is far above what was learned
		d := g.Admit(0, q)
		if !d.Admit {
			t.Fatal(d.Reason)
		}
		g.finish(0, &d, cost)
	}
	var b bytes.Buffer
	if err := Save(&b, time.Second, At(time.Second), []byte("s"), g); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		after       time.Duration
		tokens, day int
	}{
		{time.Second, -640, 3},
		{time.Minute + time.Second, -540, 3},
		{before + time.Second, 100, 5}, // at midnight, in which the tokens have been earned, too
	} {
		is, err := ReadSaved(bytes.NewReader(b.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		next := mustNew(t, config, nil)
		if err := is.Load(next, c.after, At(c.after)); err != nil {
			t.Fatal(err)
		}
		e := next.Explain(c.after, q)
		if got := e.Zones[0].Tokens; got < c.tokens-1 || got > c.tokens+2 || e.Zones[0].Cost != 100 {
			t.Errorf("after %v %d tokens are left, and a request takes %d; want %d, and 100 of the 700 of the one before", c.after, got, e.Zones[0].Cost, c.tokens)
		}
		if got := e.Zones[1].Tokens; got != c.day {
			t.Errorf("after %v %d of the day's quota are left; want %d", c.after, got, c.day)
		}
	}
}
