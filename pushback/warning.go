package pushback

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A warning is the constant part of what admitted clients get while others wait.
type warning struct {
	rateLimit [maxSeconds + 1]string // RateLimit by seconds
	backoff   bool
}

func newWarning(name string, backoff bool) warning {
	w := warning{backoff: backoff}
	for s := 1; s <= maxSeconds; s++ {
		w.rateLimit[s] = fmt.Sprintf("%s;r=1;t=%d", quoted(name), s)
	}
	return w
}

// Warn adds the early warning to the response of a request that is admitted while
// others wait for the backend, and will for the time of backlog. It says that little is
// left, and more in t seconds, from 1 to the longest that a Hint has. A remainder of 1
// is ours: 0 would say that this request was one too many.
//
// Backoff is for how many seconds a client should avoid requests that it can do without
// (Kinto API 1.x, "Backoff indicators").
func (a *Answers) Warn(h http.Header, backlog time.Duration) {
	seconds := hint(backlog, 1, a.max).Seconds
	values := make([]string, 2) // not shared between requests: see header
	values[0] = a.warning.rateLimit[seconds]
	h["Ratelimit"] = values[:1:1]
	if a.warning.backoff {
		values[1] = strconv.Itoa(seconds)
		h["Backoff"] = values[1:]
	}
}

// maxPolicyName bounds names, in bytes.
const maxPolicyName = 64

// isPolicyName reports whether name can stand in RateLimit as it is.
func isPolicyName(name string) bool {
	const marks = "_-./:"
	return name != "" && len(name) <= maxPolicyName && !strings.ContainsFunc(name, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune(marks, r))
	})
}
