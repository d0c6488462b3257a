package caddymodule

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
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

// TestUploadsMustCome ends a request whose body stops before it is there.
func TestUploadsMustCome(t *testing.T) {
	for i, readTimeout := range []time.Duration{0, 3 * time.Second, 0, 3 * time.Second} {
		want, limit := cmp.Or(readTimeout, 10*time.Second), roomFor(1)
		if i >= 2 { // it is read for a field
			limit = shed(perModel)
		}
		r := start(t, setup{server: fmt.Sprintf(`"read_timeout": "%v",`, readTimeout), handlers: limit + respondOK})
		r.onWires(t, new(http.Server), nil, func(r *rig) {
			w, began := r.dial(), time.Now()
			w.send("%s", "POST / HTTP/1.1\nHost: x\nContent-Type: application/json\nContent-Length: 1000\n\n{")
			if a := w.answer(); a.StatusCode != http.StatusRequestTimeout || time.Since(began).Round(time.Second) != want {
				t.Errorf("%d after %v, want 408 after %v", a.StatusCode, time.Since(began), want)
			}
		})
		_ = caddy.Stop()
	}
}

// TestCallsAreAnsweredBeforeTheirBodies has a gRPC client that sends nothing until it has a response.
func TestCallsAreAnsweredBeforeTheirBodies(t *testing.T) {
	r := start(t, setup{server: `"protocols": ["h1", "h2c"],`, handlers: roomFor(1) + newHook(t, func(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
		err := http.NewResponseController(w).Flush()
		_, _ = io.Copy(w, r.Body)
		return err
	})})
	r.h2c()
	began := time.Now()
	read, write := io.Pipe()
	call, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+r.addr, read)
	call.ContentLength, call.Header = 4, http.Header{"Content-Type": {"application/grpc"}}
	resp, err := r.client.Do(call)
	if err != nil || resp.StatusCode != http.StatusOK || time.Since(began) > 5*time.Second {
		t.Fatalf("%v, %v after %v", resp, err, time.Since(began))
	}
	_, _ = io.WriteString(write, "call")
	_ = write.Close()
	if a, err := answer(resp, nil); a.body != "call" {
		t.Errorf("%q, %v", a.body, err)
	}
}

// TestStalledUploadsAreNotDrainedForEver has a client stop in the middle of an upload that is answered before it
// is there, by a handler that leaves the rest or closes the body: net/http reads on then, within the timeouts.
func TestStalledUploadsAreNotDrainedForEver(t *testing.T) {
	for _, closes := range []bool{false, true} {
		r := start(t, setup{handlers: roomFor(1) + newHook(t, func(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
			_, _ = io.ReadFull(r.Body, make([]byte, 20000))
			if closes {
				_ = r.Body.Close()
			}
			return http.NewResponseController(w).Flush()
		})})
		r.onWires(t, &http.Server{ReadTimeout: 2 * time.Minute}, nil, func(r *rig) {
			w := r.dial()
			w.send("%s", "POST / HTTP/1.1\nHost: x\nContent-Length: 100000\n\n"+strings.Repeat("x", 20000))
			go func() { _, _ = io.Copy(io.Discard, w.Conn) }()
			synctest.Wait()
			began := r.inFlight()
			pass(time.Minute)
			if synctest.Wait(); began != 1 || r.inFlight() != 0 {
				t.Errorf("closes: %v: %d permits are held, and %d after a minute", closes, began, r.inFlight())
			}
		})
		_ = caddy.Stop()
	}
}

// TestPostsEndNoLaterRequest has a proxy that pools connections send a POST that takes its time, and then requests of
// other clients on the same connection: no deadline of the first is left that would end them.
func TestPostsEndNoLaterRequest(t *testing.T) {
	backend := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch {
		case r.URL.Path == "/slow":
			pass(1200 * time.Millisecond)
		case r.Method == http.MethodPost: // longer than what Unblock leaves to a body
			pass(150 * time.Millisecond)
		default:
			pass(20 * time.Millisecond)
		}
	}
	// answering answers POSTs when it has read n bytes of their bodies, and takes a while to end.
	answering := func(n int64, takes time.Duration) string {
		return newHook(t, func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
			if r.Method != http.MethodPost {
				return next.ServeHTTP(w, r)
			}
			_, _ = io.CopyN(io.Discard, r.Body, n)
			if takes < time.Second {
				_, _ = io.WriteString(w, strings.Repeat("p", 5000)) // more than net/http keeps: it is sent now
			}
			pass(takes)
			return nil
		})
	}
	slow := newHook(t, func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
		err := next.ServeHTTP(w, r)
		pass(120 * time.Millisecond)
		return err
	})
	second := func(fields string) string { return `{"handler": "shield", "name": "second", ` + fields + `},` }
	page, unread := `{"handler": "subroute", "routes": [{"handle": [`+proxyOnWires("")+`]}]}`, answering(0, 70*time.Millisecond)
	const (
		wrap  = `{"handler": "request_body", "max_size": 1000000},`
		quota = `"zones": [{"name": "z", "key": "{http.request.header.X-Key}", "rate": 1, "per": "1h", "burst": 1}]`
		free  = `"concurrency": {"limit": 8, "disconnected": "free"}`
	)
	for _, c := range []struct {
		name, fields    string
		between, errors string        // handlers between the shield and the proxy, and those of errors
		readTimeout     time.Duration // of the server
		path            string
		posts           int // the last of them counts
		size            int
	}{
		{"the response takes longer than read_body", free, "", "", time.Second, "/slow", 1, 2},
		{"the page of a rejection takes a while", `"concurrency": {"limit": 8}, ` + quota, "", page, 0, "/", 2, 2},
		{"the same, before another shield", free, second(quota), page, 0, "/", 2, 2},
		{"the same, and what lies between wraps the body", free, wrap + second(quota), page, 0, "/", 2, 2},
		{"a long response behind another shield and what wraps the body", free, wrap + second(free), "", time.Second, "/slow", 1, 2},
		{"a handler before the shield takes a while after the page", `"capacity": {"rate": 1000}`, slow + "," + second(quota), page, 0, "/", 2, 2},
		{"the page does not read the body", quota, "", unread, 0, "/", 2, 2},
		{"the handler reads a part, and takes longer than the pace allows", free, answering(20_000, time.Minute) + ",", "", 0, "/", 1, 100_000},
		{"the handler reads a part, and takes longer than read_body", free, answering(20_000, 400*time.Millisecond) + ",", "", 300 * time.Millisecond, "/", 1, 100_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := setup{handlers: shed(c.fields) + c.between + proxyOnWires(""), errors: c.errors}
			if c.readTimeout > 0 {
				s.server = fmt.Sprintf(`"read_timeout": "%v",`, c.readTimeout)
			}
			start(t, s).onWires(t, &http.Server{ReadTimeout: c.readTimeout}, backend, func(r *rig) {
				for i := range 16 {
					w, got := r.dial(), 0
					for range c.posts {
						w.send("POST %s HTTP/1.1\nHost: x\nX-Key: %d\nContent-Length: %d\n\n%s", c.path, i, c.size, strings.Repeat("x", c.size))
						got = w.answer().StatusCode
					}
					w.send("GET / HTTP/1.1\nHost: x\nX-Key: next %d\n\n", i)
					if next := w.answer().StatusCode; got != http.StatusOK || next != http.StatusOK {
						t.Errorf("the POST gets %d, the next request %d, want 200 and 200", got, next)
					}
					_ = w.Close()
				}
			})
		})
	}
}

// A client that has sent fast and then stops holds a permit no longer than one that stops at once: what the server waits for a read.
func TestFastUploadsThatStall(t *testing.T) {
	r := start(t, setup{server: `"read_idle_timeout": "5s",`, handlers: roomFor(1) + newHook(t, func(_ http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
		_, err := io.Copy(io.Discard, r.Body)
		return err
	})})
	r.onWires(t, new(http.Server), nil, func(r *rig) {
		w := r.dial()
		go func() { _, _ = io.Copy(io.Discard, w.Conn) }()
		w.send("%s", "POST / HTTP/1.1\nHost: x\nContent-Length: 9000000\n\n"+strings.Repeat("x", 1_000_000))
		for range 7 {
			pass(time.Second)
			synctest.Wait()
		}
		if n := r.inFlight(); n != 0 {
			t.Errorf("%d requests hold a permit after 7 s", n)
		}
		_ = w.Close()
	})
}
