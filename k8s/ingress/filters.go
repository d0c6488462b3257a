package ingress

import "net/http"

// filter changes a request for the backend, as the filters of its target ask. The limits have
// seen what the client sent.
func (t *trip) filter(r *http.Request) {
	if t.url != nil {
		r.URL = t.url
	}
}
