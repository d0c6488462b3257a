// Package oncall holds what a person on call wants to see of a shield: who is rejected, what
// happened in the last ten minutes, what happens now in one sentence, and a page that shows
// them. It is bounded, and counts at the cost of a request. It knows neither HTTP nor Caddy
// nor clocks: callers tell it what happens, and when. Whatever is shown of a shield is a Situation.
package oncall
