package dialect

import (
	"net/http"
	"slices"
)

// Exposed are the headers of a rejection, none of which a page of another site may read unless it is listed
// (Fetch standard, section 3.3.3).
const Exposed = "Retry-After, Retry-After-Ms, RateLimit, RateLimit-Policy, Proxy-Status, X-Should-Retry"

// CORS are the origins whose pages may read rejections, like https://example.com; * is all. None: it is left to
// the rest of the configuration.
type CORS []string

// SetHeader lets the page that has sent r read a rejection, if it may. What is set already was set for the whole
// site, and stays: a browser shows nothing where two values contradict each other.
func (c CORS) SetHeader(h http.Header, r *http.Request) {
	if len(c) == 0 {
		return
	}
	h["Vary"] = append(h["Vary"], "Origin") // a cache of the site may keep what was allowed to another
	origin := first(r.Header, "Origin")
	if origin == "" {
		return
	}
	if len(h["Access-Control-Allow-Origin"]) == 0 {
		switch {
		case slices.Contains(c, origin):
			h["Access-Control-Allow-Origin"] = []string{origin}
			h["Access-Control-Allow-Credentials"] = []string{"true"} // or it reads nothing if it sends cookies
		case slices.Contains(c, "*"):
			h["Access-Control-Allow-Origin"] = []string{"*"}
		default:
			return
		}
	}
	h["Access-Control-Expose-Headers"] = append(h["Access-Control-Expose-Headers"], Exposed)
}

// IsPreflight reports whether a browser asks whether a page may send a request (Fetch standard, section 4.8). Any
// client can say so, but for no request with a body.
func IsPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.ContentLength == 0 && len(r.Header["Origin"]) > 0 && len(r.Header["Access-Control-Request-Method"]) > 0
}
