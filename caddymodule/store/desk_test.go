package store

import (
	"testing"
	"time"

	"github.com/herdshield/shield/share/redis"
)

// During a reload the first config is served until the second has lasted, and the second at once when the first is
// stopped. One that fails to start interrupts nothing.
func TestDeskServesOneConfig(t *testing.T) {
	var desk Desk
	asked := ""
	configs := map[string]*Config{}
	start := func(name string) func(now time.Duration) {
		return func(now time.Duration) {
			duties := func(time.Duration) map[Duty]bool { asked = name; return nil }
			var err error
			if configs[name], err = desk.Open(&Settings{Options: redis.Options{Addresses: []string{"127.0.0.1:1"}}}, func() time.Duration { return now }, duties); err != nil {
				t.Fatal(err)
			}
			desk.Tend(now)
		}
	}
	leave := func(name string) func(now time.Duration) {
		return func(now time.Duration) { desk.Leave(configs[name], now) }
	}
	for i, step := range []struct {
		do   func(now time.Duration)
		now  time.Duration
		want string
	}{
		{start("first"), 0, "first"},
		{start("failed"), 10 * time.Second, "first"},
		{leave("failed"), 10 * time.Second, "first"},
		{desk.Tend, 15 * time.Second, "first"}, // late, after its end
		{leave("failed"), 15 * time.Second, ""},
		{start("second"), 20 * time.Second, "first"},
		{desk.Tend, 20*time.Second + Lasting, "second"},
		{leave("first"), 22 * time.Second, "second"},
	} {
		asked = ""
		if step.do(step.now); asked != step.want {
			t.Errorf("step %d: %q is served, want %q", i, asked, step.want)
		}
	}
}
