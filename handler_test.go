package shield

import (
	"bufio"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
)

// A rejection is promised within 150 ms. Tests allow a loaded machine 5 s. An
// answer that waits for the request's body is no border case of that: it comes
// after a minute or never, and the test gives up on it after patience.
const (
	promptly = 5 * time.Second
	patience = 30 * time.Second
)

// await receives from c, but gives up where it would hang.
func await[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Error("waited in vain")
	}
	return v
}

// serve puts h behind a loopback socket.
func serve(t *testing.T, h http.Handler, with ...func(*http.Server)) (addr string) {
	t.Helper()
	var handlers sync.WaitGroup // those of upgraded connections, too, for which Close does not wait: they read the clock that other tests set
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handlers.Add(1)
		defer handlers.Done()
		h.ServeHTTP(w, r)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // some handlers panic on purpose
	for _, f := range with {
		f(s.Config)
	}
	s.Start()
	t.Cleanup(func() {
		s.CloseClientConnections() // or Close waits for what hangs
		s.Close()
		handlers.Wait()
	})
	return s.Listener.Addr().String()
}

// A socket is a client that sends exactly what the test says.
type socket struct {
	net.Conn
	r *bufio.Reader
	t *testing.T
}

func dial(t *testing.T, addr string) *socket {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return &socket{c, bufio.NewReader(c), t}
}

func (s *socket) send(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s, text); err != nil {
		s.t.Fatal(err)
	}
}

// answerTo returns what a handler answers.
func answerTo(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// accepts serves any request.
var accepts = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

// What the handler behind makes of its request is left in that of the server: it removes the files of a form, and middleware reads the pattern.
func TestFormAndPatternAreLeft(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /form", func(_ http.ResponseWriter, r *http.Request) { _ = r.ParseMultipartForm(0) })
	r := httptest.NewRequest("POST", "/form", strings.NewReader("--x\r\nContent-Disposition: form-data; name=f; filename=f\r\n\r\ntext\r\n--x--\r\n"))
	r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
	answerTo(mustNew(t, Config{Concurrency: 1}, nil).Handler(mux), r)
	if r.Pattern != "POST /form" || r.MultipartForm == nil || len(r.MultipartForm.File["f"]) != 1 || r.MultipartForm.RemoveAll() != nil {
		t.Errorf("the pattern is %q, and the form %+v", r.Pattern, r.MultipartForm)
	}
}

// A backend that answers 503 with Retry-After is left alone, whatever limits it, but not one
// that serves in between, be it streams, nor another shield that rejects one client.
func TestHandlerPauses(t *testing.T) {
	for limit, c := range map[string]Config{"fixed": {Concurrency: 5}, "capacity": {Capacity: perSecond(100, 100)}, "adaptive": {Adaptive: new(loadshed.AdaptiveConfig)}} {
		for what, wants := range map[string]bool{"drained": true, "a stream in between": false, "of one client": false} {
			synctest.Test(t, func(t *testing.T) {
				inBubble(t)
				c.Pushback = undithered
				asked := 0
				g := mustNew(t, c, nil)
				h := g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if asked++; what == "a stream in between" && asked%4 == 0 {
						w.Header().Set("Content-Type", "text/event-stream")
						w.WriteHeader(http.StatusOK)
						return
					}
					if w.Header().Set("Retry-After", "30"); what == "of one client" {
						w.Header().Set("Retry-After-Ms", "29500")
					}
					w.WriteHeader(http.StatusServiceUnavailable)
				}))
				for range 2 * loadshed.RefusalsToPause {
					r := httptest.NewRequest("GET", "/", nil)
					r.Header.Set("Accept", "text/event-stream")
					answerTo(h, r)
					time.Sleep(loadshed.RefusalsSpan/(loadshed.RefusalsToPause-1) + 1)
				}
				if left := g.backend.Stats(Now()).Paused; left > 0 != wants {
					t.Errorf("%s, %s: left alone for %v after %d answers", limit, what, left, asked)
				}
			})
		}
	}
}

// Without a Key, a client is the peer: an IPv4 address, an IPv6 /64.
func TestClientIsThePeer(t *testing.T) {
	for _, c := range []struct {
		story, first, second string
		same                 bool
	}{
		{"another port", "192.0.2.1:1000", "192.0.2.1:2000", true},
		{"another IPv4 address", "192.0.2.1:1000", "192.0.2.2:1000", false},
		{"IPv4 in IPv6", "192.0.2.1:1000", "[::ffff:192.0.2.1]:1000", true},
		{"another one in IPv6", "[::ffff:192.0.2.1]:1", "[::ffff:192.0.2.2]:1", false},
		{"the same /64", "[2001:db8::1]:1000", "[2001:db8::ffff:2]:1000", true},
		{"another /64", "[2001:db8::1]:1000", "[2001:db8:0:1::1]:1000", false},
		{"another interface", "[fe80::1%eth0]:1000", "[fe80::1%eth1]:1000", true},
		{"unix sockets", "@", "", true},
		{"a unix socket and an address", "@", "0.0.0.0:0", false},
	} {
		h := mustNew(t, RatePerClient(1e-3, 1), nil).Handler(accepts)
		for i, from := range []string{c.first, c.first, c.second} {
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = from
			admitted, want := answerTo(h, r).Code == http.StatusOK, i == 0 || i == 2 && !c.same
			if admitted != want {
				t.Errorf("%s: request %d, from %q: admitted %v, want %v", c.story, i, from, admitted, want)
			}
		}
	}
}

// A handler reads the ticket that a client brings, and knows whose it is.
func TestHandlerReadsTickets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inBubble(t)
		config := Config{
			Capacity: perSecond(1, 1), Pushback: undithered, Retries: Retries{Tickets: true, Secret: []byte("the secret of both")},
			Client: func(r *http.Request) string { return r.Header.Get("Api-Key") },
		}
		ask := func(g *Guard, user string, cookies ...*http.Cookie) *httptest.ResponseRecorder {
			r := httptest.NewRequest("GET", "/", nil)
			r.Header.Set("Api-Key", user)
			for _, c := range cookies {
				r.AddCookie(c)
			}
			return answerTo(g.Handler(accepts), r)
		}
		one, other := mustNew(t, config, nil), mustNew(t, config, nil)
		ask(one, "ann")
		cookies := ask(one, "bob").Result().Cookies()
		if len(cookies) != 1 {
			t.Fatalf("cookies are %v; want a ticket", cookies)
		}
		time.Sleep(time.Second)
		ask(other, "eve", cookies...) // another client's
		if s := other.backend.Stats(Now()); s.Redeemed != 0 || s.Worthless != 1 {
			t.Errorf("%d tickets redeemed and %d worthless after that of another client; want 0 and 1", s.Redeemed, s.Worthless)
		}
		time.Sleep(time.Second)
		if w := ask(other, "bob", cookies...); w.Code != http.StatusOK || other.backend.Stats(Now()).Redeemed != 1 {
			t.Errorf("answer is %d, %d tickets redeemed; want 200 and 1", w.Code, other.backend.Stats(Now()).Redeemed)
		}
	})
}

// A client that is admitted while others wait is warned.
func TestHandlerWarnsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inBubble(t)
		g := mustNew(t, Config{Capacity: perSecond(1, 1), Pushback: undithered, Client: func(r *http.Request) string { return r.URL.Path }}, nil)
		ask := func(path string) http.Header {
			return answerTo(g.Handler(accepts), httptest.NewRequest("GET", path, nil)).Header()
		}
		if h := ask("/ann"); h.Get("RateLimit") != "" {
			t.Errorf("RateLimit is %q where no client waits; want none", h.Get("RateLimit"))
		}
		for _, path := range []string{"/bob", "/cid", "/dan"} {
			if ask(path).Get("Retry-After") == "" {
				t.Errorf("%s is admitted; want it to wait", path)
			}
		}
		time.Sleep(time.Second)
		if h := ask("/bob"); h.Get("Retry-After") != "" || !strings.HasPrefix(h.Get("RateLimit"), `"capacity";r=1;t=`) {
			t.Errorf("the first of three that wait is answered %v; want it admitted, with a warning", h)
		}
	})
}

// Replicas that share something name clients and requests alike, and others do not.
func TestKeysAreThoseOfTheSecret(t *testing.T) {
	zone := Zone{Name: "z", Limit: limiter.Config{Rate: 1, Burst: 1}, Shared: true}
	request := func(c Config) Request {
		r := httptest.NewRequest("POST", "/pay", nil)
		r.Header.Set("User-Agent", "curl/8")
		return Must(New(c, nil)).request(r, 0, nil)
	}
	shared := Config{Zones: []Zone{zone}, Shared: true, Secret: []byte("0123456789abcdef")}
	other := shared
	other.Secret = []byte("0123456789abcdeg")
	a, b, c := request(shared), request(shared), request(other)
	if a.Client != b.Client || a.Keys[0] != b.Keys[0] {
		t.Errorf("two replicas see %+v and %+v", a, b)
	}
	if a.Client == c.Client || a.Keys[0] == c.Keys[0] {
		t.Errorf("two secrets make %+v and %+v", a, c)
	}
}

// empty takes what there is, and lets a few new clients wait, so that a backlog
// stands.
func empty(g *Guard, now time.Duration) {
	for i := range 60 {
		g.Admit(now, Request{Client: limiter.Key(int(now) + i)}) // other new clients each time
	}
}

func bearer(client limiter.Key, ticket string) Request {
	return Request{Client: client, ClientID: []byte{byte(client)}, Ticket: ticket}
}

// Shields of one process, and those of one secret, are different issuers: a ticket of one is
// worth nothing to another. A reload honors it, but not again. Before its time its client is told the rest.
func TestTicketIsOfOneShield(t *testing.T) {
	const now = time.Hour
	config := func(secret []byte, issuer string) Config {
		return Config{Capacity: perSecond(10, 5), Retries: Retries{Tickets: true, Secret: secret, Issuer: issuer}}
	}
	shared := []byte("the secret of all shields")
	for _, c := range []struct {
		name         string
		giver, taker Config
		reload       bool // the taker works on the giver's State
		honored      bool
	}{
		{"a replica", config(shared, "shop"), config(shared, "shop"), false, true},
		{"another secret", config([]byte("another secret of 16"), "shop"), config(shared, "shop"), false, false},
		{"another shield", config(shared, "shop"), config(shared, "blog"), false, false},
		{"one without a name", config(shared, "shop"), config(shared, ""), false, false},
		{"another in the process", config(nil, "shop"), config(nil, "blog"), false, false},
		{"another without a name", config(nil, ""), config(nil, ""), false, false},
		{"a reload", config(nil, "shop"), config(nil, "shop"), true, true},
	} {
		giving, taking := new(State), new(State)
		giver := mustNew(t, c.giver, giving)
		empty(giver, now)
		d := giver.Admit(now, bearer(7, ""))
		if d.Admit || d.Ticket == "" {
			t.Fatalf("%s: %+v, want a rejection with a ticket", c.name, d)
		}
		if c.reload {
			taking = giving
		}
		due := now + d.Wait
		if c.honored && !c.reload {
			other := mustNew(t, c.taker, nil)
			empty(other, due-3*time.Second)
			if early := other.Admit(due-3*time.Second, bearer(7, d.Ticket)); early.Reason != Early || (early.Wait-3*time.Second).Abs() > time.Second {
				t.Errorf("%s, 3 s before its time: %+v, want told the rest", c.name, early)
			}
		}
		for i, taker := range []Config{c.taker, config([]byte("a newer secret here"), "shop"), c.taker} {
			g := mustNew(t, taker, taking)
			empty(g, due) // so that a backlog stands
			back := bearer(7, d.Ticket)
			back.Client = limiter.Key(1 + i) // nothing but the ticket is to speak for it
			g.Admit(due, back)
			redeemed := 0
			if c.honored {
				redeemed = 1
			}
			if got := taking.Backend.Stats(due); int(got.Redeemed) != redeemed || int(got.Worthless) != i+1-redeemed {
				t.Errorf("%s, reload %d: %d honored, %d worthless; want it honored once: %v", c.name, i, got.Redeemed, got.Worthless, c.honored)
			}
		}
	}
}

func TestDeadline(t *testing.T) {
	for _, c := range []struct {
		headers []string
		want    time.Duration
	}{
		{nil, 0},
		{[]string{"grpc-timeout", "250m"}, 250 * ms},
		{[]string{"grpc-timeout", "2S"}, 2 * time.Second},
		{[]string{"grpc-timeout", "99999999H"}, 1 << 62 / time.Hour * time.Hour},
		{[]string{"grpc-timeout", "1u"}, time.Microsecond},
		{[]string{"grpc-timeout", "7n"}, 7},
		{[]string{"grpc-timeout", "3M"}, 3 * time.Minute},
		{[]string{"grpc-timeout", "100000000m"}, 0}, // nine digits
		{[]string{"grpc-timeout", "-1S"}, 0},
		{[]string{"grpc-timeout", "1s"}, 0},
		{[]string{"grpc-timeout", "S"}, 0},
		{[]string{"x-envoy-expected-rq-timeout-ms", "1500"}, 1500 * ms},
		{[]string{"x-envoy-expected-rq-timeout-ms", "1.5"}, 0},
		{[]string{"x-request-timeout", "2.5"}, 2500 * ms},
		{[]string{"x-request-timeout", "300ms"}, 300 * ms},
		{[]string{"x-request-timeout", "0"}, 0},
		{[]string{"x-request-timeout", "-3"}, 0},
		{[]string{"x-request-timeout", "NaN"}, 0},
		{[]string{"x-request-timeout", "1e300"}, 0},
		{[]string{"x-request-timeout", "soon"}, 0},
		{[]string{"x-request-timeout", "2", "grpc-timeout", "1S"}, time.Second},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		for i := 0; i < len(c.headers); i += 2 {
			r.Header.Set(c.headers[i], c.headers[i+1])
		}
		want := c.want
		if want > 0 {
			want += min(time.Hour, 1<<63-1-want)
		}
		if got := Deadline(r, time.Hour); got != want {
			t.Errorf("%v: %v, want %v", c.headers, got, want)
		}
	}
}

func TestDeadlineOfTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inBubble(t)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		r := httptest.NewRequestWithContext(ctx, "GET", "/", nil)
		r.Header.Set("Grpc-Timeout", "4S")
		time.Sleep(time.Second)
		now := Now()
		if got := Deadline(r, now) - now; got != 2*time.Second {
			t.Errorf("%v, want the 2s that are left", got)
		}
		time.Sleep(time.Minute)
		now = Now()
		if got := Deadline(r, now) - now; got != 1 {
			t.Errorf("%v, want as good as nothing", got)
		}
	})
}

// The time of day of any instant is by the clock as it shows now, and not by what it showed when the process began.
func TestTimeOfDayFollowsTheClock(t *testing.T) {
	was := clock
	defer func() { clock = was }()
	for _, by := range []time.Duration{time.Hour, -time.Hour, 0} {
		clock = func() time.Time { return was().Round(0).Add(by) }
		for _, ahead := range []time.Duration{0, time.Minute, -time.Minute} {
			if off := At(Now() + ahead).Sub(time.Now().Round(0).Add(by + ahead)).Abs(); off > time.Second {
				t.Errorf("after a step by %v, %v from now is off by %v", by, ahead, off)
			}
		}
	}
}
