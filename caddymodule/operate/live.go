package operate

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/oncall"
)

const (
	// maxFollowers is how many answers may go on at one time. Ours: more than there are people
	// on call.
	maxFollowers = 64

	// followerPatience is how long a follower may take to read one line.
	followerPatience = 10 * time.Second
)

var (
	// boot names the process: after a restart seconds begin anew.
	boot = rand.Text()

	followers atomic.Int64
	histories second
)

// A second tells followers that histories have one more.
type second struct {
	mu   sync.Mutex
	next chan struct{}
	last uint64
}

// await returns the last second, and a channel that is closed when there is another.
func (s *second) await() (last uint64, next <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = make(chan struct{})
	}
	return s.last, s.next
}

func (s *second) announce(seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = seq
	if s.next != nil {
		close(s.next)
		s.next = nil
	}
}

// Announce tells followers that the histories have a second more.
func Announce(seq uint64) { histories.announce(seq) }

// A question is what a request for a Watch asks for.
type question struct {
	since  uint64
	last   uint64 // seconds; 0: all since then
	shield string // "": all
	follow bool
	all    bool // with what who and overrides say
	named  bool // who asks may see names, and change something
}

func ask(r *http.Request) (q question, err error) {
	form := r.URL.Query()
	q.shield, q.follow = form.Get("shield"), form.Get("follow") == "1"
	// Remote administration has rules for each path, and this one is live.
	q.all = form.Get("all") == "1" && (r.TLS == nil || len(r.TLS.PeerCertificates) == 0)
	q.named = mayChange(r)
	if text := form.Get("last"); text != "" {
		if q.last, err = strconv.ParseUint(text, 10, 64); err != nil || q.last == 0 {
			return q, BadRequest(http.StatusBadRequest, "last is %.40q; want a number of seconds, at least 1", text)
		}
	}
	if text := form.Get("since"); text != "" && cmp.Or(form.Get("boot"), boot) == boot {
		if q.since, err = strconv.ParseUint(text, 10, 64); err != nil {
			return q, BadRequest(http.StatusBadRequest, "since is %.40q; want the seq of a response before", text)
		}
	}
	return q, nil
}

// serveLive answers with a Watch, or, if it is to follow, with one a second in lines. Then
// the log of the admin endpoint has one line for each follower, not one a second.
func serveLive(w http.ResponseWriter, r *http.Request, shields Shields) error {
	q, err := ask(r)
	if err != nil {
		return err
	}
	if q.follow {
		return follow(w, r, shields, q)
	}
	seq, _ := histories.await()
	all, err := watch(shields, seq, q)
	return answer(w, http.StatusOK, all, err)
}

// watch returns the Watch of a second.
func watch(shields Shields, seq uint64, q question) (w adminapi.Watch, err error) {
	if q.last > 0 {
		q.since = max(q.since, seq+1-min(seq+1, q.last))
	}
	w, err = shields.Watch(q.shield, q.since, q.all, q.named)
	w.Boot, w.Seq, w.Now, w.ReadOnly = boot, seq, shield.At(time.Duration(seq)*time.Second).UnixMilli(), !q.named
	w.Host, _ = os.Hostname()
	return w, err
}

// follow writes a Watch a second, until the client leaves or the config is no longer in force.
func follow(w http.ResponseWriter, r *http.Request, shields Shields, q question) error {
	defer followers.Add(-1)
	if n := followers.Add(1); n > maxFollowers {
		return BadRequest(http.StatusServiceUnavailable, "%d answers are followed already; want at most %d", n-1, maxFollowers)
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // the server's time-out for the request would end the response
	for first := true; ; first = false {
		seq, next := histories.await()
		all, err := watch(shields, seq, q)
		var line []byte
		if err == nil {
			line, err = json.Marshal(all)
		}
		if err != nil && first {
			return err
		}
		if err != nil {
			return nil // the response has begun: it can only end
		}
		if first {
			w.Header().Set("Content-Type", "application/x-ndjson")
			w.Header().Set("Cache-Control", "no-store")
		}
		_ = control.SetWriteDeadline(time.Now().Add(followerPatience))
		if _, err := w.Write(append(line, '\n')); err != nil || control.Flush() != nil {
			return nil
		}
		if q.last == 0 {
			q.since = seq
		}
		select {
		case <-next:
		case <-shields.Stopped():
			return nil
		case <-r.Context().Done():
			return nil
		}
	}
}

// servePage answers with the page for browsers.
func servePage(w http.ResponseWriter) error {
	html, policy := oncall.Page()
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin") // Caddy looks at it to know where a request comes from
	h.Set("Cache-Control", "no-store")
	_, err := w.Write(html)
	return err
}

// wantsPage reports whether a request is that of a browser that shows a page.
func wantsPage(r *http.Request) bool {
	for accept := range strings.SplitSeq(strings.Join(r.Header["Accept"], ","), ",") {
		kind, _, _ := strings.Cut(accept, ";")
		switch strings.TrimSpace(kind) {
		case "text/html", "application/xhtml+xml":
			return true
		case "application/json":
			return false
		}
	}
	return false
}
