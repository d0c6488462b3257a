package caddymodule

import (
	"testing"
	"testing/synctest"

	"github.com/caddyserver/caddy/v2"
)

// Caddy may drop a config that it has started without stopping it.
func TestReportsOfDroppedConfigEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := caddy.NewContext(caddy.Context{Context: t.Context()})
		a := &App{ctx: ctx}
		if err := a.Start(); err != nil {
			t.Fatal(err)
		}
		cancel()
		_ = a.Cleanup()
		<-a.stopped
	})
}
