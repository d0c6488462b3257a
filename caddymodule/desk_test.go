package caddymodule

import (
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/share/redis"
)

// During a reload the first app is served until the second has lasted, and the second at once when the first is
// stopped. One that fails to start interrupts nothing.
func TestDeskServesOneApp(t *testing.T) {
	d := desk{duties: map[duty]func(){}}
	apps := map[string]*App{}
	start := func(name string) func(now time.Duration) {
		return func(now time.Duration) {
			a := &App{store: &storeConfig{Options: redis.Options{Addresses: []string{"127.0.0.1:1"}}}}
			a.configured = []*Handler{newLive(t, Live{Name: name, State: new(LiveState), Config: shield.Config{
				Capacity: limiter.Config{Rate: 1}, Shared: true, Secret: []byte(storeSecret), Replicas: 2,
			}})}
			if err := d.open(a, now); err != nil {
				t.Fatal(err)
			}
			apps[name] = a
			d.tend(now)
		}
	}
	leave := func(name string) func(now time.Duration) {
		return func(now time.Duration) { d.leave(apps[name], now) }
	}
	for i, step := range []struct {
		do   func(now time.Duration)
		now  time.Duration
		want string
	}{
		{start("first"), 0, "first"},
		{start("failed"), 10 * time.Second, "first"},
		{leave("failed"), 10 * time.Second, "first"},
		{d.tend, 15 * time.Second, "first"}, // late, after its end
		{leave("failed"), 15 * time.Second, "first"},
		{start("second"), 20 * time.Second, "first"},
		{d.tend, 20*time.Second + lasting, "second"},
		{leave("first"), 22 * time.Second, "second"},
		{leave("second"), 23 * time.Second, ""},
	} {
		step.do(step.now)
		served := ""
		for is := range d.duties {
			served += is.name
		}
		if served != step.want {
			t.Errorf("step %d: %q is served, want %q", i, served, step.want)
		}
	}
}
