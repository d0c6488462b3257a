// Package oncall holds what a person on call wants to see of a shield: who is refused, and
// what happened before. It is bounded, and counts at the cost of a request. It knows neither
// HTTP nor Caddy nor clocks: callers tell it what happens, and when.
package oncall
