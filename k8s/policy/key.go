package policy

import (
	"errors"
	"fmt"

	"github.com/herdshield/shield/caddymodule/clientkey"
)

// maxKey bounds a key's template, in bytes. Ours.
const maxKey = 256

// checkKey returns an error unless template tells clients apart. It may have the
// placeholders of a zone's key in the Caddyfile that say something of the request. Others
// would let any author of an Ingress read the controller's environment, or are always
// empty.
func checkKey(template string) error {
	if template == "" {
		return errors.New("it is empty; use a placeholder like {http.request.header.X-Api-Key}, or remove the annotation to use the client's address")
	}
	if len(template) > maxKey {
		return fmt.Errorf("it has %d bytes; use at most %d", len(template), maxKey)
	}
	parts, err := clientkey.Parse(template)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if p.IsPlaceholder && !clientkey.OfRequest(p.Text) {
			return fmt.Errorf("placeholder {%s} is not allowed in a key; use {http.vars.client_ip}, or one of Caddy's {http.request.*} that stays the same from request to request", clip(p.Text))
		}
	}
	return nil
}
