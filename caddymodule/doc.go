// Package caddymodule is shield as a Caddy plugin: the handler http.handlers.shield, the
// app shield, and the admin endpoint /shield/.
//
//	handler.go    how a request goes through
//	class.go      the class of a request
//	key.go        key templates
//	trust.go      a warning where clients can choose their address
//	outcome.go    how an admitted request has ended
//	duration.go   how long requests took
//	timeout.go    how one that is late is ended
//	refuse.go     how a refusal is answered
//	door.go       the listener wrapper that refuses again
//	doorgreet.go  what it does with new connections of refused addresses
//	doorconn.go   one of its connections
//	doorread.go   how it reads, also while a handler runs
//	doorpass.go   what it and handlers tell each other
//	doorh2.go     one of its connections with HTTP/2
//	doorh2visit.go  what that and handlers tell each other
//	doorh2write.go  answers between the frames of its server
//	hpack.go      header blocks
//	memo.go       the requests that it remembers
//	page.go       the answers that it remembers
//	rule.go       what it remembers of clients whose requests all differ
//	strict.go     how it reads their requests
//	annotate.go   what handlers and logs learn of a decision
//	config.go     the configuration in JSON
//	check.go      its check, and what it is in the terms of package shield
//	caddyfile.go  the Caddyfile syntax, and the forms of limits
//	matchers.go   the matchers of zones and classes
//	options.go    how blocks set what has the same name in JSON
//	app.go        what the handlers of one config share
//	live.go       shields that are set up while the server runs
//	pool.go       the state that outlives configs
//	store.go      the store that replicas share, and what they share in it
//	storeurl.go   the store in one line
//	storage.go    the connection to the store
//	post.go       one app at a time serves what is shared
//	unit.go       what must be defined alike
//	report.go     log lines and events, once a second
//	changes.go    what is new of overloads, pauses and herds, and what has been reported
//	metrics.go    the table of metrics, read at scrape
//	build.go      which shield this is
//	logformat.go  the log format shield
//	lines.go      checks a Caddyfile while it has lines, so that errors name them
//	unreached.go  a warning of shields that no request reaches
//	sizes.go      a warning where bursts are small for so many replicas
//	trips.go      metrics and status of the store
//	admin.go      the admin endpoint
//	pageserver.go  an address of its own for that, where browsers are let in
//	upload/       request bodies: read before a permit is asked for, and at a pace
//	sharedadmin.go  that no other process listens there
//	clientname.go  what operators call clients there
//	explain.go    what the limits say of a client
//	change.go     changes by operators: which requests may make them, and forgiveness
//	overrides.go  those that last for a while
//	overridden.go  what handlers make of them
//	who.go        the clients that are refused most, counted and told
//	history.go    what a history of a shield is fed, once a second
//	watch.go      the page for a person on call, and what it follows
package caddymodule
