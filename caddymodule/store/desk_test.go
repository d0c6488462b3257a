package store

import (
	"testing"
	"time"
)

// During a reload the first config is served until the second has lasted, and the second at once when the first is
// stopped. One that fails to start interrupts nothing.
func TestDeskServesOneConfig(t *testing.T) {
	var desk Desk
	asked := ""
	config := func(name string, started time.Duration) *Config {
		return &Config{Started: started, Duties: func(time.Duration) map[Duty]bool { asked = name; return nil }, release: func() {}}
	}
	first, failed, second := config("first", 0), config("failed", 10*time.Second), config("second", 20*time.Second)
	for i, step := range []struct {
		do   func(now time.Duration)
		now  time.Duration
		want string
	}{
		{func(now time.Duration) { desk.Tend(first, now) }, 0, "first"},
		{func(now time.Duration) { desk.Tend(failed, now) }, 10 * time.Second, "first"},
		{func(now time.Duration) { desk.Leave(failed, now) }, 10 * time.Second, "first"},
		{func(now time.Duration) { desk.Tend(failed, now) }, 15 * time.Second, ""}, // late, after its end
		{func(now time.Duration) { desk.Tend(second, now) }, 20 * time.Second, "first"},
		{func(now time.Duration) { desk.Tend(first, now) }, 20*time.Second + Lasting, "second"},
		{func(now time.Duration) { desk.Leave(first, now) }, 22 * time.Second, "second"},
	} {
		asked = ""
		if step.do(step.now); asked != step.want {
			t.Errorf("step %d: %q is served, want %q", i, asked, step.want)
		}
	}
}
