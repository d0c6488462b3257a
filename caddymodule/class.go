package caddymodule

import (
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
)

// handlerClass decides whether a request belongs to a class.
type handlerClass struct {
	class    uint8 // for shield.Request
	matchers caddyhttp.MatcherSets
	clients  float64     // the random share of clients; 0: all
	salt     limiter.Key // makes the draw independent of those of other classes
}

// provisionClasses loads matchers. It needs the guard.
func (h *Handler) provisionClasses(ctx caddy.Context) error {
	known := h.guard().Plan().Classes()
	for _, c := range h.Classes {
		if len(c.MatcherSetsRaw) == 0 && c.Clients == nil {
			continue // it has only requests that name it in X-Shield-Class
		}
		i, _ := known.Index(c.Name)
		hc := handlerClass{class: uint8(1 + i), salt: h.guard().Hasher().KeyOf("class " + c.Name)}
		if c.Clients != nil {
			hc.clients = *c.Clients
		}
		var err error
		if hc.matchers, err = loadMatchers(ctx, c); err != nil {
			return fmt.Errorf("class %q: match: %w", c.Name, err)
		}
		h.classes = append(h.classes, hc)
	}
	return nil
}

// classify sets the class of r: the one that a trusted proxy names, or the first that matches.
// It deletes the header of other senders, which a shield behind this one would trust.
func (h *Handler) classify(r *http.Request, g *shield.Guard, q *shield.Request, now time.Duration) error {
	if said := r.Header["X-Shield-Class"]; len(said) > 0 {
		if trusted, _ := caddyhttp.GetVar(r.Context(), caddyhttp.TrustedProxyVarKey).(bool); !trusted {
			delete(r.Header, "X-Shield-Class")
		} else if g.Classify(q, said[0]); q.Class != 0 {
			return nil
		}
	}
	for i := range h.classes {
		c := &h.classes[i]
		if c.clients > 0 && (q.Client == shield.NoKey || !loadshed.Drawn(uint64(q.Client^c.salt), now, c.clients)) {
			continue
		}
		matched, err := c.matchers.AnyMatchWithError(r)
		if err != nil {
			return err
		}
		if matched {
			q.Class = c.class
			return nil
		}
	}
	q.Class = h.class
	return nil
}
