package caddymodule

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
)

const timeLimit = 250 * time.Millisecond

// behindTimeout starts a shield with a time-out and a backend.
func behindTimeout(t *testing.T, more string, transport string, serve http.HandlerFunc) *rig {
	back := httptest.NewUnstartedServer(serve)
	back.Config.Protocols = new(http.Protocols)
	back.Config.Protocols.SetHTTP1(true)
	back.Config.Protocols.SetUnencryptedHTTP2(true)
	back.Start()
	t.Cleanup(func() {
		back.CloseClientConnections()
		back.Close()
	})
	return start(t, setup{
		server:   `"protocols": ["h1", "h2", "h2c"],`,
		handlers: fmt.Sprintf(`{"handler": "shield", "timeout": "%v", %s}, %s`, timeLimit, more, proxyTo(back, transport)),
	})
}

// stuck waits until the request is given up; any path but /stuck is answered.
func stuck(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // or it would not see that it is given up
	if r.URL.Path == "/stuck" {
		<-r.Context().Done()
	}
}

// inTime asks again as long as the answer is 504: the machine, and not the backend, may have
// stood still for the time limit.
func inTime(t *testing.T, ask func() *http.Response) (resp *http.Response) {
	t.Helper()
	eventually(t, "an answer in time", func() bool {
		resp = ask()
		return resp.StatusCode != http.StatusGatewayTimeout
	})
	return resp
}

// limitFalls has requests time out, four at once, until the limit is below 6, with which it began:
// it is looked at when 25 have ended.
func limitFalls(t *testing.T, g *shield.Guard, ask func()) {
	t.Helper()
	for round := 0; g.Limit() >= 6; round++ {
		if round == 10 {
			t.Fatal("the limit is 6, as in the beginning")
		}
		var all sync.WaitGroup
		for range 4 {
			all.Go(ask)
		}
		all.Wait()
	}
}

// Requests that are never answered end in 504 over all protocols of backends, free their
// places, and lower a limit that is found. With observe they go on.
func TestTimeoutFreesPlaces(t *testing.T) {
	const h2 = `, "transport": {"protocol": "http", "versions": ["h2c", "2"]}`
	for _, tt := range []struct{ name, more, transport string }{
		{"a number", `"concurrency": {"limit": 4}`, ""},
		{"HTTP/2", `"concurrency": {"limit": 4}`, h2},
		{"adaptive", `"concurrency": {"adaptive": true, "initial": 6}`, ""},
		{"a rate", `"capacity": {"rate": 1000}`, h2},
		{"retries", `"concurrency": {"limit": 4}`, `, "load_balancing": {"retries": 3}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, machine := behindTimeout(t, tt.more, tt.transport, stuck), newStallMeter(t)
			answers, began := make(chan answered), time.Now()
			for range 4 {
				go func() { answers <- r.get("/stuck") }()
			}
			for range 4 {
				if got := receive(t, "an answer", answers); got.StatusCode != http.StatusGatewayTimeout {
					t.Errorf("status %d, want 504", got.StatusCode)
				} else if says := got.Header.Get("Proxy-Status"); says != "shield; error=http_response_timeout" {
					t.Errorf("Proxy-Status: %s; want that the backend is late", says)
				}
			}
			if took := time.Since(began); took < timeLimit || took > machine.bound(timeLimit+2*time.Second, 0) {
				t.Errorf("it took %v, want %v", took, timeLimit)
			}
			if got := inTime(t, func() *http.Response { return r.get("/").Response }); got.StatusCode != http.StatusOK {
				t.Errorf("a healthy request afterwards: status %d", got.StatusCode)
			}
			if strings.Contains(tt.name, "adaptive") {
				limitFalls(t, r.handler().guard(), func() { r.get("/stuck") })
			}
		})
	}
	r := behindTimeout(t, `"mode": "observe", "concurrency": {"limit": 4}`, "", func(_ http.ResponseWriter, _ *http.Request) { time.Sleep(2 * timeLimit) })
	if got := r.get("/"); got.StatusCode != http.StatusOK {
		t.Errorf("observe: status %d", got.StatusCode)
	}
}

// A response that stops in the middle is broken off, and so is one that does not begin when
// the client is done. Slow clients and streams take their time.
func TestTimeoutInTheMiddle(t *testing.T) {
	r := behindTimeout(t, `"concurrency": {"adaptive": true, "initial": 6}`, "", func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/echo":
			_, _ = io.Copy(w, r.Body)
			return
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
		}
		_ = http.NewResponseController(w).Flush()
		if r.URL.Path == "/events" {
			time.Sleep(2 * timeLimit)
			_, _ = io.WriteString(w, "news")
			return
		}
		<-r.Context().Done()
	})
	var got answered
	inTime(t, func() *http.Response { got = r.get("/events"); return got.Response })
	if got.StatusCode != http.StatusOK || got.body != "news" {
		t.Errorf("events: %+v", got)
	}
	post := func() *http.Response {
		in, out := io.Pipe()
		go func() {
			for range 4 {
				time.Sleep(timeLimit / 2)
				_, _ = io.WriteString(out, "part")
			}
			_ = out.Close()
		}()
		resp, err := http.Post("http://"+r.addr+"/echo", "text/plain", in)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	resp := inTime(t, post)
	if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "partpartpartpart" {
		t.Errorf("a slow upload: status %d, %q, %v", resp.StatusCode, text, err)
	}
	_ = resp.Body.Close()
	broken := make(chan error)
	for range 4 {
		go func() {
			var err error
			inTime(t, func() *http.Response {
				var resp *http.Response
				if resp, err = http.Get("http://" + r.addr); err != nil {
					return new(http.Response)
				}
				_, err = io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				return resp
			})
			broken <- err
		}()
	}
	for range 4 {
		if receive(t, "an end", broken) == nil {
			t.Error("the response is complete")
		}
	}
	eventually(t, "the place is free", func() bool { return r.inFlight() == 0 })
	limitFalls(t, r.handler().guard(), func() {
		if resp, err := http.Get("http://" + r.addr); err == nil {
			_, _ = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
	})
}

// An upgraded connection has no time-out, and gRPC clients are told of one in their own words.
func TestTimeoutOfOtherProtocols(t *testing.T) {
	r := behindTimeout(t, `"concurrency": {"limit": 4}`, "", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			stuck(w, r)
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_ = rw.Flush()
		_, _ = io.Copy(conn, rw)
	})
	var conn *wire
	switched := inTime(t, func() *http.Response {
		conn = r.dial()
		conn.send("GET / HTTP/1.1\nHost: a\nUpgrade: websocket\nConnection: Upgrade\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\n\n")
		return conn.head()
	})
	if switched.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("response %+v", switched)
	}
	time.Sleep(2 * timeLimit)
	conn.echoes("hello")

	client := http.Client{Transport: &http.Transport{Protocols: new(http.Protocols)}}
	client.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(true)
	resp, err := client.Post("http://"+r.addr+"/stuck", "application/grpc", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	if _ = resp.Body.Close(); resp.StatusCode != http.StatusOK || resp.Header.Get("Grpc-Status") != "4" {
		t.Errorf("status %d, gRPC status %q; want 200 and 4", resp.StatusCode, resp.Header.Get("Grpc-Status"))
	}
}

// A Transport that still dials for a request that has ended in 504 reads its variables: to
// write them then would end the program.
func TestTimeoutWhileTheTransportDials(t *testing.T) {
	r := request("/", "192.0.2.1", nil)
	vars := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
	before := len(vars)
	NoteTimeout(r.Context())
	if len(vars) != before {
		t.Errorf("a time-out writes the variables of the request: %v", vars)
	}
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if got, _ := (&proxyResult{repl: repl, timed: true}).result(r, nil, true); got != shield.Overloaded {
		t.Errorf("the outcome is %v, want %v", got, shield.Overloaded)
	}
}

func TestTimeoutRange(t *testing.T) {
	for d, ok := range map[time.Duration]bool{0: false, -1: false, 1: false, time.Millisecond: true, time.Minute: true, 25 * time.Hour: false} {
		h := &Handler{Capacity: &Rate{Rate: 1}, Timeout: new(caddy.Duration(d))}
		if _, err := new(App).Check(h, ""); (err == nil) != ok {
			t.Errorf("timeout %v: error %v", d, err)
		}
	}
}
