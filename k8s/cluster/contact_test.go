package cluster

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestContact: an outage of the API server is logged once, and its end once, whatever the
// number of tries. At the start it is logged at once.
func TestContact(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	c := &contact{log: zap.New(core)}
	client := logger(c.log, c.down)
	rejected := errors.New("connection refused")
	logged := func(want ...string) {
		t.Helper()
		var got []string
		for _, e := range logs.TakeAll() {
			got = append(got, e.Message)
		}
		if len(got) != len(want) {
			t.Fatalf("logged %q, want %q", got, want)
		}
		for i := range want {
			if !strings.Contains(got[i], want[i]) {
				t.Errorf("logged %q, want %q", got[i], want[i])
			}
		}
	}
	second := time.Second
	c.failed(1*second, rejected)
	logged("does not answer")
	for i := range 100 {
		c.failed(time.Duration(2+i)*second, rejected)
		client.Error(rejected, "Failed to watch")
	}
	logged()
	c.answered(102*second, 103*second)
	c.answered(103*second, 104*second)
	client.Error(rejected, "Failed to watch")
	logged("answers again", "Failed to watch")

	c.failed(110*second, rejected) // a connection broke
	c.answered(110*second, 111*second)
	c.failed(112*second, rejected)
	c.failed(116*second, rejected)
	logged()
	c.failed(117*second, rejected)
	c.failed(118*second, rejected)
	logged("does not answer")
	c.answered(120*second, 121*second)
	if got, want := time.Duration(c.last.Load()), 120*second; got != want {
		t.Errorf("the last contact was at %v, want %v", got, want)
	}
	logged("answers again")
}
