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

// What clients owed is earned while the process is down, a quota of a day is whole at midnight, and a restart keeps debts. If the clock was set back, clients wait no longer than they had to before; if it was set forward, they have a full
// burst and no more.
func TestSavedStateByTheClock(t *testing.T) {
	const midnight = 3 * time.Hour
	day := Zone{Name: "day", Limit: limiter.Config{Rate: 10, Per: 24 * time.Hour}, Calendar: &Calendar{In: newYear(t, midnight)}}
	budget, config := tokensZone(t, Zone{AutoCost: true}), savedConfig
	budget.Limit = limiter.Config{Rate: 100, Per: time.Minute}
	config.Zones = []Zone{savedConfig.Zones[0], budget, day}
	g, r, now := mustNew(t, config, nil), Request{Keys: []limiter.Key{7 << 50, 7 << 50, 7 << 50}}, 12*time.Second
	for i, cost := range []float64{8, 8, 8, 8, 8, 700} { // the last is far above what was learned
		at := now - time.Duration(6-i)*time.Second
		d := g.Admit(at, r)
		if !d.Admit {
			t.Fatalf("request %d: %v", i, d.Reason)
		}
		g.finish(at, &d, cost)
	}
	var b bytes.Buffer
	if err := Save(&b, now, At(now), []byte("s"), g, g); err != nil {
		t.Fatal(err)
	}
	closed, broken := io.Pipe()
	_ = closed.Close()
	if err := Save(broken, now, At(now), nil, g); err != io.ErrClosedPipe {
		t.Errorf("a write that fails is told as %v", err)
	}
	for _, c := range []struct {
		name                string
		restarted           time.Duration // by the clock, after it was saved
		tokens, budget, day int
	}{
		{"at once", 0, 0, -630, 4}, // it had earned half of one, in 5 s
		{"after 10 s", 10 * time.Second, 1, -613, 4},
		{"after 33 s", 33 * time.Second, 3, -575, 4},
		{"just before midnight", midnight - 13*time.Second, 6, 100, 4},
		{"after midnight", midnight - 12*time.Second + ms, 6, 100, 10},
		{"after a day", 24 * time.Hour, 6, 100, 10},
		{"with a clock set back by a year", -365 * 24 * time.Hour, 0, -630, 4},
		{"with a clock set forward by 200 years", 200 * 365 * 24 * time.Hour, 6, 100, 10},
	} {
		is, err := ReadSaved(bytes.NewReader(b.Bytes()))
		if err != nil || string(is.Secret) != "s" {
			t.Fatalf("%v: %+v", err, is)
		}
		now := 300 * time.Millisecond // the new process
		clock = func() time.Time { return is.At.Add(c.restarted + Now() - now) }
		g := mustNew(t, config, nil)
		if err := is.Load(g, now, is.At.Add(c.restarted)); err != nil {
			t.Fatal(err)
		}
		z := g.Explain(now, r).Zones
		if z[0].Tokens != c.tokens || z[0].Wait > 10*time.Second || z[1].Tokens < c.budget-2 || z[1].Tokens > c.budget+2 || z[2].Tokens != c.day {
			t.Errorf("%s: %d, %d and %d tokens are left, want %d, %d and %d; it waits %v for the first",
				c.name, z[0].Tokens, z[1].Tokens, z[2].Tokens, c.tokens, c.budget, c.day, z[0].Wait)
		}
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
