package caddymodule

import (
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
)

// handlerClass decides whether a request belongs to a class.
type handlerClass struct {
	class    uint8 // for shield.Request
	matchers caddyhttp.MatcherSets
}

// provisionClasses loads matchers. It needs the guard.
func (h *Handler) provisionClasses(ctx caddy.Context) error {
	for _, c := range h.Classes {
		if len(c.MatcherSetsRaw) == 0 {
			continue // it has only requests that name it in X-Shield-Class
		}
		i, _ := h.guard().Plan().ClassNamed(c.Name)
		matchers, err := loadMatchers(ctx, c)
		if err != nil {
			return fmt.Errorf("class %q: match: %w", c.Name, err)
		}
		h.classes = append(h.classes, handlerClass{uint8(1 + i), matchers})
	}
	return nil
}

// classify sets the class of r: the one that a trusted proxy names, or the first that matches.
// It deletes the header of other senders, which a shield behind this one would trust.
func (h *Handler) classify(r *http.Request, g *shield.Guard, q *shield.Request) error {
	if said := r.Header["X-Shield-Class"]; len(said) > 0 {
		if trusted, _ := caddyhttp.GetVar(r.Context(), caddyhttp.TrustedProxyVarKey).(bool); !trusted {
			delete(r.Header, "X-Shield-Class")
		} else if g.Classify(q, said[0]); q.Class != 0 {
			return nil
		}
	}
	for _, c := range h.classes {
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
