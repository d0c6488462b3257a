package door_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/net/http2"
)

// TestWhileAHandlerWorks has clients send and leave while a handler is at work, and the connection was rejected before: net/http hears of it
// as without a door.
func TestWhileAHandlerWorks(t *testing.T) {
	const post, words = "POST /work HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", "some words"
	var notes []string
	note := func(what string, args ...any) { notes = append(notes, fmt.Sprintf(what, args...)) }
	work := newHook("work", func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
		began := time.Now()
		_, _ = io.Copy(io.Discard, r.Body)
		switch r.URL.Path {
		case "/work":
			select {
			case <-r.Context().Done():
				note("left after %v", time.Since(began))
			case <-time.After(time.Second):
				note("%s served", r.Method)
			}
		case "/slow": // to end, once it is answered
			defer pass(time.Second)
			if r.Method != http.MethodGet {
				note("a request is torn: %s", r.Method)
			}
		case "/take":
			if pass(time.Second); r.Context().Err() != nil {
				note("the request was ended")
			}
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return err
			}
			defer conn.Close()
			heard, _ := rw.Peek(rw.Reader.Buffered())
			for b := make([]byte, 1); len(heard) < len(words); heard = append(heard, b...) {
				if _, err := conn.Read(b); err != nil {
					break
				}
			}
			_, _ = conn.Write(heard)
			note("took %s", heard)
		}
		return next.ServeHTTP(w, r)
	})
	get := func(path string) string { return strings.Replace(get, "/a", path, 1) }
	for _, c := range []struct {
		name   string
		chunks []string // half a second apart; "": nothing
		leaves bool
		want   string
	}{
		{"leaves", []string{get("/work")}, true, "left after 500ms"},
		{"leaves later", []string{get("/work"), ""}, true, "GET served"},
		{"the next request comes", []string{get("/work"), get("/work"), "", ""}, false, "GET served, GET served"},
		{"two come at once", []string{get("/work") + get("/work"), "", ""}, true, "GET served, left after 500ms"},
		{"the next comes, but for its last byte", []string{get("/work") + post[:len(post)-1], post[len(post)-1:], "", "", ""}, false, "GET served, POST served"},
		{"the next comes in two pieces", []string{get("/work"), get("/work")[:1], get("/work")[1:], "", "", ""}, false, "GET served, GET served"},
		{"words for who takes the connection", []string{get("/take"), "", words, ""}, false, "took " + words},
		{"words before it is taken", []string{get("/take"), words[:1], words[1:2], words[2:], ""}, false, "took " + words},
		{"the next comes during a rejection", []string{get("/slow"), get("/slow"), "", get("/slow"), get("/work"), "", "", ""}, false, "GET served"},
		{"a part of the next comes during a rejection", []string{get("/slow"), "P", post[1:], "", "", "", ""}, false, "POST served"},
	} {
		t.Run(c.name, func(t *testing.T) {
			load(t, "", site{"s", "", route(work, overQuota("s", "z", ""), respondOK)})
			notes = nil
			play(t, func(s *stage) {
				rejected := s.dial(s.serve(handlerOf(t, "s"), true))
				for range 3 {
					rejected.ask(get("/slow"))
					pass(time.Second)
				}
				for range 6 {
					rejected.ask(get("/a"))
				}
				for i, chunk := range c.chunks {
					if i > 0 {
						pass(time.Second / 2)
					}
					if chunk != "" {
						rejected.ask(chunk)
					}
				}
				pass(time.Second / 2)
				if c.leaves {
					rejected.close()
				}
				settle()
				if got := strings.Join(notes, ", "); got != c.want {
					t.Errorf("%s, want %s", got, c.want)
				}
			})
			if atDoor(t, "s") == 0 {
				t.Error("the door has answered nothing")
			}
		})
	}
}

// TestTimeouts ends connections on which too little comes, at the time that the server has set, and that of clients
// that read no rejections.
func TestTimeouts(t *testing.T) {
	load(t, "", site{"s", "", route(overQuota("s", "z", ""), respondOK)})
	const long = 4095
	line := "GET /" + strings.Repeat("a", 2*long)
	for _, c := range []struct {
		name, text string
		want       time.Duration
	}{
		{"a new one", "", time.Minute}, {"a part of HTTP/2's preface", "PRI *", time.Minute}, {"idle", "idle", 5 * time.Minute},
		{"a part of a request", get[:9], time.Minute}, {"a long line", line[:long], time.Minute}, {"a longer line", line[:long+1], time.Minute},
	} {
		play(t, func(s *stage) {
			c, rejected := c, s.dial(s.serve(handlerOf(t, "s"), true))
			if c.want != time.Minute || c.text == line[:long] {
				for range 6 {
					rejected.ask(get)
				}
			}
			if c.text != "idle" && c.text != "" {
				rejected.ask(c.text)
			}
			pass(c.want - time.Second)
			if settle(); rejected.isOver() {
				t.Errorf("%s: the connection ends early", c.name)
			}
			pass(3 * time.Second)
			if settle(); !rejected.isOver() {
				t.Errorf("%s: the connection does not end after %v", c.name, c.want)
			}
		})
	}
	play(t, func(s *stage) {
		c := s.dial(s.serve(handlerOf(t, "s"), true))
		for range 6 {
			c.ask(get)
		}
		c.becomeDeaf()
		defer c.hearAgain()
		for range 9 { // some are still read
			c.out <- get
		}
		pass(50 * time.Second)
		if settle(); s.ended.Load() > 0 {
			t.Error("a client that does not read is cut off early")
		}
		pass(20 * time.Second)
		if settle(); s.ended.Load() == 0 {
			t.Error("a client that does not read is not cut off after a minute")
		}
	})
}

// TestH2ReadsWhileNothingIsRead has a client send an upload before it reads what others on its connection are answered: the door reads on,
// though nothing can be written.
func TestH2ReadsWhileNothingIsRead(t *testing.T) {
	uploaded := 0
	hook := newHook("upload", func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
		if r.URL.Path != "/upload" {
			return next.ServeHTTP(w, r)
		}
		n, err := io.Copy(io.Discard, r.Body)
		uploaded = int(n)
		return err
	})
	load(t, "", site{"s", "", route(hook, overQuota("s", "z", ""), respondOK)})
	play(t, func(s *stage) {
		c := s.dialH2(s.serve(handlerOf(t, "s"), true))
		for range 6 {
			c.ask("GET", "/a")
		}
		c.becomeDeaf()
		upload := c.begin(http2.HeadersFrameParam{BlockFragment: c.encodeRequest("POST", "/upload"), EndHeaders: true})
		for range 150 {
			c.request("GET", "/a")
		}
		for range 60 { // the window is 1 MiB
			_ = c.WriteData(upload, false, make([]byte, 16<<10))
		}
		_ = c.WriteData(upload, true, nil)
		last := c.request("GET", "/b")
		settle()
		if uploaded != 60*16<<10 {
			t.Errorf("%d bytes have come", uploaded)
		}
		c.hearAgain()
		settle()
		if got := c.answer(last); !strings.Contains(got, ":status: 429") {
			t.Errorf("the last one is answered %q", got)
		}
	})
}

// TestH2AnswersThatAreNotRead has a client read nothing: few answers are kept for it, its requests are the server's then, and after a
// minute its connection ends. One that reads late, but reads, has no deadline left.
func TestH2AnswersThatAreNotRead(t *testing.T) {
	load(t, "", site{"s", "", route(overQuota("s", "z", ""), respondOK)})
	for _, reads := range []bool{true, false} {
		play(t, func(s *stage) {
			c := s.dialH2(s.serve(handlerOf(t, "s"), true))
			for range 6 {
				c.ask("GET", "/a")
			}
			c.becomeDeaf()
			before := atDoor(t, "s")
			for range 2000 {
				c.request("GET", "/a")
			}
			settle()
			if n := atDoor(t, "s") - before; n < 100 || n > 1000 {
				t.Errorf("%d requests are answered at the door, want those whose answers take 32 KiB", n)
			}
			if pass(50 * time.Second); reads {
				c.hearAgain()
			}
			pass(20 * time.Second)
			if settle(); (s.ended.Load() > 0) == reads {
				t.Errorf("it reads: %v; %d connections have ended", reads, s.ended.Load())
			}
			if !reads {
				c.hearAgain()
			}
			settle()
		})
	}
}

// TestH2BesideDownloads has the door answer while the server writes long responses, in the middle of its frames, and header blocks of
// several frames.
func TestH2BesideDownloads(t *testing.T) {
	const long = 300 << 10
	hook := newHook("long", func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
		if r.URL.Path != "/long" {
			return next.ServeHTTP(w, r)
		}
		w.Header().Set("Long", strings.Repeat("x", 60<<10))
		_, err := w.Write(make([]byte, long))
		return err
	})
	load(t, "", site{"s", "", route(hook, overQuota("s", "z", ""), respondOK)})
	play(t, func(s *stage) {
		c := s.dialH2(s.serve(handlerOf(t, "s"), true))
		_ = c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
		_ = c.WriteWindowUpdate(0, 1<<30)
		for range 6 {
			c.ask("GET", "/a")
		}
		var all []uint32
		for range 20 {
			all = append(all, c.request("GET", "/long"))
			for range 20 {
				all = append(all, c.request("GET", "/a"))
			}
			settle()
		}
		for i, stream := range all {
			text, sum := c.answer(stream), 0
			for _, part := range c.all()[stream] {
				n := 0
				_, _ = fmt.Sscanf(part, "%d bytes", &n)
				sum += n
			}
			if i%21 == 0 && sum != long || i%21 > 0 && !strings.Contains(text, ":status: 429") {
				t.Fatalf("stream %d has %d bytes: %q", stream, sum, text)
			}
		}
	})
	if n := atDoor(t, "s"); n < 200 {
		t.Errorf("%d of 400 were rejected at the door", n)
	}
}

// TestH2OfAnsweredStreams ends streams that the door has answered, after a request that the server does not count because it
// cannot read it: the server does not hear of them.
func TestH2OfAnsweredStreams(t *testing.T) {
	load(t, "", site{"s", "", route(overQuota("s", "z", ""), respondOK)})
	for _, bad := range []bool{true, false} {
		play(t, func(s *stage) {
			c := s.dialH2(s.serve(handlerOf(t, "s"), true))
			for range 6 {
				c.ask("GET", "/a")
			}
			var all []uint32
			tens := 40 // more than the server would have open
			if bad {
				tens = 20 // of more, the door has forgotten which were before a stream that the server has not heard of
			}
			for range tens {
				for range 10 {
					all = append(all, c.request("GET", "/a"))
				}
				settle()
			}
			if bad {
				c.ask("GET", "/a", "x-bad", "a\x01b")
			}
			for _, stream := range all {
				_ = c.WriteRSTStream(stream, http2.ErrCodeCancel)
				_ = c.WriteWindowUpdate(stream, 100)
			}
			if got := c.ask("GET", "/other"); !strings.Contains(got, ":status: 429") {
				t.Errorf("the next request is answered %q, and the connection %q", got, c.all()[0])
			}
		})
	}
}

// TestH2Leaves compares what servers with and without a door say when they leave.
func TestH2Leaves(t *testing.T) {
	loadPair(t, `{"path": ["/ok"]}`)
	play(t, func(s *stage) {
		bare, door := s.serve(handlerOf(t, "bare"), false), s.serve(handlerOf(t, "door"), true)
		s.dial(bare).ask(get)
		said := map[*pipeListener]*h2Client{bare: s.dialH2(bare), door: s.dialH2(door)}
		for range 8 {
			for _, c := range said {
				c.ask("GET", "/a")
			}
		}
		for _, stop := range s.servers {
			go func() { _ = stop.Shutdown(context.Background()) }()
		}
		settle()
		for _, c := range said {
			c.request("GET", "/a")
		}
		pass(10 * time.Second)
		settle()
		got, want := fmt.Sprint(said[door].all()), fmt.Sprint(said[bare].all())
		if got != want || !strings.Contains(got, "goaway NO_ERROR") {
			t.Errorf("with a door %s, without %s", got, want)
		}
	})
}

// newCertificate returns what a server shows and what a client trusts.
func newCertificate(t *testing.T) (certificates string, trust *tls.Config) {
	t.Helper()
	srv := httptest.NewTLSServer(nil)
	defer srv.Close()
	pair := srv.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := json.Marshal([]map[string]string{{
		"certificate": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})),
		"key":         string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})),
	}})
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(srv.Certificate())
	return `"load_pem": ` + string(loaded), &tls.Config{RootCAs: pool, ServerName: "example.com"}
}

// TestInCaddy has Caddy itself serve, with what it puts between a connection and net/http.
func TestInCaddy(t *testing.T) {
	certificates, trust := newCertificate(t)
	const tlsOn = `"tls_connection_policies": [{}],`
	ahead := strings.Replace(withDoor, "]", `, {"wrapper": "door_test_ahead"}]`, 1)
	proxied := strings.Replace(withDoor, "[", `[{"wrapper": "proxy_protocol", "allow": ["127.0.0.0/8"], "fallback_policy": "REQUIRE"},`, 1)
	cases := []struct {
		name, more string
		protocol   string // of TLS
		first      string
		want       bool
	}{
		{"HTTP/1.1", withDoor + `"protocols": ["h1"],`, "", "", true},
		{"HTTP/1.1 and 2", withDoor + `"protocols": ["h1", "h2", "h2c"],`, "", "", true},
		{"TLS", withDoor + tlsOn + `"protocols": ["h1"],`, "http/1.1", "", true},
		{"TLS and HTTP/2", withDoor + tlsOn + `"protocols": ["h1", "h2"],`, "h2", "", true},
		{"PROXY protocol", proxied + `"protocols": ["h1"],`, "", "PROXY TCP4 192.0.2.1 127.0.0.1 1234 80\r\n", true},
		{"a wrapper that reads ahead", ahead + `"protocols": ["h1"],`, "", "", false}, // it would ask for a request before the last is answered
	}
	var sites []site
	for i, c := range cases {
		name := fmt.Sprint("s", i)
		sites = append(sites, site{name, c.more, route(overQuota(name, "z"+name, ""), respondOK)})
	}
	load(t, certificates, sites...)
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			name := fmt.Sprint("s", i)
			conn := dialCaddy(t, name)
			_, _ = io.WriteString(conn, c.first)
			client := &http.Client{Transport: &http.Transport{
				ForceAttemptHTTP2: c.protocol == "h2", TLSClientConfig: trust,
				DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
			}}
			scheme := "http"
			if c.protocol != "" {
				scheme = "https"
			}
			for k := range 30 {
				resp, err := client.Get(scheme + "://h/a")
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if (resp.StatusCode == 200) != (k == 0) || c.protocol == "h2" && resp.ProtoMajor != 2 {
					t.Errorf("answer %d is %s %s", k, resp.Proto, resp.Status)
				}
			}
			if n := atDoor(t, name); n > 0 != c.want {
				t.Errorf("%d of 29 were rejected at the door, want %v", n, c.want)
			}
		})
	}
}

// aheadWrapper makes connections that read ahead.
type aheadWrapper struct{}

func init() { caddy.RegisterModule(aheadWrapper{}) }

func (aheadWrapper) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.listeners.door_test_ahead", New: func() caddy.Module { return new(aheadWrapper) }}
}

func (aheadWrapper) WrapListener(l net.Listener) net.Listener { return aheadListener{l} }

type aheadListener struct{ net.Listener }

func (l aheadListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return aheadConn{conn, bufio.NewReader(conn)}, err
}

type aheadConn struct {
	net.Conn
	r *bufio.Reader
}

func (c aheadConn) Read(p []byte) (int, error) { return c.r.Read(p) }

var connections = flag.Int("connections", 500, "connections in TestFloodOfConnections; 100000 in long runs")

// TestFloodOfConnections has connections rejected, keeps them open, and closes them. It compares the memory of those with a
// door with that of those without.
func TestFloodOfConnections(t *testing.T) {
	ok := `{"path": ["/ok"]}`
	loadPair(t, ok)
	memory := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what pools have kept
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc + m.StackInuse)
	}
	each := map[string]float64{}
	for _, name := range []string{"bare", "door"} {
		idle, goroutines := memory(), runtime.NumGoroutine()
		l, _ := pipes.Load(name)
		var open []net.Conn
		answer := make([]byte, 4096)
		for i := range *connections {
			conn, err := l.(*pipeListener).dialFrom(net.IPv4(127, 0, 1, byte(1+i/10000)))
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, conn)
			for range 6 {
				_, _ = io.WriteString(conn, get)
				if _, err := conn.Read(answer); err != nil {
					t.Fatal(err)
				}
			}
		}
		each[name] = (memory() - idle) / float64(*connections)
		for _, conn := range open {
			_ = conn.Close()
		}
		for began := time.Now(); runtime.NumGoroutine() > goroutines+5; runtime.Gosched() {
			if time.Since(began) > time.Minute {
				t.Fatal("the connections' goroutines do not end")
			}
		}
		if left := memory() - idle; left > 2e6+100*float64(*connections) {
			t.Errorf("%s: %.0f kB are left of %d connections", name, left/1000, *connections)
		}
	}
	t.Logf("%d connections: %.0f bytes each without a door, %.0f with it", *connections, each["bare"], each["door"])
	if each["door"] > each["bare"]+6*1024 {
		t.Errorf("a connection takes %.0f bytes with a door, and %.0f without", each["door"], each["bare"])
	}
	if n := atDoor(t, "door"); n < *connections {
		t.Errorf("%d were rejected at the door", n)
	}
}

// TestH2SameBytesMeanAnother sends the bytes of a rejected request again, after another request has changed the table by which
// they are read.
func TestH2SameBytesMeanAnother(t *testing.T) {
	loadPair(t, `{"path": ["/ok"]}`)
	play(t, func(s *stage) {
		bare, door := s.serve(handlerOf(t, "bare"), false), s.serve(handlerOf(t, "door"), true)
		s.dial(bare).ask(get)
		var answers []string
		for _, c := range []*h2Client{s.dialH2(bare), s.dialH2(door)} {
			for range 6 {
				c.ask("GET", "/a")
			}
			block := c.encodeRequest("GET", "/a")
			c.ask("GET", "/ok", "user-agent", "other")
			again := c.begin(http2.HeadersFrameParam{BlockFragment: block, EndStream: true, EndHeaders: true})
			settle()
			answers = append(answers, c.answer(again))
		}
		if answers[0] != answers[1] || strings.Contains(answers[0], ":status: 429") {
			t.Errorf("they are answered %q, without a door %q", answers[1], answers[0])
		}
	})
}
