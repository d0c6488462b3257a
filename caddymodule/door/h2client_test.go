package door_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// An h2Client sends frames as it is told to, and notes what comes.
type h2Client struct {
	testing.TB
	net.Conn
	*http2.Framer
	enc    *hpack.Encoder
	block  bytes.Buffer
	stream uint32 // the next one
	done   sync.WaitGroup
	deaf

	mu    sync.Mutex
	said  map[uint32][]string // by stream; 0: the connection's end
	ended map[uint32]bool
}

func (s *stage) dialH2(l *pipeListener) *h2Client {
	s.Helper()
	conn, err := l.dial()
	if err != nil {
		s.Fatal(err)
	}
	c := newH2Client(s.T, conn, nil)
	s.closers = append(s.closers, func() { _ = conn.Close(); c.done.Wait() })
	return c
}

// newH2Client begins with the settings. With rnd it writes in pieces of any length.
func newH2Client(t testing.TB, conn net.Conn, rnd *rand.Rand) *h2Client {
	out := &queue{to: conn, rnd: rnd}
	c := &h2Client{TB: t, Conn: conn, Framer: http2.NewFramer(out, conn), stream: 1, said: map[uint32][]string{}, ended: map[uint32]bool{}}
	c.enc = hpack.NewEncoder(&c.block)
	c.done.Go(c.listen)
	_, _ = io.WriteString(out, http2.ClientPreface)
	_ = c.WriteSettings()
	settle()
	_ = c.WriteSettingsAck()
	return c
}

// A queue writes without waiting for the reader.
type queue struct {
	to      net.Conn
	rnd     *rand.Rand
	mu      sync.Mutex
	waiting []byte // guarded by mu
	writing bool   // guarded by mu
}

func (q *queue) Write(b []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting = append(q.waiting, b...); !q.writing {
		q.writing = true
		go q.write()
	}
	return len(b), nil
}

func (q *queue) write() {
	for {
		q.mu.Lock()
		n := len(q.waiting)
		if q.rnd != nil {
			n = min(n, 1+q.rnd.IntN(40))
		}
		b := q.waiting[:n:n]
		q.waiting, q.writing = q.waiting[n:], n > 0
		q.mu.Unlock()
		if n == 0 {
			return
		}
		_, _ = q.to.Write(b)
	}
}

// listen notes what the server sends, with a decoder for all of it.
func (c *h2Client) listen() {
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		c.listens()
		f, err := c.ReadFrame()
		if err != nil {
			return
		}
		c.mu.Lock()
		stream := f.Header().StreamID
		say := func(what string, args ...any) { c.said[stream] = append(c.said[stream], fmt.Sprintf(what, args...)) }
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			text := ""
			for _, h := range f.Fields {
				text += h.Name + ": " + h.Value + "\n"
			}
			say("%s", text)
			c.ended[stream] = f.StreamEnded()
		case *http2.DataFrame:
			say("%d bytes", len(f.Data()))
			c.ended[stream] = f.StreamEnded()
		case *http2.RSTStreamFrame:
			if !c.ended[stream] { // how much of an upload is read after the answer depends on the order
				say("reset %v", f.ErrCode)
			}
			c.ended[stream] = true
		case *http2.GoAwayFrame:
			say("goaway %v", f.ErrCode)
		}
		c.mu.Unlock()
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

// encodeRequest returns that of a request.
func (c *h2Client) encodeRequest(method, path string, more ...string) []byte {
	return c.encode(append([]string{":method", method, ":scheme", "http", ":authority", "h", ":path", path, "user-agent", "test"}, more...)...)
}

// begin sends the HEADERS of a stream, and returns its number.
func (c *h2Client) begin(p http2.HeadersFrameParam) uint32 {
	p.StreamID = c.stream
	c.stream += 2
	_ = c.WriteHeaders(p)
	return p.StreamID
}

// request sends a request and returns its stream.
func (c *h2Client) request(method, path string, more ...string) uint32 {
	return c.begin(http2.HeadersFrameParam{BlockFragment: c.encodeRequest(method, path, more...), EndStream: true, EndHeaders: true})
}

// ask sends a request and returns all of its answer that comes at this instant.
func (c *h2Client) ask(method, path string, more ...string) string {
	stream := c.request(method, path, more...)
	settle()
	return c.answer(stream)
}

func (c *h2Client) answer(stream uint32) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.said[stream], "")
}

// all returns what was said, by stream.
func (c *h2Client) all() map[uint32][]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.said
}

// script is what a client does, by random numbers.
func (c *h2Client) script(rnd *rand.Rand) {
	var open []uint32 // uploads
	last, resized := uint32(0), false
	for range 5 {
		c.ask("GET", "/a")
	}
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
			open = append(open, c.begin(http2.HeadersFrameParam{BlockFragment: c.encodeRequest("POST", "/ok"), EndHeaders: true}))
		case k < 73 && len(open) > 0:
			_ = c.WriteData(open[0], rnd.IntN(2) == 0, make([]byte, rnd.IntN(3000)))
			open = open[1:]
		case k < 76: // in two frames
			block := c.encodeRequest("GET", "/a")
			cut := rnd.IntN(len(block) + 1)
			last = c.begin(http2.HeadersFrameParam{BlockFragment: block[:cut], EndStream: true})
			_ = c.WriteContinuation(last, true, block[cut:])
		case k < 80: // padded, or with a priority
			p := http2.HeadersFrameParam{EndStream: true, EndHeaders: true, BlockFragment: c.encodeRequest("GET", "/a")}
			if p.Priority = (http2.PriorityParam{StreamDep: uint32(rnd.IntN(3)), Weight: 9}); rnd.IntN(2) == 0 {
				p.PadLength, p.Priority = uint8(1+rnd.IntN(9)), http2.PriorityParam{}
			}
			last = c.begin(p)
		case k < 83 && last > 0:
			_ = c.WriteWindowUpdate(last, uint32(1+rnd.IntN(9)))
		case k < 86 && last > 0:
			settle()
			_ = c.WriteRSTStream(last, http2.ErrCodeCancel)
		case k < 88 && last > 0:
			_ = c.WritePriority(last, http2.PriorityParam{Weight: 3})
		case k < 90 && !resized: // once: a Decoder takes two at once for an error
			resized = true
			settle() // net/http changes its table without a lock, also while it writes headers
			_ = c.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: uint32(rnd.IntN(3) * 2048)})
		case k < 91:
			_ = c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(65535 + rnd.IntN(9))})
		case k < 93:
			c.enc.SetMaxDynamicTableSize(uint32(rnd.IntN(3) * 2048))
		case k < 94:
			_ = c.WriteRawFrame(http2.FrameType(0x20+rnd.IntN(9)), 0, 0, make([]byte, rnd.IntN(99)))
		case k < 95: // what no server can read, and does not count
			last = c.request("GET", "/a", "x-bad", "a\x01b")
		case k < 95+rnd.IntN(2): // a block that is cut off, maybe just before what would follow it
			block := c.encodeRequest("GET", "/a", "x-long", strings.Repeat("~", 99))
			block = block[:len(block)-1-rnd.IntN(60)]
			if rnd.IntN(2) == 0 {
				block = append(c.encodeRequest("GET", "/a"), 0, 1, 'x', 29)
			}
			c.begin(http2.HeadersFrameParam{BlockFragment: block, EndStream: true, EndHeaders: true})
			return
		case k < 96 && last > 0: // a stream that was used
			settle()
			_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: last, BlockFragment: c.encodeRequest("GET", "/a"), EndStream: true, EndHeaders: true})
			return
		case k < 97:
			_ = c.WriteContinuation(stream, true, nil)
			return
		}
		if rnd.IntN(2) == 0 {
			settle()
		}
	}
	for _, stream := range open {
		_ = c.WriteData(stream, true, nil)
	}
}
