// Package caddymodule is shield as a Caddy plugin: the handler http.handlers.shield, the
// app shield, and the admin endpoint /shield/.
//
//	handler.go    how a request goes through
//	class.go      the class of a request
//	key.go        key templates, and a warning where clients can choose their address
//	outcome.go    how an admitted request has ended, by itself or by a time-out, and how long requests took
//	reject.go     how a rejection is answered, what handlers and logs learn of a decision, and what the listener wrapper knows of a handler
//	door/         the listener wrapper, which rejects again what a handler has rejected
//	config.go     the configuration in JSON
//	check.go      its check, and what it is in the terms of package shield
//	caddyfile.go  the Caddyfile syntax, the forms of limits, and the lines of errors
//	options.go    how blocks set what has the same name in JSON, and the matchers of zones and classes
//	app.go        what the handlers of one config share, and the state that outlives configs
//	live.go       shields that are set up while the server runs
//	store.go      the store that replicas share, also as a URL, and what they share in it
//	report.go     what is new of overloads, pauses and herds, as log lines and events, and what a history is fed, once a second
//	metrics.go    the table of metrics, read at scrape, and which shield this is
//	store/        the connection to it
//	upload/       request bodies: read before a permit is asked for, and at a pace
//	overrides.go  changes by operators that last for a while, and what handlers make of them; what they can change, as they write it
//	who.go        the clients: those that are rejected most, and what operators call one
//	explain.go    what the limits say of one client
//	situation.go  what there is to say of a shield
//	operate/      the admin endpoint, and the page for a person on call
package caddymodule
