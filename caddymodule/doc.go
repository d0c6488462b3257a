// Package caddymodule is shield as a Caddy plugin: the handler http.handlers.shield, the
// app shield, and the admin endpoint /shield/.
//
//	handler.go    how a request goes through
//	budget.go     what requests cost and weigh, and what they say of it themselves
//	class.go      the class of a request
//	reject.go     how a rejection is answered, what handlers and logs learn of a decision, and what the listener wrapper knows of a handler
//	outcome.go    how an admitted request has ended, by itself or by a time-out, and how long requests took
//	app.go        what the handlers of one config share, and its life
//	live.go       shields that are set up while the server runs
//	report.go     what is new of overloads, pauses and herds, as log lines and events, and what a history is fed, once a second
//	situation.go  what there is to say of a shield
//	load.go       what others learn of the load: matchers, placeholders, and the backend by a header
//	metrics.go    the table of metrics, read at scrape, and which shield this is
//	overrides.go  changes by operators that last for a while, and what handlers make of them; what they can change, as they write it
//	explain.go    what the limits say of one client
//	store.go      the store that replicas share, also as a URL, and what they share in it
//	keeper.go     the file in which state outlives the process
//	lock_unix.go  its lock
//	lock_other.go that of other systems
//	caddyfile.go  the Caddyfile syntax, the forms of limits, and the lines of errors
//	options.go    how blocks set what has the same name in JSON, and the matchers of zones and classes
//	config.go     the configuration in JSON
//	check.go      its check, and what it is in the terms of package shield
//	who.go        the clients: those that are rejected most, and what operators call one
//	key.go        key templates, the keys that a request has by them, and a warning where clients can choose their address
//	json.go       what placeholders say of the JSON in a request's body
//	state.go      what handlers work with: the limits in force, and the state that outlives configs
//	door/         the listener wrapper, which rejects again what a handler has rejected
//	upload/       request bodies: read before a permit is asked for, looked at before a decision, and read at a pace
//	matchers/     the matchers shield_overloaded and speculative
//	operate/      the admin endpoint, and the page for a person on call
//	store/        the connection to the store
//
// A file mostly calls those below it.
package caddymodule
