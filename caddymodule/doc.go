// Package caddymodule is shield as a Caddy plugin: the handler http.handlers.shield, the
// app shield, and the admin endpoint /shield/.
//
//	handler.go    the way of a request through the handler
//	budget.go     what requests cost and weigh, and what they state themselves
//	class.go      the class of a request
//	reject.go     rejections, and what handlers, logs and the listener wrapper learn of a decision
//	outcome.go    how an admitted request ended, including timeouts, and how long it took
//	app.go        what the handlers of one config share, and its lifecycle
//	live.go       shields set up while the server runs
//	report.go     overloads, pauses and herds as log lines and events, and the history, once a second
//	situation.go  the current situation of a shield
//	load.go       who else learns of the load: placeholders, and the matcher shield_overloaded
//	metrics.go    the table of metrics, read at scrape, and the version of the build
//	overrides.go  temporary blocks and changes, and what they do to handlers
//	explain.go    how the limits see one client
//	store.go      the store that replicas share, also as a URL, and what they share in it
//	keeper.go     the file that keeps state across restarts
//	caddyfile.go  the Caddyfile syntax of limits, and the lines of errors
//	options.go    how blocks set fields named like in JSON, and the matchers of zones and classes
//	config.go     the configuration in JSON
//	check.go      its check, and its translation to package shield
//	who.go        the clients: those rejected most, and how to look one up
//	key.go        key templates, the keys of a request, and a warning if clients can choose their address
//	json.go       placeholders for the JSON in a request's body
//	state.go      what handlers work with: the active limits, and the state that outlives configs
//	door/         the listener wrapper, which rejects repeated requests cheaply
//	upload/       request bodies: reading them before taking a permit, peeking into them, and pacing them
//	operate/      the admin endpoint and the live page
//	store/        the connection to the store
//
// A file mostly calls those below it.
package caddymodule
