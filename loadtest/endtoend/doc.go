// Package endtoend measures what Caddy pays per request for shield, from the
// server's entry to its answer, beside Caddy alone, a static 429, and
// github.com/mholt/caddy-ratelimit.
//
// It is a module of its own, so that caddy-ratelimit is required here and
// nowhere else. Everything is in the tests; README.md says how to run them.
package endtoend
