package pushback

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/dialect"
)

// Body is the kind of body a rejection has.
type Body string

const (
	Auto    Body = "auto"    // Problem, but over HTTP/2 and 3 only if the client asks for JSON or navigates
	Problem Body = "problem" // application/problem+json (RFC 9457), or a page for browser navigations
	HTML    Body = "html"    // a page, always
	Text    Body = "text"    // one line of text/plain
	None    Body = "none"    // no body
)

// ResponseConfig says what rejections look like. The zero ResponseConfig is the default.
type ResponseConfig struct {
	// Min and Max bound Retry-After: whole seconds from 1s to 59s. 0 means 1s and 30s.
	Min, Max time.Duration

	// QuotaMax is the longest wait for a client over a quota that takes longer than Max to renew: whole seconds
	// from Max to 24h. 0 means 24h, so that clients get the true wait.
	QuotaMax time.Duration

	// Status is for clients over their own quota, and OverloadStatus for rejections because of the backend's
	// load: 400 to 599. 0 means 429 and 503.
	Status, OverloadStatus int

	Body Body // "" means Auto

	// GiveUp tells clients that would wait longer than this in total not to return: 1m to 24h. 0 means that
	// clients are never told so.
	GiveUp time.Duration

	NoDither bool // send rejections immediately, instead of delaying them by up to a second

	// CORS lists the origins whose pages can read rejections. If it is empty, that is left to others.
	CORS dialect.CORS

	// CloseWebSockets accepts a rejected WebSocket handshake and closes the connection with the wait, because a
	// script can't read a rejected handshake.
	CloseWebSockets bool
}

// A Policy is a quota as RateLimit-Policy describes it.
type Policy struct {
	Name   string        // letters, digits and _ - . / : only
	Quota  int           // requests, or units, that a client can send in one burst after a rest
	Unit   string        // "": requests
	Window time.Duration // how long the whole quota takes to renew

	Concurrent bool // Quota is how many requests a client can have in flight; there is no Window

	blocked bool // there is no quota: an operator has blocked the client
}

// BlockedPolicy is the Policy of rejections to blocked clients.
const BlockedPolicy = -2

// A Rejection is one rejection to write.
type Rejection struct {
	Policy int // the exceeded quota, an index into NewResponses' policies; -1 for overload; or BlockedPolicy
	Hint   Hint

	// Ticket is for the client to send back when it returns; "" means none.
	Ticket string
}

// Responses writes rejections. It is safe for concurrent use.
type Responses struct {
	config                ResponseConfig
	quotas                []wording // one per policy
	overload, overloadGit wording
	blocked               wording
	closing               atomic.Int32           // WebSockets
	warnings              [maxSeconds + 1]string // RateLimit of an early warning, by seconds
}

// isOrigin reports whether s is an origin as browsers serialize it: in lower case, with a name in ASCII, without the scheme's own
// port (WHATWG URL standard, section 4.7).
func isOrigin(s string) bool {
	u, err := url.Parse(s)
	if err != nil || u.Scheme+"://"+u.Host != s || strings.HasSuffix(s, ":") || strings.HasPrefix(u.Port(), "0") ||
		u.Scheme == "http" && u.Port() == "80" || u.Scheme == "https" && u.Port() == "443" {
		return false
	}
	name := u.Hostname()
	return name != "" && strings.Contains(name, ":") == strings.HasPrefix(u.Host, "[") &&
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789.:_-") == ""
}

// longestQuota is the longest wait for a quota that can be told.
const longestQuota = 24 * time.Hour

// NewResponses returns an error that names every field of c that is out of range.
func NewResponses(c ResponseConfig, policies []Policy) (*Responses, error) {
	c.Min, c.Max = cmp.Or(c.Min, time.Second), cmp.Or(c.Max, max(c.Min, 30*time.Second))
	c.QuotaMax = cmp.Or(c.QuotaMax, longestQuota)
	c.Status, c.OverloadStatus = cmp.Or(c.Status, http.StatusTooManyRequests), cmp.Or(c.OverloadStatus, http.StatusServiceUnavailable)
	c.Body = cmp.Or(c.Body, Auto)

	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	bound := func(name string, is time.Duration) {
		if is < time.Second || is > maxSeconds*time.Second || is%time.Second != 0 {
			bad("%s is %v; use whole seconds from 1s to %ds", name, is, maxSeconds)
		}
	}
	bound("min", c.Min)
	bound("max", c.Max)
	if c.QuotaMax < c.Max || c.QuotaMax > longestQuota || c.QuotaMax%time.Second != 0 {
		bad("quota_max is %v; use whole seconds from max, %v, to %v", c.QuotaMax, c.Max, longestQuota)
	}
	if c.Min > c.Max {
		bad("min is %v and max is %v; min must be at most max", c.Min, c.Max)
	}
	status := func(name string, is int) {
		if is < 400 || is > 599 {
			bad("%s is %d; use 400 to 599", name, is)
		}
	}
	status("status", c.Status)
	status("overload_status", c.OverloadStatus)
	for _, origin := range c.CORS {
		if origin != "*" && !isOrigin(origin) {
			bad("cors is %q; use * or an origin as browsers send it, like https://example.com", origin)
		}
	}
	switch c.Body {
	case Auto, Problem, HTML, Text, None:
	default:
		bad("body is %q; use auto, problem, html, text or none", c.Body)
	}
	if c.GiveUp != 0 && (c.GiveUp < time.Minute || c.GiveUp > 24*time.Hour) {
		bad("give_up is %v; use 1m to 24h", c.GiveUp)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}

	a := &Responses{
		config: c, warnings: rateLimits("capacity", 1), blocked: newWording(c.Status, &Policy{blocked: true}),
		overload: newWording(c.OverloadStatus, nil), overloadGit: newWording(http.StatusTooManyRequests, nil),
	}
	for _, p := range policies {
		a.quotas = append(a.quotas, newWording(c.Status, &p))
	}
	return a, nil
}

// Hint rounds wait up within the configured bounds.
func (a *Responses) Hint(wait time.Duration) Hint { return hint(wait, a.config.Min, a.config.Max) }

// Bounds returns the shortest and the longest wait that a Hint tells.
func (a *Responses) Bounds() (shortest, longest time.Duration) { return a.config.Min, a.config.Max }

// Dither reports whether rejections may be held back for less than a second.
func (a *Responses) Dither() bool { return !a.config.NoDither }

// Precise reports whether a client waits for the milliseconds that it is told, so that its rejection need not be held back: it
// has to, or says so by a header Shield-Retry of any content.
func (a *Responses) Precise(r *http.Request) bool {
	return len(r.Header["Shield-Retry"]) > 0 || a.Alone(r)
}

// Status returns the HTTP status for a rejection of a client that proves no dialect.
func (a *Responses) Status(f Rejection) int { return a.wording(f, dialect.Plain).status }

// Alone reports whether the client of r understands nothing but what Write answers.
func (a *Responses) Alone(r *http.Request) bool {
	return IsGRPC(r) || dialect.IsEventSource(r) || a.config.CloseWebSockets && dialect.IsWebSocket(r)
}

func (a *Responses) wording(f Rejection, d dialect.Dialect) *wording {
	switch {
	case f.Policy >= 0:
		return &a.quotas[f.Policy]
	case f.Policy == BlockedPolicy:
		return &a.blocked
	case d == dialect.Git:
		return &a.overloadGit
	}
	return &a.overload
}

// Write answers a request with a rejection, in the protocol that the client speaks. now is
// the present time, for the connection's deadline: see Unblock. It returns the status; gRPC's is that of a client that does not
// speak it.
func (a *Responses) Write(w http.ResponseWriter, r *http.Request, f Rejection, now time.Time) (status int) {
	Unblock(w, r, now)
	d := dialect.Of(r)
	words, h := a.wording(f, d), newHeader(w)
	if IsGRPC(r) {
		words.setGRPC(&h, f)
		a.setFor(&h, r, f)
		w.WriteHeader(http.StatusOK)
		return words.status
	}
	words.setHeader(&h, f)
	a.setFor(&h, r, f)
	texts := words.texts(f)
	body := &texts.problem
	switch {
	case d == dialect.EventSource && f.Hint.Never:
		w.WriteHeader(http.StatusNoContent)
		return http.StatusNoContent
	case d == dialect.EventSource:
		h.set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(dialect.AppendEvents(nil, f.Hint.Ms)) // an error means that the client is gone
		return http.StatusOK
	case d == dialect.WebSocket && a.config.CloseWebSockets && a.close(w, r, f, now):
		return http.StatusSwitchingProtocols
	case a.config.Body == Auto && texts.objects[d].contentType != "":
		body = &texts.objects[d]
	case a.config.Body == None, a.config.Body == Auto && r.ProtoMajor > 1 && !asksForBody(r):
		w.WriteHeader(words.status)
		return words.status
	case a.config.Body == Text:
		body = &texts.text
	case a.config.Body == HTML || isNavigation(r):
		body = &texts.pageOnce
		if !f.Hint.Never && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
			body = &texts.page
			h.set("Refresh", strconv.Itoa(f.Hint.Seconds))
		}
	}
	h.set("Content-Type", body.contentType)
	if body != &texts.problem { // no browser guesses at this type, and every rejection would pay: see TestFewHeaders
		h.set("X-Content-Type-Options", "nosniff")
	}
	w.WriteHeader(words.status)
	if r.Method == http.MethodHead {
		return words.status
	}
	// In one piece: servers may set a deadline for every write.
	b := buffers.Get().(*[]byte)
	*b = append((*b)[:0], body.before...)
	if !f.Hint.Never {
		*b = append(strconv.AppendInt(*b, int64(f.Hint.Seconds), 10), body.after...)
	}
	_, _ = w.Write(*b) // an error means that the client is gone
	buffers.Put(b)
	return words.status
}

// maxClosing is how many WebSockets may be closed at once: each holds its connection until its client has answered, for closeTime
// at most. Ours: 64 MB of connections, and 200 attackers per second that do not answer. Others get a status.
const (
	maxClosing = 1000
	closeTime  = 5 * time.Second
)

// close accepts and closes a WebSocket. It reports false if there are too many, and nothing is written.
func (a *Responses) close(w http.ResponseWriter, r *http.Request, f Rejection, now time.Time) bool {
	defer a.closing.Add(-1)
	if a.closing.Add(1) > maxClosing {
		return false
	}
	_ = dialect.CloseWebSocket(w, r, f.Hint.Ms, now.Add(closeTime)) // the client is gone, or does not close in turn
	return true
}

// buffers hold bodies while they are written. They are all of about one size.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// SetHeader sets the headers of a rejection of r whose status, which it returns, and body the caller writes.
func (a *Responses) SetHeader(w http.ResponseWriter, r *http.Request, f Rejection) (status int) {
	words, h := a.wording(f, dialect.Of(r)), newHeader(w)
	words.setHeader(&h, f)
	a.setFor(&h, r, f)
	return words.status
}

// setFor sets the headers that depend on the client.
func (a *Responses) setFor(h *header, r *http.Request, f Rejection) {
	a.config.CORS.SetHeader(h.h, r)
	if f.Ticket != "" && !f.Hint.Never && keepsTicket(r) {
		setTicketCookie(h.h, r, f)
	}
	if throughEnvoy(r) {
		// Envoy retries on its own within milliseconds, whatever Retry-After says; this
		// stops it (RetryStateImpl::wouldRetryFromHeaders).
		h.set("X-Envoy-Ratelimited", "true")
	}
}

// throughEnvoy reports whether an Envoy has forwarded a request, as in a service mesh,
// by the headers that it adds (router_filter, "HTTP headers set on upstream calls").
func throughEnvoy(r *http.Request) bool {
	return len(r.Header["X-Envoy-Attempt-Count"]) > 0 ||
		len(r.Header["X-Envoy-Expected-Rq-Timeout-Ms"]) > 0 ||
		len(r.Header["X-Envoy-Original-Path"]) > 0
}

// isNavigation reports whether a person will see the response: browsers say so (Fetch
// Metadata), older ones at least ask for HTML.
func isNavigation(r *http.Request) bool {
	if mode := r.Header["Sec-Fetch-Mode"]; len(mode) > 0 {
		return mode[0] == "navigate"
	}
	return slices.ContainsFunc(r.Header["Accept"], func(accept string) bool { return strings.Contains(accept, "text/html") })
}

// asksForBody reports whether the client of a request has use for a body. Most programs act
// on the status and Retry-After alone, and over HTTP/2 a body is a second frame: it makes
// a rejection a third more expensive (63 against 42 us of the whole process).
func asksForBody(r *http.Request) bool {
	return isNavigation(r) || slices.ContainsFunc(r.Header["Accept"], func(accept string) bool { return strings.Contains(accept, "json") })
}

// header sets response headers with one allocation for all their values. The
// values are not shared between requests: others may change them in place.
type header struct {
	h      http.Header
	values []string
}

func newHeader(w http.ResponseWriter) header { return header{w.Header(), make([]string, 0, 10)} }

func (h *header) set(name, value string) {
	h.values = append(h.values, value)
	n := len(h.values)
	h.h[name] = h.values[n-1 : n : n]
}

// maxSeconds is the longest Retry-After of an overload: from 60 s on the Azure SDKs give
// up and older OpenAI clients hammer. A quota of an hour is worth giving up for.
const maxSeconds = 59

// A Hint is when to come back.
type Hint struct {
	Seconds int  // the wait in whole seconds, rounded up: 1 to 59, for a quota to 86,400
	Ms      int  // the wait in milliseconds, rounded up: never above Seconds
	Never   bool // not at all; Seconds and Ms are 0
}

// hint rounds wait up to milliseconds and to whole seconds. Both are at most hi. A lo above
// a second is their least; with a lo of a second the milliseconds are the exact wait.
func hint(wait, lo, hi time.Duration) Hint {
	least := time.Millisecond
	if lo > time.Second {
		least = lo
	}
	ms := int((min(max(wait, least), hi) + time.Millisecond - 1) / time.Millisecond)
	return Hint{Seconds: (ms + 999) / 1000, Ms: ms}
}
