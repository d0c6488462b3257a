package caddymodule

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/oncall"
	"github.com/herdshield/shield/pushback"
)

const (
	// meanSeconds is how many seconds present rates are means of. Ours: less trembles, and more
	// is late.
	meanSeconds = 10

	// maxFollowers is how many answers may go on at one time. Ours: more than there are people
	// on call.
	maxFollowers = 64

	// watchedClients is how many clients are named in each list of a Watch.
	watchedClients = 12

	// followerPatience is how long a follower may take to read one line.
	followerPatience = 10 * time.Second
)

var (
	// boot names the process: after a restart seconds begin anew.
	boot = rand.Text()

	reasonList = func() (list []string) {
		for i := range len(shield.Reasons) + 1 {
			list = append(list, shield.Reason(i).String())
		}
		return list
	}()

	followers atomic.Int64
	histories second
)

// A second tells followers that histories have one more.
type second struct {
	mu   sync.Mutex
	next chan struct{}
}

// await returns a channel that is closed when there is one.
func (s *second) await() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = make(chan struct{})
	}
	return s.next
}

func (s *second) announce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		close(s.next)
		s.next = nil
	}
}

// A question is what a request for a Watch asks for.
type question struct {
	since    uint64
	last     uint64 // seconds; 0: all since then
	shield   string // "": all
	follow   bool
	all      bool // with what who and overrides say
	readOnly bool // the overrides are, for who asks
}

func ask(r *http.Request) (q question, err error) {
	form := r.URL.Query()
	q.shield, q.follow = form.Get("shield"), form.Get("follow") == "1"
	// Remote administration has rules for each path, and this one is live.
	q.all = form.Get("all") == "1" && (r.TLS == nil || len(r.TLS.PeerCertificates) == 0)
	q.readOnly = !mayChange(r)
	if text := form.Get("last"); text != "" {
		if q.last, err = strconv.ParseUint(text, 10, 64); err != nil || q.last == 0 {
			return q, fmt.Errorf("last is %.40q; want a number of seconds, at least 1", text)
		}
	}
	if text := form.Get("since"); text != "" && cmp.Or(form.Get("boot"), boot) == boot {
		if q.since, err = strconv.ParseUint(text, 10, 64); err != nil {
			return q, fmt.Errorf("since is %.40q; want the seq of an answer before", text)
		}
	}
	return q, nil
}

// serveLive answers with a Watch, or, if it is to follow, with one a second in lines. Then
// the log of the admin endpoint has one line for each follower, not one a second.
func serveLive(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet {
		return caddy.APIError{HTTPStatus: http.StatusMethodNotAllowed, Err: fmt.Errorf("method is %s; want GET", r.Method)}
	}
	q, err := ask(r)
	if err != nil {
		return caddy.APIError{HTTPStatus: http.StatusBadRequest, Err: err}
	}
	app, err := runningApp()
	if err != nil {
		return err
	}
	if q.follow && app != nil {
		return app.follow(w, r, q)
	}
	var b bytes.Buffer
	if _, err := app.watch(&b, q); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, err = w.Write(b.Bytes())
	return err
}

// follow writes a Watch a second, until the client leaves or the app is stopped.
func (a *App) follow(w http.ResponseWriter, r *http.Request, q question) error {
	defer followers.Add(-1)
	if n := followers.Add(1); n > maxFollowers {
		return caddy.APIError{HTTPStatus: http.StatusServiceUnavailable, Err: fmt.Errorf("%d answers are followed already; want at most %d", n-1, maxFollowers)}
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // the server's time-out for the request would end the answer
	var b bytes.Buffer
	for first := true; ; first = false {
		next := histories.await()
		b.Reset()
		seq, err := a.watch(&b, q)
		if err != nil {
			if first {
				return err
			}
			return nil // the answer has begun: it can only end
		}
		if first {
			w.Header().Set("Content-Type", "application/x-ndjson")
			w.Header().Set("Cache-Control", "no-store")
		}
		_ = control.SetWriteDeadline(time.Now().Add(followerPatience))
		if _, err := w.Write(b.Bytes()); err != nil || control.Flush() != nil {
			return nil
		}
		if q.last == 0 {
			q.since = seq
		}
		select {
		case <-next:
		case <-a.stop:
			return nil
		case <-r.Context().Done():
			return nil
		}
	}
}

// watch writes a Watch and a newline, and returns its second. a may be nil.
func (a *App) watch(b *bytes.Buffer, q question) (uint64, error) {
	now := shield.Now()
	host, _ := os.Hostname()
	out := adminapi.Watch{Boot: boot, Host: host, MeanSeconds: meanSeconds, Shields: []adminapi.ShieldWatch{}, Panels: panels()}
	seq, ago := clock.Now(now)
	out.Seq, out.Now = seq, time.Now().Add(-ago).UnixMilli()
	if q.last > 0 {
		q.since = max(q.since, seq+1-min(seq+1, q.last))
	}
	if a != nil {
		store, known := a.storeReading(), []string{}
		for _, s := range a.roster().shields {
			if !s.live {
				known = append(known, s.name)
				out.Shields = append(out.Shields, s.reading(now).watch(q))
			}
		}
		slices.SortFunc(out.Shields, func(a, b adminapi.ShieldWatch) int { return cmp.Compare(a.Name, b.Name) })
		if q.shield != "" && !slices.Contains(known, q.shield) {
			return 0, caddy.APIError{HTTPStatus: http.StatusNotFound, Err: fmt.Errorf("shield is %.80q; want one of %s", q.shield, strings.Join(known, ", "))}
		}
		if store != nil {
			out.Store = &adminapi.StoreWatch{Address: store.record.address, Up: store.Up, For: store.For.Seconds(), Error: store.Error}
		}
		if q.all {
			out.Who = new(a.who(now, q.shield, watchedClients, !q.readOnly))
			out.Overrides, out.ETag = a.overrides(now, q.shield, !q.readOnly)
		}
	}
	return seq, json.NewEncoder(b).Encode(out)
}

// panels returns the names of the endpoints beside the page.
func panels() (names []string) {
	for _, route := range (*Admin)(nil).Routes() {
		if name, _ := strings.CutPrefix(route.Pattern, "/shield/"); name != "" && !strings.HasSuffix(name, "/") {
			names = append(names, name)
		}
	}
	return names
}

func (s *shieldReading) watch(q question) adminapi.ShieldWatch {
	lately := s.record.history.Lately(meanSeconds)
	sit := s.situation(lately)
	level, says := sit.Sentence()
	out := adminapi.ShieldWatch{Name: s.name, Mode: modeEnforce, Level: level, Says: says}
	if s.config().Observe {
		out.Mode = modeObserve
	}
	if q.shield != "" && q.shield != s.name {
		return out
	}
	d := &adminapi.ShieldDetails{
		QueueSize: s.guard().Plan().QueueSize(), Paused: s.stats.Paused.Seconds(),
		Lately:  latelyWatch(&sit, lately),
		Samples: s.record.history.Since(q.since, reasonList),
	}
	out.ShieldDetails = d
	if s.config().Capacity.Rate > 0 {
		d.Capacity = new(rateStatus(s.config().Capacity, limiter.NewCapacity))
	}
	switch {
	case s.adaptive() && s.config().Adaptive.Target > 0:
		d.Limit = "slo"
	case s.adaptive():
		d.Limit = "adaptive"
	case s.config().Concurrency > 0:
		d.Limit = "fixed"
	}
	if s.config().Classes != nil {
		for _, c := range s.guard().ClassStats() {
			d.Classes = append(d.Classes, adminapi.ClassWatch{Name: c.Name, Share: c.Share})
		}
	}
	if clients, over := sit.Waiting(); clients > 0 {
		d.Waiting = &adminapi.WaitingWatch{Clients: clients, Over: max(-1, over.Seconds())}
	}
	if h := s.stats.Herd; s.guard().DetectsHerds() && h.Kind != pushback.NoHerd {
		d.Herd = &adminapi.HerdStatus{Kind: h.Kind.String(), Size: h.Size, Period: h.Period.Seconds(), Phase: h.Phase.Seconds()}
	}
	if s.config().Shared {
		if link := s.guard().Link(s.now); link != nil {
			d.Alone, d.Replicas = link.Alone(s.now)
		}
	}
	return out
}

func latelyWatch(sit *oncall.Situation, m oncall.Means) adminapi.LatelyWatch {
	byReason := func(rates [oncall.MaxReasons]float64) map[string]float64 {
		named := map[string]float64{}
		for _, reason := range shield.Reasons {
			if rates[reason] > 0 {
				named[reason.String()] = rates[reason]
			}
		}
		return named
	}
	return adminapi.LatelyWatch{
		Arrivals: sit.Arrivals, Admitted: m.Admitted, Refused: byReason(m.Refused), Observed: byReason(m.Observed),
		Kept: m.Kept, NoShow: m.NoShow, Broken: m.Broken,
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
