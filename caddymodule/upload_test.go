package caddymodule

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/pushback"
)

// TestIdleUploadsHoldNoPermit has one client begin as many uploads as requests may be in flight, and send no
// more: the others are served, and its own requests once their bodies have come.
func TestIdleUploadsHoldNoPermit(t *testing.T) {
	for _, head := range []string{
		"POST / HTTP/1.1\nHost: x\nContent-Length: 10\n\nhello", "POST / HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n5\nhello\n",
		"CONNECT x:80 HTTP/1.1\nHost: x:80\nContent-Length: 10\n\nhello",
	} {
		r := start(t, setup{handlers: `{"handler": "shield", "name": "s", "concurrency": {"limit": 8}},` + respondOK})
		var idle []*wire
		for range 8 {
			w := r.dial()
			w.send("%s", head)
			idle = append(idle, w)
		}
		for range 20 {
			if a := r.get("/"); a.StatusCode != http.StatusOK {
				t.Fatalf("%q: another client gets %d", head, a.StatusCode)
			}
		}
		for _, w := range idle {
			if strings.Contains(head, "chunked") {
				w.send("5\nworld\n0\n\n")
			} else {
				w.send("world")
			}
			if a := w.answer(); a.StatusCode != http.StatusOK {
				t.Errorf("%q: a whole upload gets %d", head, a.StatusCode)
			}
		}
		if n := bodies.Taken.Load(); n != 0 {
			t.Errorf("%d bytes are still taken", n)
		}
	}
}

// TestIdleUploadsTakeNoMemory: what they announce does not keep other bodies from being read early.
func TestIdleUploadsTakeNoMemory(t *testing.T) {
	r := start(t, setup{handlers: `{"handler": "shield", "name": "s", "concurrency": {"limit": 8}},` + respondOK})
	const uploads = 16
	for range uploads {
		w := r.dial()
		w.send("%s", "POST / HTTP/1.1\nHost: x\nContent-Length: 16384\n\nhello")
	}
	eventually(t, "the uploads have begun", func() bool { return bodies.Taken.Load() >= uploads<<10 })
	if n := bodies.Taken.Load(); n > uploads<<10 {
		t.Errorf("%d uploads of 5 bytes take %d bytes, want 1 KiB for each", uploads, n)
	}
}

// TestUploadsThatCannotBeRead are answered as what is wrong with them.
func TestUploadsThatCannotBeRead(t *testing.T) {
	r := start(t, setup{handlers: `{"handler": "request_body", "max_size": 10}, {"handler": "shield", "name": "s", "concurrency": {"limit": 8}},` + respondOK})
	for request, want := range map[string]int{
		"Transfer-Encoding: chunked\n\nno size\n":                       http.StatusBadRequest,
		"Transfer-Encoding: chunked\n\n14\n01234567890123456789\n0\n\n": http.StatusRequestEntityTooLarge,
		"Content-Length: 10\n\n0123456789":                              http.StatusOK,
	} {
		w := r.dial()
		w.send("%s", "POST / HTTP/1.1\nHost: x\n"+request)
		if a := w.answer(); a.StatusCode != want {
			t.Errorf("%q gets %d, want %d", request, a.StatusCode, want)
		}
	}
}

// TestUploadsMustCome ends a request whose body stops before it is there, and that of a gRPC client passes
// as it comes.
func TestUploadsMustCome(t *testing.T) {
	for head, want := range map[string]string{
		"Content-Length: 1000\n\nx": "408 after 10s, not served",
		"Content-Length: 2000\n\nx": "408 after 3s, not served",
		"Content-Type: application/grpc\nTransfer-Encoding: chunked\n\n1\nx\n": "served after 0s",
	} {
		h := newLive(t, Live{Name: "uploads", Config: shield.Config{Concurrency: 1}, State: new(LiveState)})
		h.receives = true
		if strings.Contains(head, "2000") {
			h.readTimeout = 3 * time.Second
		}
		served := "not served"
		var began time.Duration
		work := func(_ *doorConn, w http.ResponseWriter, r *http.Request) {
			if pushback.IsGRPC(r) {
				r.ProtoMajor = 2 // as it is
			}
			err := h.ServeHTTP(w, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
				served = fmt.Sprintf("served after %v", shield.Now()-began)
				w.WriteHeader(http.StatusOK)
				return nil
			}))
			if failed, is := errors.AsType[caddyhttp.HandlerError](err); is {
				w.WriteHeader(failed.StatusCode)
			}
		}
		inDoor(t, work, func(client net.Conn) {
			began = shield.Now()
			_, _ = io.WriteString(client, strings.ReplaceAll("POST / HTTP/1.1\nHost: x\n"+head, "\n", "\r\n"))
			got := ""
			pass(time.Second)
			if synctest.Wait(); served == "not served" {
				resp, err := http.ReadResponse(bufio.NewReader(client), nil)
				if err != nil {
					t.Fatal(err)
				}
				got = fmt.Sprintf("%d after %v, ", resp.StatusCode, (shield.Now() - began).Round(time.Second))
			}
			if got += served; got != want {
				t.Errorf("%q: %s, want %s", head, got, want)
			}
		})
	}
}

// TestStalledUploadsAreNotDrainedForEver has a client stop in the middle of an upload that is answered before it
// is there, by a handler that leaves the rest or closes the body: net/http reads on then, within the time-outs.
func TestStalledUploadsAreNotDrainedForEver(t *testing.T) {
	for _, closes := range []bool{false, true} {
		h := newLive(t, Live{Name: "uploads", Config: shield.Config{Concurrency: 1}, State: new(LiveState)})
		h.receives = true
		var ended time.Duration
		work := func(_ *doorConn, w http.ResponseWriter, r *http.Request) {
			_ = h.ServeHTTP(w, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
				_, _ = io.ReadFull(r.Body, make([]byte, 20000))
				if closes {
					_ = r.Body.Close()
				}
				return http.NewResponseController(w).Flush()
			}))
			ended = shield.Now()
		}
		inDoor(t, work, func(client net.Conn) {
			began := shield.Now()
			_, _ = io.WriteString(client, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"+strings.Repeat("x", 20000))
			go func() { _, _ = io.Copy(io.Discard, client) }()
			pass(time.Hour)
			synctest.Wait()
			if took := ended - began; ended == 0 {
				t.Errorf("closes: %v: the place is still held after an hour", closes)
			} else if took > time.Minute {
				t.Errorf("closes: %v: the place is held for %v, want a minute at most", closes, took)
			}
		})
	}
}

// TestPostsEndNoLaterRequest has a proxy that pools connections send a POST that takes its time, and then requests of
// other clients on the same connection: no deadline of the first is left that would end them.
func TestPostsEndNoLaterRequest(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch {
		case r.URL.Path == "/slow":
			time.Sleep(1200 * time.Millisecond)
		case r.Method == http.MethodPost: // longer than what Unblock leaves to a body
			time.Sleep(150 * time.Millisecond)
		default:
			time.Sleep(20 * time.Millisecond)
		}
	}))
	defer backend.Close()
	page := `{"handler": "subroute", "routes": [{"handle": [` + proxyTo(backend, "") + `]}]}`
	unread := newHook(t, func(w http.ResponseWriter, _ *http.Request, _ caddyhttp.Handler) error {
		_, _ = io.WriteString(w, strings.Repeat("p", 5000)) // more than net/http keeps: it is sent now
		time.Sleep(70 * time.Millisecond)
		return nil
	})
	part := newHook(t, func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
		if r.Method != http.MethodPost {
			return next.ServeHTTP(w, r)
		}
		_, _ = io.ReadFull(r.Body, make([]byte, 20_000))
		_, _ = io.WriteString(w, strings.Repeat("p", 5000))
		_ = http.NewResponseController(w).Flush()
		time.Sleep(400 * time.Millisecond)
		return nil
	})
	slow := newHook(t, func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
		err := next.ServeHTTP(w, r)
		time.Sleep(120 * time.Millisecond)
		return err
	})
	const wrap = `{"handler": "request_body", "max_size": 1000000},`
	second := func(fields string) string { return `{"handler": "shield", "name": "second", ` + fields + `},` }
	const quota = `"zones": [{"name": "z", "key": "{http.request.method}", "rate": 1, "per": "1h", "burst": 2, "cost": 2}]`
	for _, c := range []struct {
		name, fields string
		setup        setup // its handlers come between the shield and the proxy
		path         string
		posts        int // the last of them counts
		size, times  int
	}{
		{"the response takes longer than read_body", `"concurrency": {"limit": 8, "orphans": "free"}`, setup{server: `"read_timeout": "1s",`}, "/slow", 1, 2, 1},
		{"the page of a refusal takes a while", `"concurrency": {"limit": 8}, ` + quota, setup{errors: page}, "/", 2, 2, 1},
		{"the same, before another shield", `"concurrency": {"limit": 8, "orphans": "free"}`, setup{handlers: second(quota), errors: page}, "/", 2, 2, 1},
		{"the same, and what lies between wraps the body", `"concurrency": {"limit": 8, "orphans": "free"}`, setup{handlers: wrap + second(quota), errors: page}, "/", 2, 2, 1},
		{
			"a long response behind another shield and what wraps the body", `"concurrency": {"limit": 8, "orphans": "free"}`,
			setup{handlers: wrap + second(`"concurrency": {"limit": 8, "orphans": "free"}`), server: `"read_timeout": "1s",`}, "/slow", 1, 2, 1,
		},
		{"a handler before the shield takes a while after the page", `"capacity": {"rate": 1000}`, setup{handlers: slow + "," + second(quota), errors: page}, "/", 2, 2, 1},
		{"the server runs the page", `"pushback": {"dither": false, "respond": "error"}, ` + quota, setup{errors: unread}, "/", 2, 2, 16},
		{"the page does not read the body", quota, setup{errors: unread}, "/", 2, 2, 8},
		{"the handler reads a part, and takes longer than read_body", `"concurrency": {"limit": 8, "orphans": "free"}`, setup{handlers: part + ",", server: `"read_timeout": "300ms",`}, "/", 1, 100_000, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.setup.handlers = shed(c.fields) + c.setup.handlers + proxyTo(backend, "")
			r := start(t, c.setup)
			for range c.times {
				conn, err := net.Dial("tcp", r.addr)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				in := bufio.NewReader(conn)
				ask := func(request string) int {
					_, _ = io.WriteString(conn, request)
					resp, err := http.ReadResponse(in, nil)
					if err != nil {
						t.Fatal(err)
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					return resp.StatusCode
				}
				got := 0
				for range c.posts {
					got = ask(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", c.path, c.size, strings.Repeat("x", c.size)))
				}
				if next := ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n"); got != http.StatusOK || next != http.StatusOK {
					t.Errorf("the POST gets %d, the next request %d, want 200 and 200", got, next)
				}
			}
		})
	}
}
