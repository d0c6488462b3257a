// Package endtoend measures what Caddy pays per request for shield, from the
// server's entry to its answer, beside Caddy alone, a static 429, and
// github.com/mholt/caddy-ratelimit.
//
// Everything is in the tests; README.md says how to run them.
package endtoend
