package caddymodule

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/herdshield/shield"
)

// withH2Door is a server's wrapper, for HTTP/2 without TLS, too.
const withH2Door = withDoor + `"protocols": ["h1", "h2", "h2c"],`

// atDoorH2 returns how many refusals the door has answered over HTTP/2.
func (r *rig) atDoorH2() uint64 { return r.app().configured.shields[0].record.atDoorH2.Load() }

// An h2Client sends frames as it is told to, and notes what comes.
type h2Client struct {
	testing.TB
	net.Conn
	*http2.Framer
	enc    *hpack.Encoder
	block  bytes.Buffer
	stream uint32 // the next one
	agent  string

	mu      sync.Mutex
	news    sync.Cond
	said    map[uint32][]string // by stream; 0: the connection's end
	ended   map[uint32]bool
	greeted bool // it has sent its settings
	pinged  int
	over    bool
}

func newH2Client(tb testing.TB, conn net.Conn) *h2Client {
	c := &h2Client{TB: tb, Conn: conn, Framer: http2.NewFramer(conn, conn), stream: 1, agent: "test", said: map[uint32][]string{}, ended: map[uint32]bool{}}
	c.enc, c.news.L = hpack.NewEncoder(&c.block), &c.mu
	_ = conn.SetDeadline(time.Now().Add(2 * patience))
	_, _ = io.WriteString(conn, http2.ClientPreface)
	_ = c.WriteSettings()
	go c.listen()
	c.until(func() bool { return c.greeted })
	_ = c.WriteSettingsAck()
	return c
}

func (r *rig) dialH2() *h2Client {
	r.Helper()
	return newH2Client(r.T, r.dial().Conn)
}

// listen notes what the server sends, with a decoder for all of it.
func (c *h2Client) listen() {
	dec := hpack.NewDecoder(4096, nil)
	for {
		f, err := c.ReadFrame()
		c.mu.Lock()
		say := func(what string, args ...any) {
			c.said[f.Header().StreamID] = append(c.said[f.Header().StreamID], fmt.Sprintf(what, args...))
		}
		if err != nil {
			c.over = true
			c.news.Broadcast()
			c.mu.Unlock()
			return
		}
		switch f := f.(type) {
		case *http2.HeadersFrame:
			fields, err := dec.DecodeFull(f.HeaderBlockFragment())
			text := ""
			for _, h := range fields {
				text += h.Name + ": " + h.Value + "\n"
			}
			say("%s%v", unchangingH2(text), err)
			c.ended[f.StreamID] = f.StreamEnded()
		case *http2.DataFrame:
			say("%d bytes", len(f.Data()))
			c.ended[f.StreamID] = f.StreamEnded()
		case *http2.RSTStreamFrame:
			if !c.ended[f.StreamID] { // how much of an upload is read after the answer depends on the time
				say("reset %v", f.ErrCode)
			}
			c.ended[f.StreamID] = true
		case *http2.GoAwayFrame:
			say("goaway %v", f.ErrCode)
			c.over = f.ErrCode != http2.ErrCodeNo // the server waits a second
		case *http2.PingFrame:
			c.pinged++
		case *http2.SettingsFrame:
			c.greeted = true
		}
		c.news.Broadcast()
		c.mu.Unlock()
	}
}

// unchangingH2 leaves out what may differ between two answers.
func unchangingH2(fields string) string {
	lines := strings.Split(fields, "\n")
	for i, line := range lines {
		switch name, value, _ := strings.Cut(line, ": "); name {
		case "date", "retry-after", "retry-after-ms":
			lines[i] = name
		case "ratelimit":
			value, _, _ = strings.Cut(value, ";t=")
			lines[i] = name + value
		}
	}
	return strings.Join(lines, "\n")
}

// until waits for something to be noted, or for the end of the connection.
func (c *h2Client) until(is func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !is() && !c.over {
		c.news.Wait()
	}
}

// encode returns a header block.
func (c *h2Client) encode(fields ...string) []byte {
	c.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = c.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return slices.Clone(c.block.Bytes())
}

// request sends a request and returns its stream.
func (c *h2Client) request(method, path string, more ...string) uint32 {
	stream := c.stream
	c.stream += 2
	block := c.encode(append([]string{":method", method, ":scheme", "http", ":authority", "h", ":path", path, "user-agent", c.agent}, more...)...)
	_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block, EndStream: true, EndHeaders: true})
	return stream
}

// ask sends a request and returns all of its answer.
func (c *h2Client) ask(method, path string, more ...string) string {
	c.Helper()
	stream := c.request(method, path, more...)
	return c.answer(stream)
}

func (c *h2Client) answer(stream uint32) string {
	c.Helper()
	c.until(func() bool { return c.ended[stream] })
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended[stream] {
		c.Errorf("stream %d has no answer: %v", stream, c.said)
	}
	return strings.Join(c.said[stream], "")
}

// TestDoorH2Answers compares answers at the door with those of the handler.
func TestDoorH2Answers(t *testing.T) {
	trailers := newHook(t, func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
		if r.Header[numberKey] != nil {
			t.Error("a handler sees the number of a request")
		}
		err := next.ServeHTTP(w, r)
		w.Header()[http.TrailerPrefix+"X-Sum"] = []string{"1"}
		return err
	})
	for _, c := range []struct {
		name, handlers, method string
		headers                []string
		want                   bool // that the door answers
	}{
		{"no body", overQuota(""), "GET", nil, true},
		{"HEAD", overQuota(""), "HEAD", nil, true},
		{"another server's headers", `{"handler": "headers", "response": {"set": {"Strict-Transport-Security": ["max-age=31536000"]}, "add": {"Vary": ["Accept", "Origin"]}}},` + overQuota(""), "GET", nil, true},
		{"deferred headers", `{"handler": "headers", "response": {"deferred": true, "set": {"Access-Control-Allow-Origin": ["*"]}}},` + overQuota(""), "GET", nil, true},
		{"a body", overQuota(""), "GET", []string{"accept", "application/json"}, false},
		{"POST", overQuota(""), "POST", nil, false},
		{"off", overQuota(`, "door": false`), "GET", nil, false},
		{"a header that differs", `{"handler": "headers", "response": {"set": {"X-Id": ["{http.request.uuid}"]}}},` + overQuota(""), "GET", nil, false},
		{"a changed request", `{"handler": "headers", "request": {"set": {"X-More": ["1"]}}},` + overQuota(""), "GET", nil, false},
		{"two shields", `{"handler": "shield", "name": "outer", "zones": [{"name": "zo", "rate": 1000}]},` + overQuota(""), "GET", nil, false},
		{"an error as for others", overQuota(`, "pushback": {"respond": "error"}`), "GET", nil, false},
		{"trailers", trailers + "," + overQuota(""), "GET", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, setup{server: withH2Door, handlers: c.handlers + "," + respondOK})
			w := r.dialH2()
			w.ask(c.method, "/", c.headers...)
			want := w.ask(c.method, "/", c.headers...)
			for i := range 20 {
				if got := w.ask(c.method, "/", c.headers...); got != want && c.name != "a header that differs" {
					t.Fatalf("answer %d: %s\nwant %s", i, got, want)
				}
			}
			n := uint64(0)
			for _, s := range r.app().configured.shields {
				n += s.record.atDoorH2.Load()
			}
			if n > 0 != c.want || c.want && n < 10 {
				t.Errorf("%d of 20 were refused at the door, want %v", n, c.want)
			}
			eventually(t, "no refusal is held", func() bool { return r.stats().Held == 0 })
		})
	}
}

// TestDoorH2Lives sends requests for longer than a memo counts, over TLS.
func TestDoorH2Lives(t *testing.T) {
	cert := newCertificate(t)
	r := start(t, setup{apps: cert.apps, server: cert.server + withDoor + `"protocols": ["h1", "h2"],`, handlers: overQuota("") + "," + respondOK})
	trust := cert.trust.Clone()
	trust.NextProtos = []string{"h2"}
	conn, err := tls.Dial("tcp", r.addr, trust)
	if err != nil {
		t.Fatal(err)
	}
	w, sent := newH2Client(t, conn), uint64(0)
	for began := time.Now(); time.Since(began) < 2*memoLife; sent++ {
		if got := w.ask("GET", "/"); sent > 0 && !strings.Contains(got, "429") {
			t.Fatalf("answer %d is %s", sent, got)
		}
	}
	_ = conn.Close()
	if usual := sent - r.atDoorH2(); usual < 5 || usual > 20 {
		t.Errorf("%d of %d went the usual way, want 4 at first, and 1 after each %v, or a few more", usual, sent, memoLife)
	}
}

// TestDoorH2KeepsTheQuota hammers a quota on several connections, and compares what was admitted.
func TestDoorH2KeepsTheQuota(t *testing.T) {
	const rate, burst = 100, 20
	zone := fmt.Sprintf(`{"handler": "shield", "name": "s", "pushback": {"dither": false}, "zones": [{"name": "z", "rate": %d, "burst": %d}], "concurrency": {"limit": 100}}`, rate, burst)
	s := setup{server: withH2Door, handlers: zone + "," + respondOK}
	for _, reloads := range []int{0, 3} {
		r := start(t, s)
		before := r.atDoorH2() // in the round before
		var ok, all, connections atomic.Int64
		var done atomic.Bool
		began := time.Now()
		var clients sync.WaitGroup
		for range 8 {
			clients.Go(func() {
				for !done.Load() {
					conn, err := net.Dial("tcp", r.addr)
					if err != nil {
						continue
					}
					w := newH2Client(t, conn)
					connections.Add(1)
					for !done.Load() {
						var streams []uint32
						for range 4 {
							streams = append(streams, w.request("GET", "/"))
						}
						w.until(func() bool {
							return !slices.ContainsFunc(streams, func(s uint32) bool { return !w.ended[s] })
						})
						w.mu.Lock()
						for _, stream := range streams {
							if w.ended[stream] {
								all.Add(1)
								if strings.Contains(strings.Join(w.said[stream], ""), ":status: 200") {
									ok.Add(1)
								}
							}
						}
						over := w.over
						w.mu.Unlock()
						if over {
							break
						}
					}
					_ = conn.Close()
				}
			})
		}
		for range reloads {
			dawdle(300 * time.Millisecond)
			r.load(s)
		}
		dawdle(600 * time.Millisecond)
		done.Store(true)
		clients.Wait()
		most := burst + rate*time.Since(began).Seconds()
		stats := r.stats()
		little := float64(ok.Load()) < 0.7*most-10 && float64(all.Load()) > 20*most // a busy machine asks for less
		if float64(ok.Load()) > most || reloads == 0 && (little || stats.Admitted != uint64(ok.Load())) {
			t.Errorf("%d were admitted and %d counted, want about %.0f", ok.Load(), stats.Admitted, most)
		}
		// On each connection the door learns first, from two times four streams. A busy machine
		// asks for little more than that.
		n, refused := int64(r.atDoorH2()-before), all.Load()-ok.Load()
		if usual := refused - n; usual > n && usual > 8*connections.Load() {
			t.Errorf("%d of %d were refused at the door, on %d connections", n, refused, connections.Load())
		}
		t.Logf("%d reloads: %d answers, %d admitted, %d at the door", reloads, all.Load(), ok.Load(), n)
		r.drains()
		eventually(t, "no refusal is held", func() bool { return r.stats().Held == 0 })
	}
}

// TestDoorH2Holds has the door hold refusals back, from clients that leave, and over a reload.
func TestDoorH2Holds(t *testing.T) {
	s := setup{server: withH2Door, handlers: `{"handler": "shield", "name": "s",
		"capacity": {"rate": 20, "burst": 4}, "retries": {"key": "{http.request.header.X-Key}"}},` + respondOK}
	r := start(t, s)
	// held returns a connection, and requests on it of which the door holds some back: it is one of
	// many clients with one key. By chance it may hold none; then another key is tried.
	held := func(agent string) (*h2Client, []uint32) {
		for try := range 10 {
			key := fmt.Sprint(agent, try)
			for i := range 200 { // wait before them, for ten seconds
				r.get("/", "X-Key", fmt.Sprint(key, "-", i), "Shield-Retry", "?1")
			}
			w := r.dialH2()
			w.agent = key // if clients of an agent leave, its refusals are not held back
			send := func(n int) (streams []uint32) {
				for range n {
					streams = append(streams, w.request("GET", "/", "x-key", key))
				}
				return streams
			}
			for before := r.atDoorH2(); r.atDoorH2() == before; {
				for _, stream := range send(12) {
					w.answer(stream)
				}
			}
			streams := send(60)
			for began := time.Now(); time.Since(began) < time.Second; dawdle(time.Millisecond) {
				if r.stats().Held > 20 {
					return w, streams
				}
			}
		}
		t.Fatal("no refusal is held")
		return nil, nil
	}
	answered := func(w *h2Client, stream uint32) {
		if got := w.answer(stream); !strings.Contains(got, ":status: 503") && !strings.Contains(got, ":status: 200") {
			t.Errorf("stream %d is answered %q", stream, got)
		}
	}
	none := func() bool { return r.stats().Held == 0 }

	w, streams := held("leaves some")
	before, lost := r.atDoorH2(), r.stats().Lost
	for i, stream := range streams {
		if i%2 == 0 {
			_ = w.WriteRSTStream(stream, http2.ErrCodeCancel)
		}
	}
	for i, stream := range streams {
		if i%2 == 1 {
			answered(w, stream)
		}
	}
	eventually(t, "no refusal is held", none)
	told, left := r.atDoorH2()-before, r.stats().Lost-lost
	if told == 0 || left == 0 || told+left > uint64(len(streams)) {
		t.Errorf("of %d the door has answered %d, and %d clients left", len(streams), told, left)
	}

	w, streams = held("sees a reload")
	r.load(s)
	for _, stream := range streams {
		answered(w, stream)
	}
	eventually(t, "no refusal is held after a reload", none)

	w, _ = held("leaves")
	lost = r.stats().Lost
	_ = w.Close()
	eventually(t, "no refusal is held after the client's end", none)
	if r.stats().Lost == lost {
		t.Error("no client has left")
	}
}

// TestDoorH2BesideDownloads has the door answer while the server writes long responses.
func TestDoorH2BesideDownloads(t *testing.T) {
	const long = 300 << 10
	hook := newHook(t, func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
		if r.URL.Path != "/long" {
			return next.ServeHTTP(w, r)
		}
		_, err := w.Write(make([]byte, long))
		return err
	})
	r := start(t, setup{server: withH2Door, handlers: hook + "," + overQuota(`, "pushback": {"dither": false}`) + "," + respondOK})
	w := r.dialH2()
	w.ask("GET", "/") // Go's server acknowledges two SETTINGS at once as one, and then the door answers nothing
	_ = w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	_ = w.WriteWindowUpdate(0, 1<<30)
	for range 8 {
		w.ask("GET", "/")
	}
	for range 20 {
		downloads := []uint32{w.request("GET", "/long"), w.request("GET", "/long")}
		for range 50 {
			if got := w.ask("GET", "/"); !strings.Contains(got, ":status: 429") {
				t.Fatalf("it is answered %q", got)
			}
		}
		for _, stream := range downloads {
			sum := 0
			for _, frame := range regexp.MustCompile(`(\d+) bytes`).FindAllStringSubmatch(w.answer(stream), -1) {
				n, _ := strconv.Atoi(frame[1])
				sum += n
			}
			if sum != long {
				t.Errorf("stream %d has %d bytes, want %d", stream, sum, long)
			}
		}
	}
	if n := r.atDoorH2(); n < 500 {
		t.Errorf("%d of 1000 were refused at the door", n)
	}
}

// TestDoorH2Leaves compares what a server with and one without a door say when they leave.
func TestDoorH2Leaves(t *testing.T) {
	p := startPair(t, `{"path": ["/ok"]}`)
	said := map[string]map[uint32][]string{}
	clients := map[string]*h2Client{}
	for _, addr := range []string{p.bare, p.door} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		clients[addr] = newH2Client(t, conn)
		for range 8 {
			clients[addr].ask("GET", "/a")
		}
	}
	if _, atDoor := p.refused(t); atDoor[1] == 0 {
		t.Error("nothing was refused at the door")
	}
	startPairAt(t, p, `{"path": ["/ok"]}`, certificate{}) // a reload
	for addr, c := range clients {
		c.until(func() bool { return c.said[0] != nil })
		c.request("GET", "/a")
		c.until(func() bool { return false }) // the connection's end
		c.mu.Lock()
		said[addr] = c.said
		c.mu.Unlock()
	}
	if unlike := unlikeH2(said[p.bare], said[p.door]); unlike != "" || !slices.Contains(said[p.door][0], "goaway NO_ERROR") {
		t.Errorf("%s; the connection: %q", unlike, said[p.door][0])
	}
}

// TestDoorH2GivesBack has the door admit requests that their server does not serve any more.
func TestDoorH2GivesBack(t *testing.T) {
	c := newDoorConn(nil, new(memos))
	h := newH2Door(c, new(headBuffer), nil)
	gone := 0
	hand := func() *inHand { gone++; return &inHand{d: shield.Decision{Gone: true}} } // drop does nothing
	block := []byte{0x82}
	f := frame{bytes: append(make([]byte, frameHead), block...)}
	for i := range 3 * maxNotes {
		h.number(&f, 1, block, false, hand())
		if i == 0 && (h.claim(1).hand == nil || h.claim(1).hand != nil) {
			t.Error("a decision is to be had once")
		}
	}
	h.close()
	h.number(&f, 1, block, false, hand())
	if h.notes != nil || h.claim(h.numbered).hand != nil {
		t.Error("something is left after the connection's end")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	h.held, h.answered, h.passed = map[uint32]context.CancelCauseFunc{1: cancel}, 1, 3
	h.look(&frame{FrameHeader: http2.FrameHeader{Type: http2.FrameRSTStream, StreamID: 1, Length: 4}})
	if ctx.Err() == nil {
		t.Error("a refusal is still held after its client has left, because the server has heard of a later stream")
	}
}

// TestDoorH2Malformed sends a header block whose last field is cut off: the number of the request
// must not become a part of it.
func TestDoorH2Malformed(t *testing.T) {
	r := start(t, setup{server: withH2Door, handlers: overQuota("") + "," + respondOK})
	w := r.dialH2()
	for range 4 {
		w.ask("GET", "/")
	}
	size := appendNumbered(make([]byte, frameHead), nil, 1)[frameHead:]
	block := append(w.encode(":method", "GET", ":scheme", "http", ":authority", "h", ":path", "/"), 0, 1, 'x', byte(len(size)))
	_ = w.WriteHeaders(http2.HeadersFrameParam{StreamID: w.stream, BlockFragment: block, EndStream: true, EndHeaders: true})
	w.until(func() bool { return w.said[0] != nil || w.ended[w.stream] })
	if got := fmt.Sprint(w.said[0], w.said[w.stream]); got != "[goaway COMPRESSION_ERROR] []" {
		t.Errorf("a malformed block is answered %s, want a connection error", got)
	}
}

// script is what a client does, by a random number.
func (c *h2Client) script(rnd *rand.Rand) {
	var open []uint32 // uploads
	wait := func(stream uint32) { c.until(func() bool { return c.ended[stream] }) }
	last, resized := uint32(0), false
	for range 4 + rnd.IntN(30) {
		stream := c.stream
		switch k := rnd.IntN(100); {
		case k < 45:
			last = c.request("GET", "/a")
		case k < 52:
			last = c.request("GET", fmt.Sprint("/", rnd.IntN(4)))
		case k < 57:
			last = c.request([]string{"HEAD", "POST", "OPTIONS"}[rnd.IntN(3)], "/a")
		case k < 62:
			last = c.request("GET", "/ok")
		case k < 67: // an upload, which goes on later
			c.stream += 2
			_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.encode(":method", "POST", ":scheme", "http", ":authority", "h", ":path", "/ok"), EndHeaders: true})
			open = append(open, stream)
		case k < 73 && len(open) > 0:
			_ = c.WriteData(open[0], rnd.IntN(2) == 0, make([]byte, rnd.IntN(3000)))
			open = open[1:]
		case k < 76: // in two frames
			c.stream += 2
			block := c.encode(":method", "GET", ":scheme", "http", ":authority", "h", ":path", "/a", "user-agent", "test")
			cut := rnd.IntN(len(block) + 1)
			_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block[:cut], EndStream: true})
			_ = c.WriteContinuation(stream, true, block[cut:])
			last = stream
		case k < 80: // padded, or with a priority
			c.stream += 2
			p := http2.HeadersFrameParam{StreamID: stream, EndStream: true, EndHeaders: true,
				BlockFragment: c.encode(":method", "GET", ":scheme", "http", ":authority", "h", ":path", "/a", "user-agent", "test")}
			if p.Priority = (http2.PriorityParam{StreamDep: uint32(rnd.IntN(3)), Weight: 9}); rnd.IntN(2) == 0 {
				p.PadLength, p.Priority = uint8(1+rnd.IntN(9)), http2.PriorityParam{}
			}
			_ = c.WriteHeaders(p)
			last = stream
		case k < 83 && last > 0:
			_ = c.WriteWindowUpdate(last, uint32(1+rnd.IntN(9)))
		case k < 86 && last > 0:
			wait(last)
			_ = c.WriteRSTStream(last, http2.ErrCodeCancel)
		case k < 88 && last > 0:
			_ = c.WritePriority(last, http2.PriorityParam{Weight: 3})
		case k < 91 && !resized: // once: a Decoder takes two at once for an error
			resized = true
			_ = c.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: uint32(rnd.IntN(3) * 2048)})
		case k < 93:
			_ = c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(65535 + rnd.IntN(9))})
		case k < 95:
			c.enc.SetMaxDynamicTableSize(uint32(rnd.IntN(3) * 2048))
		case k < 96:
			_ = c.WriteRawFrame(http2.FrameType(0x20+rnd.IntN(9)), 0, 0, make([]byte, rnd.IntN(99)))
		case k < 96+rnd.IntN(2): // a block that is cut off
			block := c.encode(":method", "GET", ":scheme", "http", ":authority", "h", ":path", "/a", "x-long", strings.Repeat("~", 99))
			_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block[:len(block)-1-rnd.IntN(60)], EndStream: true, EndHeaders: true})
			return
		case k < 97 && last > 0: // a stream that was used
			wait(last)
			_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: last, BlockFragment: c.encode(":method", "GET", ":scheme", "http", ":authority", "h", ":path", "/a", "user-agent", "test"), EndStream: true, EndHeaders: true})
			return
		default:
			if last > 0 {
				wait(last)
			}
		}
		if last > 0 && rnd.IntN(2) == 0 {
			wait(last)
		}
	}
	for _, stream := range open {
		_ = c.WriteData(stream, true, nil)
	}
}

// playH2 has a client send what a random number says, and returns its answers by stream.
func playH2(t testing.TB, addr string, rnd *rand.Rand) map[uint32][]string {
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer conn.Close()
	var out net.Conn = conn
	if rnd.IntN(2) == 0 {
		out = piecemeal{conn, rand.New(rand.NewPCG(rnd.Uint64(), 3))}
	}
	c := newH2Client(t, out)
	c.script(rnd)
	_ = c.WritePing(false, [8]byte{1})
	c.until(func() bool {
		for stream := uint32(1); stream < c.stream; stream += 2 {
			if !c.ended[stream] {
				return false
			}
		}
		return c.pinged > 0
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.said
}

// overQuotaH2 uses the quota of both servers.
func (p pair) overQuotaH2(t testing.TB) {
	for _, addr := range []string{p.bare, p.door} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		newH2Client(t, conn).ask("GET", "/a")
		_ = conn.Close()
	}
}

// unlikeH2 returns a stream that is answered differently at the door, and how; "": there is none.
func unlikeH2(want, got map[uint32][]string) string {
	last := uint32(99)
	if want[0] != nil { // an error: what was answered before depends on the time
		last = 0
	}
	for stream := range last + 1 {
		if w, g := want[stream], got[stream]; !slices.Equal(w, g) {
			return fmt.Sprintf("stream %d: at the door %q, without %q", stream, g, w)
		}
	}
	return ""
}

// TestDoorH2Streams sends random frames to a server with and to one without a door: all answers
// must be the same, by stream.
func TestDoorH2Streams(t *testing.T) {
	p := startPair(t, `{"path": ["/ok"]}`)
	p.overQuotaH2(t)
	var next, answers atomic.Int64
	var senders sync.WaitGroup
	for range 32 {
		senders.Go(func() {
			for i := next.Add(1); i <= int64(*streams/5); i = next.Add(1) {
				want, got := playH2(t, p.bare, random(int(i), 2)), playH2(t, p.door, random(int(i), 2))
				answers.Add(int64(len(want) + len(got)))
				if unlike := unlikeH2(want, got); unlike != "" {
					t.Errorf("connection %d, %s", i, unlike)
				}
			}
		})
	}
	senders.Wait()
	refused, atDoor := p.refused(t)
	t.Logf("%d connections, %d answers of both; %d refusals, %d of them at the door", *streams/5, answers.Load(), refused, atDoor[1])
	if atDoor[1] < refused/20 {
		t.Errorf("%d of %d refusals were at the door: the streams show little", atDoor[1], refused)
	}
}

// FuzzDoorH2 does so with the frames that a fuzzer's input stands for.
func FuzzDoorH2(f *testing.F) {
	p := startPair(f, `{"path": ["/ok"]}`)
	p.overQuotaH2(f)
	for i := range 20 {
		input := make([]byte, 200)
		for k, rnd := 0, random(i, 4); k < len(input); k++ {
			input[k] = byte(rnd.Uint32())
		}
		f.Add(input)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		unlike := ""
		for range 3 { // a busy machine may keep one of them waiting
			of := func() *rand.Rand { left := inputNumbers(input); return rand.New(&left) }
			if unlike = unlikeH2(playH2(t, p.bare, of()), playH2(t, p.door, of())); unlike == "" {
				return
			}
		}
		t.Error(unlike)
	})
}

// inputNumbers are random numbers: each is one byte of an input, and all bits of it depend on that.
type inputNumbers []byte

// Uint64 implements rand.Source. After the input all numbers are the same.
func (d *inputNumbers) Uint64() uint64 {
	next := byte(0x55)
	if len(*d) > 0 {
		next, *d = (*d)[0], (*d)[1:]
	}
	return 0x0101_0101_0101_0101 * uint64(next)
}

// A piecemeal connection writes in pieces of any length.
type piecemeal struct {
	net.Conn
	rnd *rand.Rand
}

func (p piecemeal) Write(b []byte) (n int, err error) {
	for len(b) > 0 && err == nil {
		k := min(len(b), 1+p.rnd.IntN(40))
		k, err = p.Conn.Write(b[:k])
		b, n = b[k:], n+k
	}
	return n, err
}

// FuzzHpack checks that a header block that is said to change nothing in the table changes nothing, and
// that a number can follow one that is said to be whole.
func FuzzHpack(f *testing.F) {
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	for _, sensitive := range []bool{false, true, false} {
		b.Reset()
		_ = enc.WriteField(hpack.HeaderField{Name: ":path", Value: "/a", Sensitive: sensitive})
		_ = enc.WriteField(hpack.HeaderField{Name: "x-y", Value: strings.Repeat("z", 200), Sensitive: sensitive})
		f.Add(slices.Clone(b.Bytes()))
	}
	f.Add([]byte{0x3f, 0xe1, 0x1f, 0x82})
	f.Fuzz(func(t *testing.T, block []byte) {
		// All fields, and the entries of the table, read by their indices.
		decode := func(block []byte) (fields []hpack.HeaderField, entries string, err error) {
			dec := hpack.NewDecoder(4096, nil)
			for _, seed := range [][]byte{{0x40, 1, 'a', 1, 'b'}, {0x40, 1, 'c', 1, 'd'}} {
				if _, err := dec.DecodeFull(seed); err != nil {
					t.Fatal(err)
				}
			}
			fields, err = dec.DecodeFull(block)
			for i := byte(62); err == nil; i++ {
				entry, end := dec.DecodeFull([]byte{0x80 | i})
				if end != nil {
					break
				}
				entries += fmt.Sprint(entry)
			}
			return fields, entries, err
		}
		whole, changes := lookAtBlock(block)
		if !whole {
			return
		}
		_, before, _ := decode(nil)
		fields, after, err := decode(block)
		if err == nil && !changes && after != before {
			t.Fatalf("%x leaves %s, want %s", block, after, before)
		}
		numbered := appendNumbered(nil, append(make([]byte, frameHead), block...), 7)[frameHead:]
		more, same, errToo := decode(numbered)
		want := append(fields, hpack.HeaderField{Name: numberName, Value: "7"})
		if (err == nil) != (errToo == nil) || err == nil && (!slices.Equal(more, want) || same != after) {
			t.Fatalf("%x with a number is %v %v, want %v %v", block, more, errToo, want, err)
		}
	})
}

// TestResetStreamsHoldNoPermit has the client or the server reset a stream whose request the door has admitted,
// and that no handler has seen: the permit is given back.
func TestResetStreamsHoldNoPermit(t *testing.T) {
	h := newLive(t, Live{Name: "reset", Config: shield.Config{Concurrency: 1}, State: new(LiveState)})
	client, end := net.Pipe()
	defer client.Close()
	go func() { _, _ = io.Copy(io.Discard, client) }()
	reset := []byte{0, 0, 4, byte(http2.FrameRSTStream), 0, 0, 0, 0, 5, 0, 0, 0, 8} // stream 5
	for name, by := range map[string]func(*h2Door){
		"the client": func(d *h2Door) { f := frameAt(reset); f.bytes = reset; d.look(&f) },
		"the server": func(d *h2Door) { _, _ = d.out.Write(reset) },
		"no one":     func(d *h2Door) { d.claim(1).end() },
	} {
		door := newH2Door(newDoorConn(end, new(memos)), new(headBuffer), nil)
		d := h.guard().Admit(shield.Now(), shield.Request{})
		door.notes = make([]h2Note, maxNotes)
		door.notes[1] = h2Note{number: 1, stream: 5, hand: &inHand{h, d}}
		if by(door); h.record.Stats(shield.Now()).InFlight != 0 || !d.Admit {
			t.Errorf("reset by %s: %d in flight", name, h.record.Stats(shield.Now()).InFlight)
		}
		if note := door.claim(1); note.hand != nil {
			t.Errorf("reset by %s: a handler still finds the decision", name)
		}
	}
}

// BenchmarkDoorH2 is what the door takes for one of four requests that are refused again at once.
func BenchmarkDoorH2(b *testing.B) {
	addr := freeAddr(b)
	if err := caddy.Load(setup{server: withH2Door, handlers: overQuota(`, "pushback": {"dither": false}`) + "," + respondOK}.json(addr), true); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = caddy.Stop() }()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	w := newH2Client(b, conn)
	b.ReportAllocs()
	for b.Loop() {
		for range 4 {
			w.request("GET", "/")
		}
		w.until(func() bool { return w.ended[w.stream-2] })
	}
}

// A client may send an upload before it reads what others on its connection are answered: the door reads on, though
// nothing can be written.
func TestDoorH2ReadsWhileNothingIsRead(t *testing.T) {
	hook := newHook(t, func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
		switch r.URL.Path {
		case "/download":
			for b := make([]byte, 64<<10); ; {
				if _, err := w.Write(b); err != nil {
					return nil
				}
			}
		case "/upload":
			_, _ = io.Copy(io.Discard, r.Body)
			return nil
		}
		return next.ServeHTTP(w, r)
	})
	r := start(t, setup{server: withH2Door, handlers: hook + "," + overQuota(`, "pushback": {"dither": false}`) + "," + respondOK})
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	_ = conn.(*net.TCPConn).SetWriteBuffer(32 << 10)
	wire := http2.NewFramer(conn, conn)
	_, _ = io.WriteString(conn, http2.ClientPreface)
	_ = wire.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	_ = wire.WriteWindowUpdate(0, 1<<30)
	ended, last := map[uint32]bool{}, ^uint32(0) // the next one is 1
	readUntil := func(stream uint32) {
		for !ended[stream] {
			f, err := wire.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			switch f := f.(type) {
			case *http2.SettingsFrame:
				if !f.IsAck() {
					_ = wire.WriteSettingsAck()
				}
			case *http2.DataFrame:
				ended[f.StreamID] = f.StreamEnded()
			case *http2.HeadersFrame:
				ended[f.StreamID] = f.StreamEnded()
			}
		}
	}
	var block bytes.Buffer
	fields := hpack.NewEncoder(&block)
	ask := func(method, path string) uint32 {
		block.Reset()
		for _, f := range []hpack.HeaderField{{Name: ":method", Value: method}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: "h"}, {Name: ":path", Value: path}} {
			_ = fields.WriteField(f)
		}
		last += 2
		_ = wire.WriteHeaders(http2.HeadersFrameParam{StreamID: last, BlockFragment: block.Bytes(), EndStream: method == "GET", EndHeaders: true})
		return last
	}
	readUntil(ask("GET", "/"))
	upload := ask("POST", "/upload")
	ask("GET", "/download")
	for range 6 {
		readUntil(ask("GET", "/"))
	}
	dawdle(300 * time.Millisecond) // the download fills the sockets
	for range 150 {
		ask("GET", "/")
	}
	for range 60 { // the window is 1 MiB
		if err := wire.WriteData(upload, false, make([]byte, 16<<10)); err != nil {
			t.Fatalf("the upload: %v", err)
		}
	}
	_ = wire.WriteData(upload, true, nil)
	readUntil(last)
	readUntil(upload)
}

// What ends a stream that was answered at the door does not reach the server, even after a request that the server does
// not count because it cannot read it.
func TestDoorH2AnsweredStreamIsReset(t *testing.T) {
	for _, reset := range []func(w *h2Client, stream uint32) error{
		func(w *h2Client, stream uint32) error { return w.WriteRSTStream(stream, http2.ErrCodeCancel) },
		func(w *h2Client, stream uint32) error { return w.WriteWindowUpdate(stream, 100) },
	} {
		r := start(t, setup{server: withH2Door, handlers: overQuota(`, "pushback": {"dither": false}`) + "," + respondOK})
		w := r.dialH2()
		var last uint32
		for range 6 {
			last = w.request("GET", "/")
			w.answer(last)
		}
		bad := w.stream
		w.stream += 2
		block := w.encode(":method", "GET", ":scheme", "http", ":authority", "h", ":path", "/", "x-bad", "a\x01b")
		_ = w.WriteHeaders(http2.HeadersFrameParam{StreamID: bad, BlockFragment: block, EndStream: true, EndHeaders: true})
		_ = reset(w, last)
		w.answer(w.request("GET", "/other"))
	}
}
