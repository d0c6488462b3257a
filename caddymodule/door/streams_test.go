package door_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

var streams = flag.Int("streams", 400, "random streams in tests of streams; 100000 in long runs")

const memoLife = time.Second

// loadPair runs a site that has two shields, for a server with a door and for one without, which have the same quota. Requests
// that a matcher takes go without a shield.
func loadPair(t testing.TB, unshielded string) {
	t.Helper()
	ok := fmt.Sprintf(`{"match": [%s], "handle": [%s], "terminal": true}`, unshielded, respondOK)
	load(t, "", site{"door", withDoor, ok + "," + route(overQuota("door", "z", ""), respondOK)}, site{"bare", "", ok + "," + route(overQuota("bare", "z", ""), respondOK)})
}

// random returns the i-th series of random numbers. Those of a PCG with i as its seed begin alike.
func random(i int, series byte) *rand.Rand {
	return rand.New(rand.NewChaCha8([32]byte{byte(i), byte(i >> 8), byte(i >> 16), series}))
}

// TestStreams sends streams to a server with and to one without a door: all answers must be the same, byte for byte.
func TestStreams(t *testing.T) {
	rejected := []string{get, get, get, get}
	after := func(before []string, pieces func(*rand.Rand) string) func(i int) []string {
		return func(i int) []string { return append(slices.Clone(before), stream(random(i, 16), pieces)...) }
	}
	split := splitStreams()
	for _, c := range []struct {
		name, unshielded string
		n                int
		of               func(i int) []string
	}{
		{"repeated", `{"path": ["/ok"]}`, *streams, after(rejected, pieces)},
		{"split", `{"path": ["/ok"]}`, min(*streams/2, len(split)), func(i int) []string { return split[i*len(split)/min(*streams/2, len(split))] }},
		{"long lines", `{"path": ["/ok"]}`, len(longLines()), func(i int) []string { return longLines()[i] }},
	} {
		t.Run(c.name, func(t *testing.T) {
			loadPair(t, c.unshielded)
			play(t, func(s *stage) {
				bareSite, doorSite := s.serve(handlerOf(t, "bare"), false), s.serve(handlerOf(t, "door"), true)
				s.dial(bareSite).ask(get)
				s.dial(doorSite).ask(get)
				for i := range c.n {
					bare, door := s.dial(bareSite), s.dial(doorSite)
					chunks := c.of(i)
					for k, chunk := range chunks {
						want, got := bare.ask(chunk), door.ask(chunk)
						if want != got || bare.isOver() != door.isOver() {
							t.Fatalf("stream %d, %q, chunk %d is answered\n%q\nwant\n%q", i, chunks, k, got, want)
						}
						if i%8 == 0 {
							pass(300 * time.Millisecond)
						}
					}
					bare.close()
					door.close()
				}
			})
			all, at := int(facts(t, "door").Rejected["quota"]), atDoor(t, "door")
			t.Logf("%d streams, %d rejections, %d of them at the door", c.n, all, at)
			if at < all/50 {
				t.Errorf("%d of %d rejections were at the door: the streams show little", at, all)
			}
		})
	}
}

// TestH2Streams does so with random frames: all answers must be the same, by stream.
func TestH2Streams(t *testing.T) {
	loadPair(t, `{"path": ["/ok"]}`)
	play(t, func(s *stage) {
		bare, door := s.serve(handlerOf(t, "bare"), false), s.serve(handlerOf(t, "door"), true)
		s.dial(bare).ask(get)
		s.dial(door).ask(get)
		for i := range max(1, *streams/5) {
			of := func(l *pipeListener) map[uint32][]string { return s.playH2(l, random(i, 2)) }
			if unlike := unlikeH2(of(bare), of(door)); unlike != "" {
				t.Fatalf("connection %d, %s", i, unlike)
			}
		}
	})
	all, at := int(facts(t, "door").Rejected["quota"]), atDoor(t, "door")
	t.Logf("%d rejections, %d of them at the door", all, at)
	if at < all/20 {
		t.Errorf("%d of %d rejections were at the door: the streams show little", at, all)
	}
}

// playH2 has a client send what random numbers say, and returns its answers by stream.
func (s *stage) playH2(l *pipeListener, rnd *rand.Rand) map[uint32][]string {
	conn, err := l.dial()
	if err != nil {
		s.Fatal(err)
	}
	var pieces *rand.Rand
	if rnd.IntN(2) == 0 {
		pieces = rand.New(rand.NewPCG(rnd.Uint64(), 3))
	}
	c := newH2Client(s.T, conn, pieces)
	c.script(rnd)
	settle()
	_ = conn.Close()
	c.done.Wait()
	return c.all()
}

// unlikeH2 returns a stream that is answered differently at the door, and how; "": there is none. After an
// error of the connection, how much was answered before depends on the order.
func unlikeH2(want, got map[uint32][]string) string {
	if want[0] != nil || got[0] != nil {
		want, got = map[uint32][]string{0: want[0]}, map[uint32][]string{0: got[0]}
	}
	if reflect.DeepEqual(want, got) {
		return ""
	}
	for stream := range uint32(99) {
		if w, g := want[stream], got[stream]; !slices.Equal(w, g) {
			return fmt.Sprintf("stream %d: at the door %q, without %q", stream, g, w)
		}
	}
	return "a high stream"
}

// stream returns what a client sends, in chunks.
func stream(rnd *rand.Rand, pieces func(*rand.Rand) string) (chunks []string) {
	for range 1 + rnd.IntN(8) {
		p := pieces(rnd)
		switch k := rnd.Float64(); {
		case k < .2 && len(p) > 2:
			cuts := []int{1, 14, len(p) - 1, 1 + rnd.IntN(len(p)-1), strings.Index(p, "\r\n\r\n") + 4, 4094 + rnd.IntN(4)}
			c := min(max(1, cuts[rnd.IntN(len(cuts))]), len(p)-1)
			chunks = append(chunks, p[:c], p[c:])
		case k < .4 && len(chunks) > 0:
			chunks[len(chunks)-1] += p // pipelined
		default:
			chunks = append(chunks, p)
		}
	}
	return chunks
}

// pieces are parts of streams: requests that are remembered, alone and inside of others, and
// those that servers have been known to disagree about.
func pieces(rnd *rand.Rand) string {
	const other = "GET /b HTTP/1.1\r\nHost: h\r\nX: 1\r\n\r\n"
	bodies := []string{get, other, get + get, "x", get[1:], "\r\n" + get}
	body := bodies[rnd.IntN(len(bodies))]
	length := fmt.Sprintf("Content-Length: %d\r\n", len(body))
	chunked := fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	rare := []string{
		"GET /lf HTTP/1.1\nHost: h\n\n", "GET /a HTTP/1.1\r\r\nHost: h\r\n\r\n", get[1:], "G", "\r\n", "\n", "GET /a\r\n\r\n",
		"GET /a HTTP/1.0\r\nHost: h\r\n\r\n", "GET http://h/a HTTP/1.1\r\nHost: h\r\n\r\n", "GET /a HTTP/1.1\r\n\r\n",
		"GET /a HTTP/1.1\r\nHost: h\r\nA_B: GET /a HTTP/1.1\r\n\r\n", "GET /a HTTP/1.1\r\nHost: h\r\nX: y\r\n " + get,
		"GET /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		obfuscated[rnd.IntN(len(obfuscated))], obfuscated[rnd.IntN(len(obfuscated))],
		"GET /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\n\r\n", "GET /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
		"GET /a HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", "GET /a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n" + length + "\r\n" + body,
		"GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "GET /a HTTP/1.1\r\nHost : h\r\n\r\n", http2.ClientPreface,
		"PRI /x HTTP/1.1\r\nHost: a\r\n\r\n", "PRI * HTTP/1.1\r\nHost: a\r\n\r\n",
		"POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n\r\n", "HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n", "CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "GET /a HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
		"GET /long HTTP/1.1\r\nHost: h\r\nX: " + strings.Repeat("x", 1500+rnd.IntN(4000)) + "\r\n\r\n",
	}
	switch k := rnd.Float64(); {
	case k < .55:
		return get
	case k < .61:
		return other
	case k < .65:
		return fmt.Sprintf("GET /c%d HTTP/1.1\r\nHost: h\r\n\r\n", rnd.IntN(5))
	case k < .70:
		return "GET /ok HTTP/1.1\r\nHost: h\r\n\r\n"
	case k < .76:
		return "POST /p HTTP/1.1\r\nHost: h\r\n" + length + "\r\n" + body
	case k < .82:
		return "POST /p HTTP/1.1\r\nHost: h\r\n" + chunked
	case k < .86:
		return "GET /a HTTP/1.1\r\nHost: h\r\n" + length + "\r\n" + body
	}
	return rare[rnd.IntN(len(rare))]
}

// obfuscated are requests whose bodies servers may find to be of different lengths.
var obfuscated = func() (all []string) {
	chunks := "5\r\nGET /\r\n0\r\n\r\n"
	for _, field := range []string{
		"Transfer-Encoding : chunked", "Transfer-Encoding:\tchunked", "Transfer-Encoding: xchunked", "Transfer-Encoding: Chunked", "Transfer-Encoding: chunked ",
		"Transfer-Encoding: chunked, identity", "Transfer-Encoding: identity, chunked", "Transfer-Encoding: chunked\r\nTransfer-Encoding: x", "Transfer-Encoding:\r\n chunked",
		" Transfer-Encoding: chunked", "X: y\rTransfer-Encoding: chunked", "X: y\nTransfer-Encoding: chunked", "Transfer_Encoding: chunked",
		"Content-Length: 5\r\nTransfer-Encoding: chunked", "Content-Length: +5", "Content-Length: 0x5", "Content-Length: 5, 5", "Content-Length: 5\r\nContent-Length: 6", "Content-Length: -5",
	} {
		all = append(all, "GET /a HTTP/1.1\r\nHost: h\r\n"+field+"\r\n\r\n"+chunks)
	}
	const chunked = "POST /p HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, body := range []string{"5;x=y\r\nGET /\r\n0\r\n\r\n", "5\nGET /\n0\n\n", "05\r\nGET /\r\n0\r\n\r\n", "5 \r\nGET /\r\n0\r\n\r\n", "5\r\nGET /0\r\n\r\n", "-1\r\n\r\n", "5\r\nGET /\r\n0\r\nX: y\r\n\r\n"} {
		all = append(all, chunked+body)
	}
	return all
}()

// splitStreams are some pieces, each split between any two bytes, after rejections of the same request.
func splitStreams() (all [][]string) {
	for _, p := range slices.Concat(obfuscated, []string{get, get + get, "HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n", "POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nGET /"}) {
		for cut := 1; cut < len(p); cut++ {
			all = append(all, []string{get, get, get, get, p[:cut], p[cut:], get, get})
		}
	}
	return all
}

// longLines are streams with a line that is longer than net/http's buffer of 4096 bytes, cut about where
// that is full but for one byte, which net/http then asks for alone.
func longLines() (all [][]string) {
	const chunked = "POST /ok HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
	long := strings.Repeat("a", 5000)
	for _, p := range [][3]string{
		{"", "GET /" + long, " HTTP/1.1\r\nHost: h\r\n\r\n"}, {"GET /a HTTP/1.1\r\nHost: h\r\n", "X: " + long, "\r\n\r\n"},
		{chunked, "1;" + long, "\r\nx\r\n0\r\n\r\n"}, {chunked + "1\r\nx\r\n0\r\n", "X: " + long, "\r\n\r\n"},
	} {
		for cut := 4094; cut <= 4097; cut++ {
			stream := []string{get, get, get, get}
			if p[0] != "" {
				stream = append(stream, p[0])
			}
			all = append(all, append(stream, p[1][:cut], p[1][cut:]+p[2], get))
		}
	}
	return all
}
