package pushback

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Warn adds the early warning to the response of a request that is admitted while
// others wait for the backend, and will for the time of backlog. It says that little is
// left, and more in t seconds, from 1 to the longest that a Hint has. A remainder of 1
// is ours: 0 would say that this request was one too many.
//
// Backoff is for how many seconds a client should avoid requests that it can do without
// (Kinto API 1.x, "Backoff indicators").
func (a *Answers) Warn(h http.Header, backlog time.Duration) {
	seconds := hint(backlog, time.Second, a.config.Max).Seconds
	values := make([]string, 2) // not shared between requests: see header
	values[0] = a.warnings[seconds]
	h["Ratelimit"] = values[:1:1]
	if a.config.Backoff {
		values[1] = strconv.Itoa(seconds)
		h["Backoff"] = values[1:]
	}
}

// IsPolicyName reports whether name has at most 64 bytes, and can stand in RateLimit as it is.
func IsPolicyName(name string) bool {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:"
	return name != "" && len(name) <= 64 && strings.TrimLeft(name, letters) == ""
}
