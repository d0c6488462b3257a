package ingress

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
)

// A plan is what a trip does besides reaching an endpoint.
type plan struct {
	*policy.Filters
	url   *url.URL    // what the backend gets instead of the client's; nil: that
	extra http.Header // fields of the response, instead of the backend's
	sized *sizedBody  // nil: its length is known
}

var noFilters = new(policy.Filters)

// planned returns the plan of a trip, and makes one without filters if there is none.
func (t *trip) planned() *plan {
	if t.plan == nil {
		t.plan = &plan{Filters: noFilters}
	}
	return t.plan
}

// change changes a request for the backend, as the filters of its target ask. The limits have
// seen what the client sent.
func (p *plan) change(r *http.Request) {
	if p.url != nil {
		r.URL = p.url
	}
	if p.ForwardedPrefix != "" {
		r.Header["X-Forwarded-Prefix"] = []string{p.ForwardedPrefix}
	}
}

// extra sets the fields that answers have because of filters, and returns those that take the
// permit of the backend's.
func (p *passage) extra(w http.ResponseWriter, r *http.Request, f *policy.Filters) http.Header {
	h := make(http.Header)
	for _, field := range f.Headers {
		values := h[field.Name]
		if field.Value != "" {
			values = append(values, field.Value)
		}
		h[field.Name] = values // nil takes away the backend's
	}
	if f.HSTS != "" && f.HSTS != "off" && scheme(r) == "https" && p.asksTLS(r.Host) {
		h["Strict-Transport-Security"] = []string{f.HSTS}
	}
	allowed, vary := f.CORS.Allow(r.Header.Get("Origin"))
	if allowed != "" {
		h["Access-Control-Allow-Origin"] = []string{allowed}
		f.CORS.Fields(func(name, value string) { h[name] = []string{value} })
	}
	maps.Copy(w.Header(), h)
	if vary { // the backend may name more
		w.Header().Add("Vary", "Origin")
	}
	return h
}

// preflight answers a request of a browser that asks whether it may send another one, as
// ingress-nginx does: whatever it asks. The fields are in extra.
func preflight(w http.ResponseWriter, r *http.Request, extra http.Header) bool {
	if r.Method != http.MethodOptions || extra["Access-Control-Allow-Origin"] == nil {
		return false
	}
	w.WriteHeader(http.StatusNoContent)
	return true
}

// redirect returns where a request is redirected, with which status; "": nowhere.
func redirect(r *http.Request, f *policy.Filters) (to string, code int) {
	switch {
	case f.RedirectHost != "":
		return scheme(r) + "://" + f.RedirectHost + r.URL.RequestURI(), http.StatusPermanentRedirect
	case f.Redirect != "":
		return f.RedirectTo(r.URL.RequestURI()), f.RedirectCode
	case f.AppRoot != "" && r.URL.Path == "/":
		return scheme(r) + "://" + r.Host + f.AppRoot, http.StatusFound
	}
	return "", 0
}

// The default sizes of bodies. The first is ingress-nginx's (its proxy-body-size), whose
// backends have never seen more. The other is what the free plan of a large network of proxies,
// Cloudflare's, lets through.
const (
	nginxBodySize   = 1 << 20
	defaultBodySize = 100 << 20
)

// lingerFor and lingerSize bound what is read of a body that is rejected. Ours: it is a second of
// what people have. nginx lingers for 30 s.
const (
	lingerFor  = 2 * time.Second
	lingerSize = 16 << 20
)

// rejectBody answers 413. A connection that is closed while the client sends would be reset, and
// the client would never read the response.
func rejectBody(w http.ResponseWriter, r *http.Request) error {
	breakOff(w, r)
	err := respond(w, r, http.StatusRequestEntityTooLarge, "the request body is too large")
	control := http.NewResponseController(w)
	if r.ProtoMajor == 1 && r.Header["Expect"] == nil && control.Flush() == nil && control.SetReadDeadline(time.Now().Add(lingerFor)) == nil {
		_, _ = io.CopyN(io.Discard, r.Body, lingerSize)
	}
	return err
}

// bodySize returns how many bytes the body may have; negative: any number.
func (t *trip) bodySize(config *App) int64 {
	switch {
	case t.plan != nil && t.plan.BodySize != 0:
		return t.plan.BodySize
	case t.passage.protocol == model.H2C: // it may be a conversation
		return policy.NoBodySize
	case config.BodySize != 0:
		return config.BodySize
	case config.NginxAnnotations:
		return nginxBodySize
	}
	return defaultBodySize
}

// A sizedBody ends with an error when it is too large. Shields must not see that: for them a
// body that ends early is a client that has left.
type sizedBody struct {
	io.ReadCloser
	left int64
	over atomic.Bool
}

var errTooLarge = errors.New("the request body is too large")

// Read implements io.Reader.
func (b *sizedBody) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 { // one more byte is proof
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if int64(n) > b.left {
		b.over.Store(true)
		n, err = int(b.left), errTooLarge
	}
	b.left -= int64(n)
	return n, err
}

// clientAddress returns the address of a client, or the zero Addr if Caddy has none.
func clientAddress(r *http.Request) netip.Addr {
	client, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	a, _ := netip.ParseAddr(client)
	return a
}

// tooLarge reports whether the body has been too large; of nil it has not.
func (p *plan) tooLarge() bool { return p != nil && p.sized != nil && p.sized.over.Load() }
