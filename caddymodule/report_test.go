package caddymodule

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// A subscriber that waits for the reload that stops the app must not hang it.
func TestStopDoesNotWaitForSubscribers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := caddy.NewContext(caddy.Context{Context: t.Context()})
		a := &App{ctx: ctx, stop: make(chan struct{}), stopped: make(chan struct{})} // its reporter never ends
		start := time.Now()
		if err := a.Stop(); err != nil || time.Since(start) != time.Second {
			t.Errorf("Stop took %v, error %v; want %v", time.Since(start), err, time.Second)
		}
		// Caddy may drop a config that it has started without stopping it.
		b := &App{ctx: ctx}
		if err := b.Start(); err != nil {
			t.Fatal(err)
		}
		cancel()
		_ = b.Cleanup()
		<-b.stopped
	})
}
