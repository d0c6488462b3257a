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

// maxFollowers is how many answers may go on at one time. Ours: more than there are people
// on call.
const maxFollowers = 64

var (
	// boot names the process: after a restart seconds begin anew.
	boot = rand.Text()

	followers atomic.Int64

	histories struct {
		sync.Mutex
		last uint64        // second that they have
		next chan struct{} // closed when there is another; nil: nobody waits
	}
)

// await returns the last second, and a channel that is closed when there is another.
func await() (last uint64, next <-chan struct{}) {
	histories.Lock()
	defer histories.Unlock()
	if histories.next == nil {
		histories.next = make(chan struct{})
	}
	return histories.last, histories.next
}

// Announce tells followers that the histories have a second more.
func Announce(seq uint64) {
	histories.Lock()
	defer histories.Unlock()
	histories.last = seq
	if histories.next != nil {
		close(histories.next)
		histories.next = nil
	}
}

// serveLive answers with a Watch, or, if it is to follow, with one a second in lines. Then
// the log of the admin endpoint has one line for each follower, not one a second.
func serveLive(w http.ResponseWriter, r *http.Request, shields Shields) (err error) {
	form := r.URL.Query()
	since := uint64(0) // the second after which they are told; 0: all
	if text := form.Get("since"); text != "" && cmp.Or(form.Get("boot"), boot) == boot {
		if since, err = strconv.ParseUint(text, 10, 64); err != nil {
			return BadRequest(http.StatusBadRequest, "since is %.40q; use the seq of an earlier response", text)
		}
	}
	// With all there is what who and overrides say. Remote administration has rules for each path, and this one is live.
	all := form.Get("all") == "1" && (r.TLS == nil || len(r.TLS.PeerCertificates) == 0)
	watch := func(seq uint64) (is adminapi.Watch, err error) {
		is, err = shields.Watch(form.Get("shield"), since, all, mayChange(r))
		is.Boot, is.Seq, is.Now = boot, seq, shield.At(time.Duration(seq)*time.Second).UnixMilli()
		is.Host, _ = os.Hostname()
		since = seq
		return is, err
	}
	seq, next := await()
	is, err := watch(seq)
	if err != nil || form.Get("follow") != "1" {
		return answer(w, http.StatusOK, is, err)
	}
	defer followers.Add(-1)
	if n := followers.Add(1); n > maxFollowers {
		return BadRequest(http.StatusServiceUnavailable, "%d clients follow this endpoint already; at most %d can", n-1, maxFollowers)
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // the server's timeout for the request would end the response
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	for lines := json.NewEncoder(w); err == nil; is, err = watch(seq) { // after an error the response can only end: it has begun
		_ = control.SetWriteDeadline(time.Now().Add(10 * time.Second)) // to read one line
		if lines.Encode(is) != nil || control.Flush() != nil {
			break
		}
		select {
		case <-next:
			seq, next = await()
		case <-shields.Stopped():
			return nil
		case <-r.Context().Done():
			return nil
		}
	}
	return nil
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
	accept := strings.Join(r.Header["Accept"], ",")
	return strings.Contains(accept, "text/html") && !strings.Contains(accept, "application/json")
}
