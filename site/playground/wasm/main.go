//go:build js

// Command wasm is package playground for browsers. It defines
//
//	shieldPlay(clients, capacity, obey, retryAfter)
//
// which returns what an Outcome has, or an Error.
package main

import (
	"syscall/js"

	"github.com/herdshield/shield/site/playground"
)

func main() {
	js.Global().Set("shieldPlay", js.FuncOf(func(_ js.Value, args []js.Value) any {
		o, err := playground.Play(playground.Controls{
			Clients: args[0].Int(), Capacity: args[1].Float(), Obey: args[2].Float(), RetryAfter: args[3].String(),
		})
		if err != nil {
			return js.Global().Get("Error").New(err.Error())
		}
		return map[string]any{
			"served": o.Served, "gaveUp": o.GaveUp, "until": o.Until, "perClient": o.PerClient,
			"step": o.Step, "arrived": list(o.Arrived), "done": list(o.Done),
		}
	}))
	select {}
}

func list(values []int32) []any {
	out := make([]any, len(values))
	for i, v := range values {
		out[i] = v
	}
	return out
}
