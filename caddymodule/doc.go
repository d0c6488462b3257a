// Package caddymodule is shield as a Caddy plugin: the handler
// http.handlers.shield, the app shield, and the admin endpoint /shield/.
//
//	handler.go    a request's way through
//	class.go      which class a request is of
//	outcome.go    what has become of an admitted request
//	refuse.go     how a refusal is answered
//	annotate.go   what handlers and logs learn of a decision
//	config.go     the JSON configuration and its one check
//	caddyfile.go  the Caddyfile syntax
//	key.go        key templates
//	app.go        what the handlers of one config share
//	pool.go       the state that outlives configs
//	report.go     log lines and events, once a second
//	metrics.go    metrics, read at scrape
//	admin.go      the admin endpoint
package caddymodule
