package caddymodule

import (
	"slices"
	"testing"
	"time"
)

// A fakeSharer is what an app shares: a unit, in a fakeStore.
type fakeSharer struct{ of duty }

func (f fakeSharer) duty(*App, time.Duration) (duty, bool) { return f.of, true }

type fakeStore struct{ log []string }

func (f *fakeStore) serve(d duty) func() {
	f.log = append(f.log, "+"+d.unit)
	return func() { f.log = append(f.log, "-"+d.unit) }
}

// During a reload one app serves, without a gap: the first until the second has lasted, or
// until it is stopped; and a second that shares the same interrupts nothing.
func TestOneAppServes(t *testing.T) {
	var p post
	var store fakeStore
	old, failing, same, other := new(App), new(App), new(App), new(App)
	tend := func(a *App, unit string) { p.tend(0, a, fakeSharer{duty{store: &store, unit: unit}}) }
	step := func(what string, want ...string) {
		t.Helper()
		if !slices.Equal(store.log, want) {
			t.Errorf("%s: %v, want %v", what, store.log, want)
		}
		store.log = nil
	}
	tend(old, "a")
	tend(old, "a")
	step("the first app is started, and reports", "+a")
	tend(failing, "b")
	p.leave(0, failing)
	tend(old, "a")
	step("a config fails to load")
	tend(same, "a")
	p.leave(0, old)
	step("a config that shares the same is loaded")
	tend(other, "b")
	tend(same, "a")
	step("another one is started")
	tend(other, "b")
	step("it has lasted until its first report", "-a", "+b")
	tend(same, "a")
	p.leave(0, same)
	step("the one before reports, and is stopped")
	tend(old, "c")
	p.leave(0, other)
	step("an app is stopped before the next has reported", "-b", "+c")
	p.leave(0, old)
	step("the last is stopped", "-c")
}
