package pushback

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/herdshield/shield/dialect"
)

// The problem types of draft-ietf-httpapi-ratelimit-headers-11, section 5.
const (
	typeQuota    = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	typeCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
)

// wording is the part of a response that does not depend on the request, for one policy
// or for overload.
type wording struct {
	status      int
	proxyStatus string                 // Proxy-Status (RFC 9209)
	name        string                 // of the policy, quoted
	policy      string                 // RateLimit-Policy; "" for overload
	rateLimit   [maxSeconds + 1]string // RateLimit by seconds, 0 for never; empty for overload
	grpcStatus  uint32

	wait, never texts
}

// texts are for people and programs to read.
type texts struct {
	problem, text  body
	page, pageOnce body // with Refresh and, where that would lose a form, without
	objects        [dialect.Dialects]body
	message        string // gRPC's
}

// A body is a constant text around the number of seconds; for never it is all in before.
type body struct{ contentType, before, after string }

func newBody(contentType, text string) body {
	before, after, _ := strings.Cut(text, "{seconds}")
	return body{contentType, before, after}
}

func newWording(status int, p *Policy) wording {
	w := wording{status: status, grpcStatus: grpcResourceExhausted}
	why, kind, what, violated := "overload", typeCapacity, "The service is at its capacity.", ""
	switch {
	case p == nil:
		w.grpcStatus = grpcUnavailable
	case p.blocked:
		why, kind, what = "blocked", "about:blank", "This client is blocked for a while."
	default:
		w.name = quoted(p.Name)
		kind, violated, w.rateLimit = typeQuota, fmt.Sprintf(`,"violated-policies":[%s]`, w.name), rateLimits(p.Name, 0)
		if p.Concurrent {
			why, what = "per_client", "This client has too many requests in flight."
			w.policy = fmt.Sprintf(`%s;q=%d;qu="concurrent-requests"`, w.name, p.Quota)
			break
		}
		why, what = "quota", "This client has used up its quota."
		w.policy = fmt.Sprintf("%s;q=%d;w=%d", w.name, p.Quota, max(1, (p.Window+time.Second-1)/time.Second))
		if p.Unit != "" {
			w.policy += ";qu=" + quoted(p.Unit)
		}
	}
	// A request that the configuration does not let through to the next hop, whatever it asks for (RFC 9209, section 2.3). By it
	// programs tell the response from one of the backend. The other error types are about connections and responses.
	w.proxyStatus = "shield; error=http_request_denied; details=" + quoted(why)
	title := cmp.Or(http.StatusText(status), "Rejected")
	problem := func(then, more string) body {
		return newBody("application/problem+json", fmt.Sprintf(`{"type":%s,"title":%s,"status":%d,"detail":%s%s%s}`+"\n",
			quoted(kind), quoted(title), status, quoted(what+" "+then), violated, more))
	}
	text := func(then string) body { return newBody("text/plain; charset=utf-8", what+" "+then+"\n") }
	page := func(heading, then string) body {
		return newBody("text/html; charset=utf-8", fmt.Sprintf(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>%s</title>
<style>:root{color-scheme:light dark}body{font:1.1em/1.5 system-ui,sans-serif;max-width:32em;margin:20vh auto;padding:0 1em}</style>
<h1>%s</h1>
<p>%s %s</p></html>
`, title, heading, what, then))
	}
	const moment, notNow = "One moment, please", "Do not come back soon."
	w.wait = texts{
		problem:  problem("Come back when retry-after seconds have passed.", `,"retry-after":{seconds}`),
		text:     text("Come back in {seconds} s."),
		page:     page(moment, "This page tries again automatically in {seconds} s."),
		pageOnce: page(moment, "Please send it again in {seconds} s."),
		message:  what,
	}
	w.never = texts{
		problem:  problem(notNow, ""),
		text:     text(notNow),
		pageOnce: page("Not now", "Please do not come back soon."),
		message:  what + " " + notNow,
	}
	for d := range dialect.Dialects {
		w.wait.objects[d], w.never.objects[d] = newBody(d.Object(what, p == nil, "")), newBody(d.Object(what, p == nil, notNow))
	}
	return w
}

// rateLimits returns RateLimit for a policy with so much left, by the seconds until there
// is more; at 0 without them.
func rateLimits(name string, left int) (list [maxSeconds + 1]string) {
	list[0] = fmt.Sprintf("%s;r=%d", quoted(name), left)
	for s := 1; s <= maxSeconds; s++ {
		list[s] = fmt.Sprintf("%s;t=%d", list[0], s)
	}
	return list
}

func (w *wording) texts(f Rejection) *texts {
	if f.Hint.Never {
		return &w.never
	}
	return &w.wait
}

// quoted returns s as a JSON string. For the names that policies may have it is
// a structured-field string as well (RFC 9651, section 3.3.3).
func quoted(s string) string {
	b, _ := json.Marshal(s) // a string always can be
	return string(b)
}

func (w *wording) setHeader(h *header, f Rejection) {
	if f.Hint.Never {
		h.set("X-Should-Retry", "false")
		h.set("Stripe-Should-Retry", "false")
	} else {
		h.set("Retry-After", strconv.Itoa(f.Hint.Seconds))
		h.set("Retry-After-Ms", strconv.Itoa(f.Hint.Ms))
	}
	h.set("Cache-Control", "no-store")
	h.set("Proxy-Status", w.proxyStatus)
	if w.policy != "" {
		if f.Hint.Seconds > maxSeconds {
			h.set("Ratelimit", w.rateLimit[0]+";t="+strconv.Itoa(f.Hint.Seconds))
		} else {
			h.set("Ratelimit", w.rateLimit[f.Hint.Seconds])
		}
		h.set("Ratelimit-Policy", w.policy)
	}
}

// Warn adds the early warning to the response of a request that is admitted while
// others wait for the backend, and will for the time of backlog. It says that little is
// left, and more in t seconds, from 1 to the longest that a Hint has. A remainder of 1
// is ours: 0 would say that this request was one too many.
func (a *Responses) Warn(h http.Header, backlog time.Duration) {
	h["Ratelimit"] = []string{a.warnings[hint(backlog, time.Second, a.config.Max).Seconds]} // not shared between requests: see header
}

// Remaining adds to the header of an admitted request's response how much is left of a quota, and for how long that is to last.
func (a *Responses) Remaining(h http.Header, policy, left int, lasts time.Duration) {
	w := &a.quotas[policy]
	h.Add("Ratelimit-Policy", w.policy)
	h.Add("Ratelimit", fmt.Sprintf("%s;r=%d;t=%d", w.name, left, max(1, (lasts+time.Second-1)/time.Second)))
}

// IsPolicyName reports whether name has at most 64 bytes, and can stand in RateLimit as it is.
func IsPolicyName(name string) bool {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:"
	return name != "" && len(name) <= 64 && strings.TrimLeft(name, letters) == ""
}
