package caddymodule

import (
	"cmp"
	"encoding/json"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
)

// responders are Caddy's handlers that answer requests and pass none on.
var responders = map[string]bool{"reverse_proxy": true, "static_response": true, "error": true, "file_server": true}

// warnOfUnreached warns of the shields in a server's routes that no request reaches, because
// another handler answers all of them first: in a route { } of a Caddyfile handlers run in the
// order in which they are written. Caddy drops the JSON of each route of the server when all
// handlers in it are provisioned, so the first that still has it is the one that h is in.
func (a *App) warnOfUnreached(server *caddyhttp.Server) {
	if server == nil {
		return
	}
	for i, route := range server.Routes {
		if len(route.HandlersRaw) == 0 {
			continue
		}
		if is := &server.Routes[i]; !a.looked[is] {
			a.looked[is] = true
			var w unreached
			w.handlers(route.HandlersRaw)
			for _, found := range w.found {
				a.logger.Warn("a shield limits nothing, because a handler before it answers all requests; want the shield before that handler",
					zap.String("server", server.Name()), zap.String("shield", cmp.Or(found.name, server.Name())), zap.String("handler", found.after))
			}
		}
		return
	}
}

// unreached finds the shields that no request reaches.
type unreached struct {
	found []struct{ name, after string }
	after string // the handler that answers all requests; "": none so far
}

// handlers looks at handlers in their order. Afterwards w.after tells whether one of them answers.
func (w *unreached) handlers(raw []json.RawMessage) {
	for _, one := range raw {
		var h struct {
			Handler  string          `json:"handler"`
			Name     string          `json:"name"`
			PassThru bool            `json:"pass_thru"`
			Routes   json.RawMessage `json:"routes"`
		}
		_ = json.Unmarshal(one, &h) // what has another type is no handler of these
		switch {
		case h.Handler == "shield" && w.after != "":
			w.found = append(w.found, struct{ name, after string }{h.Name, w.after})
		case h.Handler == "subroute":
			var routes []struct {
				Group  string            `json:"group"`
				Match  []json.RawMessage `json:"match"`
				Handle []json.RawMessage `json:"handle"`
			}
			_ = json.Unmarshal(h.Routes, &routes)
			for _, r := range routes {
				before := w.after
				if w.handlers(r.Handle); len(r.Match) > 0 || r.Group != "" {
					w.after = before // there may be requests that go on
				}
			}
		case w.after == "" && responders[h.Handler] && !h.PassThru:
			w.after = h.Handler
		}
	}
}
