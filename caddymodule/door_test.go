package caddymodule

import (
	"bufio"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/herdshield/shield"
)

// withDoor is a server's wrapper.
const withDoor = `"listener_wrappers": [{"wrapper": "shield"}],`

// overQuota is a shield that admits one request an hour of each client.
func overQuota(more string) string {
	return `{"handler": "shield", "name": "s", "zones": [{"name": "z", "rate": 1, "per": "1h", "burst": 1}] ` + more + `}`
}

// atDoor returns how many refusals the door has answered.
func (r *rig) atDoor() uint64 { return r.app().configured.shields[0].record.atDoor.Load() }

// exchange sends a request and returns the answer, byte for byte.
func (w *wire) exchange(request string) string {
	w.Helper()
	if _, err := io.WriteString(w.Conn, request); err != nil {
		w.Fatal(err)
	}
	return w.next(request)
}

// next reads one answer.
func (w *wire) next(request string) string {
	w.Helper()
	var b strings.Builder
	length := 0
	for {
		line, err := w.r.ReadString('\n')
		if b.WriteString(line); err != nil {
			w.Fatalf("after %q: %v", b.String(), err)
		}
		if n, ok := strings.CutPrefix(line, "Content-Length: "); ok {
			length, _ = strconv.Atoi(strings.TrimSpace(n))
		}
		if line == "\r\n" {
			break
		}
	}
	if strings.HasPrefix(request, "HEAD") {
		return b.String()
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(w.r, body); err != nil {
		w.Fatalf("after %q: %v", b.String(), err)
	}
	return b.String() + string(body)
}

// changing is what may differ between two answers: the date and the wait.
var changing = regexp.MustCompile(`(?m)(^Date: .*|Retry-After: |Retry-After-Ms: |t=|Refresh: |Come back in |again automatically in |send it again in |"retry-after":|Content-Length: )\d*`)

func unchanging(answer string) string {
	return changing.ReplaceAllStringFunc(answer, func(s string) string {
		return strings.TrimRight(regexp.MustCompile(`^Date.*`).ReplaceAllString(s, "Date"), "0123456789")
	})
}

const (
	get     = "GET /a HTTP/1.1\r\nHost: h\r\nUser-Agent: test\r\n\r\n"
	closing = "GET /a HTTP/1.1\r\nHost: h\r\nUser-Agent: test\r\nConnection: close\r\n\r\n"
)

// TestDoorAnswers compares answers at the door with those of the handler.
func TestDoorAnswers(t *testing.T) {
	const page = "GET / HTTP/1.1\r\nHost: h\r\nSec-Fetch-Mode: navigate\r\n\r\n"
	for _, c := range []struct {
		name, handlers, request string
		want                    bool // that the door answers
	}{
		{"problem", overQuota(""), get, true},
		{"another server's headers", `{"handler": "headers", "response": {"set": {"Strict-Transport-Security": ["max-age=31536000"], "X-Frame-Options": ["DENY"]}}},` + overQuota(""), get, true},
		{"deferred headers", `{"handler": "headers", "response": {"deferred": true, "set": {"Access-Control-Allow-Origin": ["*"]}}},` + overQuota(""), get, true},
		{"a page", overQuota(""), page, true},
		{"HEAD", overQuota(""), strings.Replace(get, "GET", "HEAD", 1), true},
		{"no body", overQuota(`, "pushback": {"body": "none"}`), get, true},
		{"text", overQuota(`, "pushback": {"body": "text"}`), get, true},
		{"a rewritten path", `{"handler": "rewrite", "uri": "/b"},` + overQuota(""), get, true},
		{"off", overQuota(`, "door": false`), get, false},
		{"a header that differs", `{"handler": "headers", "response": {"set": {"X-Id": ["{http.request.uuid}"]}}},` + overQuota(""), get, false},
		{"the wait in a header", `{"handler": "headers", "response": {"deferred": true, "set": {"X-Wait": ["{http.shield.retry_after_ms}"]}}},` + overQuota(""), get, false},
		{"a cookie", `{"handler": "headers", "response": {"set": {"Set-Cookie": ["a=b"]}}},` + overQuota(""), get, false},
		{"a changed request", `{"handler": "headers", "request": {"set": {"X-More": ["1"]}}},` + overQuota(""), get, false},
		{"an encoded body", `{"handler": "encode", "encodings": {"gzip": {}}, "minimum_length": 1, "match": {"headers": {"Content-Type": ["*"]}}},` + overQuota(""), strings.Replace(get, "\r\n\r\n", "\r\nAccept-Encoding: gzip\r\n\r\n", 1), false},
		{"an error as for others", overQuota(`, "pushback": {"respond": "error"}`), get, false},
		{"POST", overQuota(""), "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", false},
		{"Shield-Retry", overQuota(""), strings.Replace(get, "\r\n\r\n", "\r\nShield-Retry: ?1\r\n\r\n", 1), false},
		{"two shields", `{"handler": "shield", "name": "outer", "zones": [{"name": "zo", "rate": 1000}]},` + overQuota(""), get, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, setup{server: withDoor, handlers: c.handlers + "," + respondOK})
			w := r.dial()
			w.exchange(c.request)
			want := unchanging(w.exchange(c.request))
			for i := range 20 {
				if got := unchanging(w.exchange(c.request)); c.want && got != want {
					t.Fatalf("answer %d: %s\nwant %s", i, got, want)
				}
			}
			n := uint64(0)
			for _, s := range r.app().configured.shields {
				n += s.record.atDoor.Load()
			}
			if got := n; got > 0 != c.want || c.want && got < 3 {
				t.Errorf("%d of 20 were refused at the door, want %v", got, c.want)
			}
		})
	}
}

// TestDoorSamples has a request of each client go the usual way once in a while.
func TestDoorSamples(t *testing.T) {
	var seen atomic.Int64
	count := newHook(t, func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
		seen.Add(1)
		return next.ServeHTTP(w, r)
	})
	r := start(t, setup{server: withDoor, handlers: count + "," + overQuota("") + "," + respondOK})
	w, sent := r.dial(), 0
	for began := time.Now(); time.Since(began) < memoLife*5/2; sent++ {
		w.exchange(get)
	}
	if n := seen.Load(); n < 5 || n > 30 || uint64(sent) != r.atDoor()+uint64(n) {
		t.Errorf("of %d requests in %v, %d went the usual way and %d did not; want 3 at first, and 1 after each %v, or a few more", sent, memoLife*5/2, n, r.atDoor(), memoLife)
	}
}

// TestDoorOfConnections says on which connections a memo counts.
func TestDoorOfConnections(t *testing.T) {
	cert := newCertificate(t)
	t.Run("new ones", func(t *testing.T) {
		s := setup{server: withDoor, handlers: overQuota("") + "," + respondOK}
		r := start(t, s)
		for _, request := range []string{get, closing} {
			before := r.atDoor()
			for range 10 {
				w := r.dial()
				w.exchange(request)
				if request == closing {
					if _, err := w.r.ReadByte(); err != io.EOF {
						t.Errorf("after the answer: %v, want the end", err)
					}
				}
				_ = w.Close()
				dawdle(5 * time.Millisecond) // net/http looks for the next request
			}
			if n := r.atDoor() - before; n < 6 {
				t.Errorf("%d of 10 were refused at the door", n)
			}
		}
		w := r.dial() // this one waits at the door
		w.exchange(get)
		if other := r.dial().exchange(strings.Replace(get, "/a", "/other", 1)); !strings.Contains(other, " 429 ") {
			t.Errorf("another request is answered %q", other)
		}
		r.load(s)
		if b, err := w.r.ReadByte(); err == nil {
			t.Errorf("a reload sends %q, want the end", b)
		}
	})
	t.Run("the preface of HTTP/2 after answers", func(t *testing.T) {
		r := start(t, setup{server: withDoor + `"protocols": ["h1", "h2"],`, handlers: overQuota("") + "," + respondOK})
		for range 20 { // what all connections are answered comes on two
			r.dial().exchange(get)
		}
		w := r.dial()
		w.exchange(get)
		_, _ = io.WriteString(w.Conn, preface)
		if b, err := w.r.ReadByte(); err != io.EOF {
			t.Errorf("it is answered %q, %v; want the end", b, err)
		}
	})
	t.Run("TLS", func(t *testing.T) {
		r := start(t, setup{apps: cert.apps, server: cert.server + withDoor, handlers: overQuota("") + "," + respondOK})
		for range 2 { // another connection may be another client
			before := r.atDoor()
			conn, err := tls.Dial("tcp", r.addr, cert.trust)
			if err != nil {
				t.Fatal(err)
			}
			w := &wire{t, conn, bufio.NewReader(conn)}
			want := ""
			for i := range 20 {
				got := unchanging(w.exchange(get))
				if i > 0 && want != "" && got != want {
					t.Errorf("answer %d: %s\nwant %s", i, got, want)
				}
				if strings.Contains(got, "429") {
					want = got
				}
			}
			if n := r.atDoor() - before; n < 3 || n > 17 {
				t.Errorf("%d of 20 were refused at the door, want 3 to 17", n)
			}
			_ = conn.Close()
		}
	})
	t.Run("TLS is not spoken", func(t *testing.T) {
		answers := map[string]string{}
		for _, wrapper := range []string{withDoor, ""} {
			r := start(t, setup{apps: cert.apps, server: cert.server + wrapper, handlers: overQuota("") + "," + respondOK})
			for _, request := range []string{get, "POST / HTTP/1.1\r\n\r\n", "hello", ""} {
				w := r.dial()
				_, _ = io.WriteString(w.Conn, request)
				_ = w.Conn.(*net.TCPConn).CloseWrite()
				answer, _ := io.ReadAll(w.r) // a reset ends it, too
				if without, is := answers[request]; is && without != string(answer) {
					t.Errorf("%q is answered %q, with a door %q", request, answer, without)
				}
				answers[request] = string(answer)
			}
		}
		if !strings.Contains(answers[get], "HTTPS server") {
			t.Errorf("it is answered %q", answers[get])
		}
	})
	t.Run("a wrapper that reads ahead", func(t *testing.T) { // it would ask for a request before the last is answered
		server := strings.Replace(withDoor, "]", `, {"wrapper": "shield_test_ahead"}]`, 1)
		r := start(t, setup{server: server, handlers: overQuota("") + "," + respondOK})
		w := r.dial()
		for range 20 {
			w.exchange(get)
		}
		if n := r.atDoor(); n != 0 {
			t.Errorf("%d of 20 were refused at the door, want 0", n)
		}
	})
	t.Run("HTTP/2", func(t *testing.T) {
		r := start(t, setup{apps: cert.apps, server: cert.server + withDoor + `"protocols": ["h1", "h2"],`, handlers: overQuota("") + "," + respondOK})
		transport := &http.Transport{TLSClientConfig: cert.trust.Clone(), ForceAttemptHTTP2: true}
		defer transport.CloseIdleConnections()
		for i := range 10 {
			resp, err := (&http.Client{Transport: transport}).Get("https://" + r.addr)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if want := map[bool]int{true: 200, false: 429}[i == 0]; resp.ProtoMajor != 2 || resp.StatusCode != want {
				t.Errorf("answer %d is %s %d, want HTTP/2 %d", i, resp.Proto, resp.StatusCode, want)
			}
		}
		if n := r.atDoorH2(); n < 3 {
			t.Errorf("%d of 10 were refused at the door", n)
		}
	})
	t.Run("PROXY protocol", func(t *testing.T) {
		server := strings.Replace(withDoor, "[", `[{"wrapper": "proxy_protocol", "allow": ["127.0.0.0/8"], "fallback_policy": "REQUIRE"},`, 1)
		r := start(t, setup{server: server, handlers: overQuota("") + "," + respondOK})
		r.dial() // it says nothing, and others must not wait for it
		for _, client := range []string{"192.0.2.1", "192.0.2.2"} {
			w := r.dial()
			w.send("PROXY TCP4 %s 127.0.0.1 1234 80\n", client)
			first := w.exchange(get)
			for range 19 {
				w.exchange(get)
			}
			if !strings.Contains(first, " 200 ") {
				t.Errorf("%s is answered %q, though it is a new client", client, first)
			}
		}
		if n := r.atDoor(); n < 6 || n > 34 {
			t.Errorf("%d of 38 were refused at the door", n)
		}
	})
}

// TestDoorUpgrades upgrades a connection after refusals, with data that comes before the answer.
func TestDoorUpgrades(t *testing.T) {
	echo := newHook(t, func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
		if r.Header.Get("Upgrade") == "" {
			return next.ServeHTTP(w, r)
		}
		dawdle(20 * time.Millisecond) // the data comes
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return err
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
		_, _ = io.CopyN(conn, rw, int64(len(preface)))
		return nil
	})
	r := start(t, setup{server: withDoor, handlers: echo + "," + overQuota("") + "," + respondOK})
	w := r.dial()
	for range 10 {
		w.exchange(get)
	}
	_, _ = io.WriteString(w.Conn, strings.Replace(get, "\r\n\r\n", "\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n", 1))
	if got := w.exchange(preface[:10]); !strings.Contains(got, " 101 ") {
		t.Fatalf("the answer is %q", got)
	}
	_, _ = io.WriteString(w.Conn, preface[10:])
	if got, err := io.ReadAll(w.r); string(got) != preface {
		t.Errorf("the echo is %q, %v; want %q", got, err, preface)
	}
	if r.atDoor() == 0 {
		t.Error("the door has answered nothing")
	}
}

// TestDoorIdles keeps a connection open while the door answers, and ends it when it is idle.
func TestDoorIdles(t *testing.T) {
	const idle = 300 * time.Millisecond
	r := start(t, setup{server: withDoor + fmt.Sprintf(`"idle_timeout": %d,`, idle), handlers: overQuota("") + "," + respondOK})
	w := r.dial()
	for began := time.Now(); time.Since(began) < 3*idle; dawdle(idle / 10) {
		w.exchange(get)
	}
	if n := r.atDoor(); n < 5 {
		t.Errorf("%d were refused at the door", n)
	}
	began := time.Now()
	if b, err := w.r.ReadByte(); err != io.EOF || time.Since(began) < idle/2 {
		t.Errorf("after %v: %q, %v; want the end after %v", time.Since(began), b, err, idle)
	}
}

// TestDoorTellsNoPortOfAnother has answers with the port of the peer in them, on two connections of one
// address in turn: each gets its own.
func TestDoorTellsNoPortOfAnother(t *testing.T) {
	r := start(t, setup{server: withDoor, handlers: `{"handler": "headers", "response": {"set": {"X-Peer": ["{http.request.remote}"]}}},` + overQuota(`, "pushback": {"dither": false}`) + "," + respondOK})
	a, b := r.dial(), r.dial()
	for range 30 {
		for _, w := range []*wire{a, a, a, b} {
			if got, want := w.exchange(get), "X-Peer: "+w.LocalAddr().String()+"\r\n"; !strings.Contains(got, want) {
				t.Fatalf("the answer on another connection: %s, want %s", got, want)
			}
		}
	}
	if r.atDoor() < 30 {
		t.Errorf("%d of 120 were refused at the door: it shows little", r.atDoor())
	}
}

// TestDoorTellsClientsApart has a handler before the shield make a part of the key of each connection: one that
// is new is not refused for what others have used up.
func TestDoorTellsClientsApart(t *testing.T) {
	r := start(t, setup{server: withDoor, handlers: `{"handler": "vars", "conn": "{http.request.remote.port}"}, {"handler": "shield", "name": "s", "pushback": {"dither": false},
		"zones": [{"name": "z", "key": "{http.vars.conn}", "rate": 1, "per": "1h", "burst": 1}]},` + respondOK})
	for range 10 {
		w := r.dial()
		for i := range 5 {
			if got := w.exchange(get); strings.Contains(got, " 200 ") != (i == 0) {
				t.Fatalf("request %d of a connection is answered %.20q", i+1, got)
			}
		}
	}
}

// TestDoorForgets says which memos count, and which make room.
func TestDoorForgets(t *testing.T) {
	h := &Handler{atDoor: new(atDoor)}
	memos, now := new(memos), time.Hour
	one := &memo{head: []byte(get), sum: 1, h: h, since: now, until: now + memoLife, proven: true}
	other := &memo{head: []byte("GET /b"), sum: 1 + uint64(len(memos.slots)), h: h, since: now, until: now + memoLife, proven: true}
	memos.keep(one)
	memos.keep(other)
	if memos.find(1) != one {
		t.Error("a memo that counts has made room")
	}
	other.until = one.until + memoLife
	memos.keep(other)
	if memos.find(1) != other {
		t.Error("a memo that does not count any more has made no room")
	}
	if !one.counts(&one.origin, 0, one.head, now) || one.counts(&one.origin, 0, one.head, now+memoLife) ||
		one.counts(&one.origin, 0, other.head, now) || one.counts(&origin{serial: 1}, 0, one.head, now) {
		t.Error("a memo counts for its life, its bytes and its origin, and for nothing else")
	}
	overload := *one
	overload.page.policy, overload.proven = -1, false
	overload.compare(one)
	if d := (shield.Decision{Zone: 0}); overload.proven || !overload.alive(0, now) || overload.telling(&d, 0, now) == nil || overload.telling(&d, 0, now).page.policy != 0 {
		t.Error("the answer for another policy is forgotten")
	}
	if d := (shield.Decision{Zone: -1}); overload.telling(&d, 0, now) != nil {
		t.Error("an answer counts that came once")
	}
	if overload.compare(&overload); !overload.isFor(overload.by, now) || overload.isFor(overload.by+1, now) {
		t.Error("the same answer on one connection is for that connection")
	}
	elsewhere := memo{by: 1, page: overload.page, until: overload.until}
	if elsewhere.compare(&overload); !elsewhere.isFor(2, now) {
		t.Error("the same answer on two connections is not for all")
	}
	guard, r := shield.Must(shield.New(shield.Config{}, nil)), httptest.NewRequest(http.MethodGet, "/", nil)
	d := guard.Admit(now, shield.Request{})
	late := newDraft(now+memoLife/2, h, r, new(shield.Request), nil, &d).memo // of a refusal that was held back
	late.proven = true
	if !late.counts(&late.origin, 0, nil, now+memoLife) {
		t.Error("a memo does not live for as long after its answer")
	}
	if h.atDoor.forget(now + memoLife/4); late.counts(&late.origin, 0, nil, now+memoLife) {
		t.Error("a memo counts whose request was decided on before a change, and answered after it")
	}
	_ = h.Cleanup()
	if one.counts(&one.origin, 0, one.head, now) {
		t.Error("a memo counts after its handler's end")
	}
}

// aheadWrapper makes connections that read ahead.
type aheadWrapper struct{}

func init() { caddy.RegisterModule(aheadWrapper{}) }

func (aheadWrapper) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.listeners.shield_test_ahead", New: func() caddy.Module { return new(aheadWrapper) }}
}

func (aheadWrapper) WrapListener(l net.Listener) net.Listener { return aheadListener{l} }

type aheadListener struct{ net.Listener }

func (l aheadListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return aheadConn{conn, bufio.NewReader(conn)}, nil
}

type aheadConn struct {
	net.Conn
	r *bufio.Reader
}

func (c aheadConn) Read(p []byte) (int, error) { return c.r.Read(p) }

// TestDoorKeepsTheQuota hammers a quota, and compares what was admitted with what it allows.
func TestDoorKeepsTheQuota(t *testing.T) {
	t.Run("the same request", func(t *testing.T) { keepsTheQuota(t, get, "") })
	t.Run("different requests", func(t *testing.T) { keepsTheQuota(t, "GET /%d HTTP/1.1\r\nHost: h\r\nUser-Agent: %[1]d\r\n\r\n", "") })
	t.Run("new connections", func(t *testing.T) { keepsTheQuota(t, closing, `, "pushback": {"dither": false}`) })
	t.Run("new connections, held", func(t *testing.T) { keepsTheQuota(t, closing, "") })
	t.Run("at once", func(t *testing.T) {
		keepsTheQuota(t, "GET /%d HTTP/1.1\r\nHost: h\r\n\r\n", `, "pushback": {"dither": false}`)
	})
}

func keepsTheQuota(t *testing.T, request, more string) {
	const rate, burst = 100, 20
	shield := fmt.Sprintf(`{"handler": "shield", "name": "s", "zones": [{"name": "z", "rate": %d, "burst": %d}], "concurrency": {"limit": 100}%s}`, rate, burst, more)
	r := start(t, setup{server: withDoor, handlers: shield + "," + respondOK})
	began := time.Now()
	admitted, answers := hammer(r, 8, request, func() bool { return time.Since(began) < 1500*time.Millisecond })
	most := burst + rate*time.Since(began).Seconds()
	if float64(admitted) > most || float64(admitted) < 0.7*most-10 && float64(answers) > 20*most { // a busy machine asks for less
		t.Errorf("%d were admitted, want about %.0f", admitted, most)
	}
	s := r.stats()
	if s.Admitted != uint64(admitted) || s.Admitted+s.Refused[1] != uint64(answers) {
		t.Errorf("admitted %d and refused %d are counted, %d of %d were admitted", s.Admitted, s.Refused[1], admitted, answers)
	}
	if n := r.atDoor(); 2*n < uint64(answers-admitted) {
		t.Errorf("%d of %d were refused at the door", n, answers-admitted)
	}
	t.Logf("%d answers, %d admitted, %d at the door", answers, admitted, r.atDoor())
	r.drains()
}

// hammer sends a request on so many connections, with a number in it if it has a place for one,
// and returns how many were admitted and answered.
func hammer(r *rig, conns int, request string, on func() bool) (admitted, answers int64) {
	var ok, all, sent atomic.Int64
	var clients sync.WaitGroup
	for range conns {
		clients.Go(func() {
			for on() {
				conn, err := net.Dial("tcp", r.addr)
				if err != nil {
					continue
				}
				_ = conn.SetDeadline(time.Now().Add(patience))
				for in := bufio.NewReader(conn); on(); {
					one := request
					if strings.Contains(request, "%") {
						one = fmt.Sprintf(request, sent.Add(1))
					}
					if _, err := io.WriteString(conn, one); err != nil {
						break
					}
					resp, err := http.ReadResponse(in, nil)
					if err != nil {
						break
					}
					if _, err := io.Copy(io.Discard, resp.Body); err != nil {
						break
					}
					all.Add(1)
					if resp.StatusCode == http.StatusOK {
						ok.Add(1)
					}
				}
				_ = conn.Close()
			}
		})
	}
	clients.Wait()
	return ok.Load(), all.Load()
}

// TestDoorOverReloads changes the config under a hammer: nothing is left of any.
func TestDoorOverReloads(t *testing.T) {
	t.Run("the same connections", func(t *testing.T) { overReloads(t, get) })
	t.Run("new connections", func(t *testing.T) { overReloads(t, closing) })
}

func overReloads(t *testing.T, request string) {
	shield := `{"handler": "shield", "name": "s", "zones": [{"name": "z", "rate": 300, "burst": 5}], "concurrency": {"limit": 3}, "capacity": {"rate": 250, "burst": 5}, "queue": {"size": 5}}`
	s := setup{server: withDoor, handlers: shield + "," + respondOK}
	r := start(t, s)
	began := time.Now()
	var done atomic.Bool
	finished := make(chan struct{})
	var admitted, answers int64
	go func() {
		admitted, answers = hammer(r, 8, request, func() bool { return !done.Load() })
		close(finished)
	}()
	for range 4 {
		dawdle(300 * time.Millisecond)
		r.load(s)
	}
	dawdle(200 * time.Millisecond)
	done.Store(true)
	<-finished
	if most := 5 + 250*time.Since(began).Seconds(); float64(admitted) > most {
		t.Errorf("%d were admitted, want at most %.0f", admitted, most)
	}
	r.drains()
	eventually(t, "no refusal is held", func() bool { return r.stats().Held == 0 })
	if n := r.atDoor(); n == 0 || answers == 0 {
		t.Errorf("%d of %d answers came from the door", n, answers)
	}
	t.Logf("%d answers, %d admitted, %d at the door", answers, admitted, r.atDoor())
}

// TestDoorKeepsPromises has clients ask again and again before their time, which the door answers, and
// then at the time that they were told last.
func TestDoorKeepsPromises(t *testing.T) {
	const clients = 4
	r := start(t, setup{server: withDoor, handlers: fmt.Sprintf(`{"handler": "shield", "name": "s", "capacity": {"rate": 2, "burst": %d},
		"retries": {"key": "{http.request.header.X-Key}"}, "pushback": {"dither": false}},`, clients) + respondOK})
	for range clients {
		r.wantStatus(http.StatusOK, "/") // uses the burst
	}
	type client struct {
		*wire
		due, next time.Time
		asks      int
		done      bool
	}
	var all [clients]client
	for i := range all {
		all[i].wire = r.dial()
	}
	before := r.atDoor()
	for left := clients; left > 0; dawdle(5 * time.Millisecond) {
		for i := range all {
			c := &all[i]
			sent := time.Now()
			onTime := !c.due.IsZero() && sent.After(c.due)
			if c.done || !onTime && (c.asks > 6 || sent.Before(c.next)) {
				continue
			}
			c.asks, c.next = c.asks+1, sent.Add(300*time.Millisecond) // the transit of the answer, see awaitTransit
			answer := c.exchange(fmt.Sprintf("GET / HTTP/1.1\r\nHost: h\r\nX-Key: %d\r\n\r\n", i))
			if strings.Contains(answer, " 200 ") {
				c.done = true
				left--
				continue
			}
			_, ms, _ := strings.Cut(answer, "Retry-After-Ms: ")
			ms, _, _ = strings.Cut(ms, "\r\n")
			n, err := strconv.Atoi(ms)
			if err != nil || onTime {
				t.Fatalf("client %d comes at its time: %v, and is answered %q", i, onTime, answer)
			}
			c.due = time.Now().Add(time.Duration(n) * time.Millisecond)
		}
	}
	if n := r.atDoor() - before; n < clients {
		t.Errorf("%d early requests were refused at the door", n)
	}
	if s := r.shieldStatus("s"); s.Line.Broken > 0 || s.Line.Kept+s.Line.Late < clients {
		t.Errorf("%+v; want all promises kept", s.Line)
	}
}

// TestDoorAnswersSlowReaders has a client read nothing until it has sent all requests.
func TestDoorAnswersSlowReaders(t *testing.T) {
	const requests = 1000
	p := startPair(t, `{"path": ["/ok"]}`)
	for _, addr := range []string{p.bare, p.door} {
		w := (&rig{T: t}).dialTo("tcp", addr)
		_ = w.Conn.(*net.TCPConn).SetReadBuffer(128 << 10)
		for range 4 {
			w.exchange(get)
		}
		want := unchanging(w.exchange(get))
		for range requests { // in chunks of their own, until the server waits for the client
			dawdle(100 * time.Microsecond)
			if _, err := io.WriteString(w.Conn, get); err != nil {
				t.Fatal(err)
			}
		}
		for i := range requests {
			if got := unchanging(w.next(get)); got != want {
				t.Fatalf("answer %d is %q, want %q", i, got, want)
			}
		}
	}
	_, atDoor := p.refused(t)
	t.Logf("%d of %d were refused at the door", atDoor[0], requests)
	if atDoor[0] < 30 {
		t.Errorf("%d of %d were refused at the door", atDoor[0], requests)
	}
}

// TestDoorGivesBack has the door admit a request that never reaches its shield.
func TestDoorGivesBack(t *testing.T) {
	var astray atomic.Bool
	hook := newHook(t, func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
		if astray.Load() {
			w.WriteHeader(http.StatusNoContent)
			return nil
		}
		return next.ServeHTTP(w, r)
	})
	shield := `{"handler": "shield", "name": "s", "zones": [{"name": "z", "rate": 5, "burst": 1}], "concurrency": {"limit": 1}}`
	r := start(t, setup{server: withDoor, handlers: hook + "," + shield + "," + respondOK})
	for _, ends := range []func(*wire){
		func(w *wire) { w.exchange(get) },
		func(w *wire) { _ = w.Close() },
	} {
		w := r.dial()
		for before := r.atDoor(); r.atDoor() == before; {
			w.exchange(get)
		}
		astray.Store(true)
		for began := time.Now(); !strings.Contains(w.exchange(get), " 204 "); {
			if time.Since(began) > 900*time.Millisecond { // the memo is too old: refuse again
				began = time.Now()
				astray.Store(false)
				w.exchange(get)
				w.exchange(get)
				astray.Store(true)
			}
		}
		ends(w)
		astray.Store(false)
		r.drains()
	}
}

// TestDoorHolds has refusals held back on connections of the door, and notices clients that leave.
func TestDoorHolds(t *testing.T) {
	var seen atomic.Int64
	count := newHook(t, func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
		seen.Add(1)
		return next.ServeHTTP(w, r)
	})
	shield := `{"handler": "shield", "name": "s", "capacity": {"rate": 100, "burst": 20}, "retries": {"key": "{http.request.header.X-Key}"}}`
	r := start(t, setup{server: withDoor, handlers: count + "," + shield + "," + respondOK})
	var done atomic.Bool
	var admitted, answers int64
	finished := make(chan struct{})
	go func() {
		admitted, answers = hammer(r, 4, get, func() bool { return !done.Load() })
		close(finished)
	}()
	const leavers = 300
	held, clients := 0, sync.WaitGroup{}
	for i := range leavers {
		clients.Go(func() {
			w := r.dial()
			defer w.Close()
			_, _ = io.WriteString(w.Conn, fmt.Sprintf("GET / HTTP/1.1\r\nHost: h\r\nX-Key: %d\r\n\r\n", i))
			if i%2 == 0 {
				dawdle(2 * time.Millisecond)
				return
			}
			_ = w.Conn.(*net.TCPConn).CloseWrite()
			answer, _ := io.ReadAll(w.r)
			if text := string(answer); !strings.HasPrefix(text, "HTTP/1.1 503") && !strings.HasPrefix(text, "HTTP/1.1 499") && !strings.HasPrefix(text, "HTTP/1.1 200") {
				t.Errorf("a client that sends no more is answered %q", text)
			}
		})
		held = max(held, r.stats().Held)
		dawdle(3 * time.Millisecond)
	}
	clients.Wait()
	done.Store(true)
	<-finished
	eventually(t, "no refusal is held", func() bool { return r.stats().Held == 0 })
	s := r.stats()
	if held == 0 || s.Lost == 0 || r.atDoor() < uint64(answers-admitted)/2 {
		t.Errorf("%d were held at once, %d clients left, and of %d answers to others %d came from the door", held, s.Lost, answers, r.atDoor())
	}
	refused := uint64(0)
	for _, n := range s.Refused {
		refused += n
	}
	if all := s.Admitted + refused; all < leavers || uint64(seen.Load()) > all {
		t.Errorf("%d of %d went the usual way", seen.Load(), all)
	}
	t.Logf("held at once %d, lost %d, admitted %d, refused %d, usual way %d, answered at the door %d", held, s.Lost, s.Admitted, refused, seen.Load(), r.atDoor())
}

// A deafConn is one whose client does not read: writes end with their deadline.
type deafConn struct {
	net.Conn
	reads  string // again and again
	by     time.Time
	closed bool
}

func (c *deafConn) Read(p []byte) (int, error)          { return copy(p, c.reads), nil }
func (c *deafConn) SetReadDeadline(time.Time) error     { return nil }
func (c *deafConn) SetWriteDeadline(by time.Time) error { c.by = by; return nil }
func (c *deafConn) RemoteAddr() net.Addr                { return &net.TCPAddr{} }
func (c *deafConn) LocalAddr() net.Addr                 { return &net.TCPAddr{} }
func (c *deafConn) Close() error                        { c.closed = true; return nil }

func (c *deafConn) Write([]byte) (int, error) {
	if c.by.IsZero() {
		return 0, errors.New("a write without a deadline would never end")
	}
	return 0, os.ErrDeadlineExceeded
}

// refusedBefore returns a connection that has refused get before, with the answer of m.
func refusedBefore(t *testing.T, conn net.Conn, dither bool, m memo) *doorConn {
	r := start(t, setup{handlers: fmt.Sprintf(`{"handler": "shield", "name": "s", "capacity": {"rate": 1, "per": "1h", "burst": 1}, "pushback": {"dither": %v}},`, dither) + respondOK})
	r.get("/") // uses the capacity
	entry := r.app().configured.shields[0]
	m.h = &Handler{atDoor: new(atDoor), record: entry.record}
	m.h.use(entry.of.force.Load())
	c := newDoorConn(conn, new(memos))
	m.origin, m.head, m.since, m.until, m.proven = c.origin, []byte(get), shield.Now(), shield.Now()+memoLife, true
	c.memo.Store(&m)
	return c
}

// TestDoorEndsSlowReaders has clients not read their refusals.
func TestDoorEndsSlowReaders(t *testing.T) {
	deaf := &deafConn{reads: get}
	c := refusedBefore(t, deaf, false, memo{page: page{policy: -1, text: []byte("HTTP/1.1 503 x\r\n\r\n")}})
	if n, err := c.next(make([]byte, maxHead), true); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("HTTP/1.1: %d bytes and %v, want the end", n, err)
	}
	deaf = &deafConn{}
	h2 := newH2Door(newDoorConn(deaf, new(memos)), new(headBuffer), nil)
	if h2.out.tell(make([]byte, frameHead)); !deaf.closed {
		t.Error("HTTP/2: the connection is open")
	}
	if left := time.Until(deaf.by); left < readerTakes/2 || left > readerTakes {
		t.Errorf("HTTP/2: the client may take %v, want about %v", left, readerTakes)
	}
}

var connections = flag.Int("connections", 1000, "connections in TestDoorForgetsConnections; 100000 in long runs")

// TestDoorForgetsConnections has connections refused, keeps them open, and closes them, twice. It
// compares the memory of those with a door with that of those without. Many are pipes: sockets
// would need more files than most processes may have.
func TestDoorForgetsConnections(t *testing.T) {
	p, dial := freePair(t), func(addr string, from *net.TCPAddr) (net.Conn, error) {
		return (&net.Dialer{LocalAddr: from}).Dial("tcp", addr)
	}
	if *connections > 5000 {
		p, dial = pair{door: "pipes/door:1", bare: "pipes/bare:1"}, dialPipe
	}
	startPairAt(t, p, `{"path": ["/ok"]}`, certificate{})
	memory := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what pools have kept
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc + m.StackInuse)
	}
	before := map[string]float64{}
	for wave := range 2 {
		each := map[string]float64{}
		for _, addr := range []string{p.bare, p.door} {
			idle, goroutines := memory(), runtime.NumGoroutine()
			var open []net.Conn
			answer := make([]byte, 4096)
			for i := range *connections { // from many addresses: each has ports of its own
				conn, err := dial(addr, &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i/10000))})
				if err != nil {
					t.Fatal(err)
				}
				open = append(open, conn)
				for range 4 {
					_, _ = io.WriteString(conn, get)
					if _, err := conn.Read(answer); err != nil {
						t.Fatal(err)
					}
				}
			}
			each[addr] = (memory() - idle) / float64(*connections)
			for _, conn := range open {
				_ = conn.Close()
			}
			eventually(t, "the connections' goroutines end, but for idle greeters", func() bool { return runtime.NumGoroutine() <= goroutines+maxIdleGreeters+5 })
			if wave == 0 {
				before[addr] = memory()
			} else if now := memory(); now > 1.2*before[addr]+1<<20 {
				t.Errorf("after the second wave there are %.0f kB, after the first there were %.0f kB", now/1000, before[addr]/1000)
			}
		}
		t.Logf("%d connections: %.0f bytes each without a door, %.0f with it", *connections, each[p.bare], each[p.door])
		if each[p.door] > each[p.bare]+4096 {
			t.Errorf("a connection takes %.0f bytes with a door, and %.0f without", each[p.door], each[p.bare])
		}
	}
	if _, atDoor := p.refused(t); atDoor[0] < uint64(*connections) {
		t.Errorf("%d were refused at the door", atDoor[0])
	}
}

// TestDoorLogsHandshakes has clients that fail to shake hands.
func TestDoorLogsHandshakes(t *testing.T) {
	for sent, want := range map[string]string{get: errPlainHTTP.Error(), "hello": "first record does not look like a TLS handshake", "": "EOF"} {
		client, server := net.Pipe()
		log, noted := observer.New(zap.DebugLevel)
		c := tlsDoorConn{newDoorConn(tls.Server(server, &tls.Config{}), new(memos)), zap.New(log)}
		go func() {
			_, _ = io.WriteString(client, sent)
			_, _ = io.CopyN(io.Discard, client, 1)
			_ = client.Close()
		}()
		if sent == "" {
			_ = client.Close()
		}
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%q: %d bytes were read, %v", sent, n, err)
		}
		if got := fmt.Sprint(noted.All()); noted.Len() != 1 || !strings.Contains(got, want) {
			t.Errorf("%q: the log has %s, want %q", sent, got, want)
		}
		_ = c.Close()
	}
}
