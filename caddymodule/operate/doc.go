// Package operate is the admin endpoint /shield/ of a running config: what operators are shown, in JSON and
// on a page for browsers, and which requests may change something for a while.
//
// It does not know what a shield is, or how it is changed: that is what the Shields of the config say. It is
// no API for applications, which have Caddy's.
//
//	admin.go        the routes, and what each asks the Shields for
//	change.go       which requests may make a change, and what they say
//	live.go         the page, and what it follows second by second
//	pageserver.go   an address of its own for all that, where browsers are let in
//	sharedadmin.go  that no other process listens at the endpoint
//
// For example, the app of a config, which is Shields, serves the page like so:
//
//	page, err := operate.ServePage("localhost:2020", registry, logger)
//	…
//	defer page.Close()
//	operate.Announce(second) // once in each, so that pages that are open have it
package operate
