package caddymodule

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
)

var streams = flag.Int("streams", 5000, "random streams in TestDoorStreams; 100000 in long runs")

// A pair is two servers with the same handlers and limits, of which one has a door.
type pair struct {
	door, bare string
	tls        *tls.Config // nil: they speak none
}

// dial connects to one of the two.
func (p pair) dial(addr string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: patience}
	if p.tls != nil {
		return tls.DialWithDialer(dialer, "tcp", addr, p.tls)
	}
	return dialer.Dial("tcp", addr)
}

// freePair returns their addresses. Two free ones may be the same.
func freePair(t testing.TB) (p pair) {
	for p.door == p.bare {
		p = pair{door: freeAddr(t), bare: freeAddr(t)}
	}
	return p
}

// startPair has them answer requests that a matcher takes without a shield.
func startPair(t testing.TB, unshielded string) pair {
	t.Helper()
	return startPairAt(t, freePair(t), unshielded, certificate{})
}

// startPairAt has them speak TLS if there is a certificate.
func startPairAt(t testing.TB, p pair, unshielded string, cert certificate) pair {
	t.Helper()
	apps := cmp.Or(cert.apps, `"tls": {"disable_storage_check": true, "disable_storage_clean": true},`)
	p.tls = cert.trust
	server := func(addr, name, more string) string {
		return fmt.Sprintf(`{"listen": [%q], "automatic_https": {"disable": true}, "protocols": ["h1", "h2", "h2c"], %s "routes": [
			{"match": [%s], "handle": [%s], "terminal": true},
			{"handle": [{"handler": "shield", "name": %q, "pushback": {"dither": false}, "zones": [{"name": "z", "rate": 1, "per": "1h", "burst": 1}]}, %s]}
		]}`, addr, more, unshielded, respondOK, name, respondOK)
	}
	config := fmt.Appendf(nil, `{
		"admin": {"disabled": true, "config": {"persist": false}},
		"logging": {"logs": {"default": {"writer": {"output": "discard"}}}},
		"apps": {%s "http": {"servers": {"door": %s, "bare": %s}}}
	}`, apps, server(p.door, "door", cert.server+withDoor), server(p.bare, "bare", cert.server))
	if err := caddy.Load(config, true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = caddy.Stop() })
	return p
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
		"GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "GET /a HTTP/1.1\r\nHost : h\r\n\r\n", preface,
		"POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n\r\n", "HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n", "CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "GET /a HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
		"GET /long HTTP/1.1\r\nHost: h\r\nX: " + strings.Repeat("x", 1500+rnd.IntN(4000)) + "\r\n\r\n",
	}
	switch k := rnd.Float64(); {
	case k < .03:
		return longLine(rnd.IntN(4), 4200)
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

// longLine returns a request with a line of n bytes and more: its first one, a header, the size of a
// chunk or a trailer. The line begins at the start of net/http's buffer, if what comes before it is
// sent on its own.
func longLine(where, n int) string {
	before, line, after := longLineParts(where, n)
	return before + line + after
}

func longLineParts(where, n int) (before, line, after string) {
	const chunked = "POST /ok HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
	long := strings.Repeat("a", n)
	switch where {
	case 0:
		return "", "GET /" + long, " HTTP/1.1\r\nHost: h\r\n\r\n"
	case 1:
		return "GET /a HTTP/1.1\r\nHost: h\r\n", "X: " + long, "\r\n\r\n"
	case 2:
		return chunked, "1;" + long, "\r\nx\r\n0\r\n\r\n"
	}
	return chunked + "1\r\nx\r\n0\r\n", "X: " + long, "\r\n\r\n"
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

// preface begins HTTP/2.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// different makes pieces of streams in which hardly a request comes twice. Servers have been
// known to disagree about some.
func different(rnd *rand.Rand) string {
	n := rnd.IntN(1e6)
	one := fmt.Sprintf("GET /%d?a=%d HTTP/1.1\r\nHost: h\r\nX-Id: %d\r\n\r\n", n, n, n)
	switch k := rnd.Float64(); {
	case k < .6:
		return one
	case k < .65:
		return fmt.Sprintf("GET /%d HTTP/1.1\r\nHost: ok.test\r\n\r\n", n)
	case k < .7:
		return fmt.Sprintf("HEAD /%d HTTP/1.1\r\nHost: h\r\nAccept: text/html\r\n\r\n", n)
	case k < .75:
		return fmt.Sprintf("POST /%d HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", n, len(one), one)
	case k < .8:
		return strings.Replace(one, "\r\n\r\n", fmt.Sprintf("\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(one), one), 1)
	case k < .9:
		return smuggled[rnd.IntN(len(smuggled))]
	}
	return pieces(rnd)
}

// random returns the i-th series of random numbers. Those of a PCG with i as its seed begin alike.
func random(i int, series byte) *rand.Rand {
	return rand.New(rand.NewChaCha8([32]byte{byte(i), byte(i >> 8), byte(i >> 16), series}))
}

// stream returns what a client sends, in pieces.
func stream(rnd *rand.Rand, pieces func(*rand.Rand) string) (chunks []string) {
	for range 1 + rnd.IntN(8) {
		p := pieces(rnd)
		if p == preface { // only at the beginning, see TestDoorOfConnections
			return []string{p, get}
		}
		switch k := rnd.Float64(); {
		case k < .2 && len(p) > 2:
			cuts := []int{1, 14, len(p) - 1, 1 + rnd.IntN(len(p)-1), strings.Index(p, "\r\n\r\n") + 4, 4094 + rnd.IntN(4)}
			c := cuts[rnd.IntN(len(cuts))]
			c = min(max(1, c), len(p)-1)
			chunks = append(chunks, p[:c], p[c:])
		case k < .4 && len(chunks) > 0:
			chunks[len(chunks)-1] += p // pipelined
		default:
			chunks = append(chunks, p)
		}
	}
	return chunks
}

// run sends a stream and returns all answers. Each chunk waits for an answer to what was sent
// before, but not for long: there may be none.
func (p pair) run(addr string, chunks []string) (string, error) {
	conn, err := p.dial(addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	var all []byte
	buf := make([]byte, 64<<10)
	for _, c := range chunks {
		if _, err := io.WriteString(conn, c); err != nil {
			break // the server has closed
		}
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		n, _ := conn.Read(buf)
		all = append(all, buf[:n]...)
	}
	_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	_ = conn.SetDeadline(time.Now().Add(patience))
	rest, _ := io.ReadAll(conn)                                         // a reset ends it, too
	text, _, _ := strings.Cut(string(append(all, rest...)), "\x00\x00") // what of HTTP/2 comes before the end depends on the time
	return unchanging(text), nil
}

// TestDoorStreams sends random streams to a server with and to one without a door: all answers
// must be the same.
func TestDoorStreams(t *testing.T) {
	compareStreams(t, startPair(t, `{"path": ["/ok"]}`), *streams, random16(pieces))
}

// TestRuleStreams does so where rules apply.
func TestRuleStreams(t *testing.T) {
	compareStreams(t, startPair(t, `{"host": ["ok.test"]}`), *streams, random16(different))
}

// TestTLSStreams does so over TLS. Handshakes take most of the time. It leaves out the preface of HTTP/2:
// behind a listener wrapper Caddy accepts it even if the handshake has negotiated nothing.
func TestTLSStreams(t *testing.T) {
	p := startPairAt(t, freePair(t), `{"path": ["/ok"]}`, newCertificate(t))
	most := random16(func(rnd *rand.Rand) string {
		for {
			if piece := pieces(rnd); piece != preface {
				return piece
			}
		}
	})
	compareStreams(t, p, *streams/10, func(i int) []string { return append([]string{get, get, get}, most(i)...) })
}

// TestSplitStreams does so with some pieces, each split between any two bytes, after refusals of the
// same request.
func TestSplitStreams(t *testing.T) {
	var all [][]string
	for _, p := range slices.Concat(obfuscated, []string{get, get + get, "HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n", "POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nGET /"}) {
		for cut := 1; cut < len(p); cut++ {
			all = append(all, []string{get, get, get, p[:cut], p[cut:], get})
		}
	}
	n := min(len(all), *streams)
	compareStreams(t, startPair(t, `{"path": ["/ok"]}`), n, func(i int) []string { return all[(i-1)*len(all)/n] })
}

// longLines are streams with a line that is longer than net/http's buffer of 4096 bytes, cut about where
// that is full but for one byte, which net/http then asks for alone. Before it, the same connection
// was refused.
func longLines() (all [][]string) {
	for where := range 4 {
		before, line, after := longLineParts(where, 5000)
		for cut := 4094; cut <= 4097; cut++ {
			stream := []string{get, get, get}
			if before != "" {
				stream = append(stream, before)
			}
			all = append(all, append(stream, line[:cut], line[cut:]+after, get))
		}
	}
	return all
}

// TestLongLines compares the answers to them, over plain TCP and TLS.
func TestLongLines(t *testing.T) {
	all := longLines()
	for _, cert := range []certificate{{}, newCertificate(t)} {
		p := startPairAt(t, freePair(t), `{"path": ["/ok"]}`, cert)
		compareStreams(t, p, len(all), func(i int) []string { return all[i-1] })
	}
}

// random16 makes streams of pieces, by number.
func random16(pieces func(*rand.Rand) string) func(i int) []string {
	return func(i int) []string { return stream(random(i, 16), pieces) }
}

func compareStreams(t *testing.T, p pair, n int, stream func(i int) []string) {
	t.Helper()
	var next, answers, again atomic.Int64
	var senders sync.WaitGroup
	for range 96 {
		senders.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				chunks := stream(int(i))
				seen := map[string]string{}
				same := false
				for try := 0; try < 4 && !same; try++ { // what a reset leaves of the last answer depends on the time
					if try > 0 {
						again.Add(1)
					}
					for _, addr := range []string{p.door, p.bare} {
						all, err := p.run(addr, chunks)
						if err != nil {
							t.Error(err)
							return
						}
						if at, ok := seen[all]; ok && at != addr {
							same = true
						}
						seen[all] = addr
						answers.Add(int64(strings.Count(all, "HTTP/1.")))
					}
				}
				if !same {
					t.Errorf("stream %d: %q is answered differently:\n%q\n%v", i, chunks, seen, p)
				}
			}
		})
	}
	senders.Wait()
	refused, atDoor := p.refused(t)
	t.Logf("%d streams, %d answers of both; %d refusals, %d of them at the door; sent again %d times", n, answers.Load(), refused, atDoor[0], again.Load())
	if atDoor[0] < refused/100 || again.Load() > 5+int64(n/20) {
		t.Errorf("%d of %d refusals were at the door, and %d times a stream was answered differently: the streams show little", atDoor[0], refused, again.Load())
	}
}

// refused returns how many requests the server with the door has refused, and the door over
// HTTP/1.1 and HTTP/2.
func (p pair) refused(t *testing.T) (all uint64, atDoor [2]uint64) {
	t.Helper()
	app, err := caddy.ActiveContext().AppIfConfigured("shield")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range app.(*App).configured.shields {
		if s.name == "door" {
			all, atDoor = s.record.Stats(shield.Now()).Refused[shield.Quota], [2]uint64{s.record.atDoor.Load(), s.record.atDoorH2.Load()}
		}
	}
	return all, atDoor
}

// FuzzDoor checks that what is remembered is one request without a body, and nothing else.
func FuzzDoor(f *testing.F) {
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		f.Add([]byte(pieces(rnd)))
	}
	const next = "GET /next HTTP/1.1\r\nHost: next\r\n\r\n"
	f.Fuzz(func(t *testing.T, head []byte) {
		if len(head) == 0 || len(head) >= maxHead {
			return
		}
		both := bufio.NewReader(bytes.NewReader(append(bytes.Clone(head), next...)))
		r, err := http.ReadRequest(both)
		if err != nil || !repeatable(r, new(shield.Request), new(shield.Decision)) || !isAllOf(head, r) {
			return
		}
		if n, err := io.Copy(io.Discard, r.Body); n != 0 || err != nil {
			t.Fatalf("%q has a body of %d bytes: %v", head, n, err)
		}
		after, err := http.ReadRequest(both)
		if err != nil || after.Host != "next" || after.URL.Path != "/next" || both.Buffered() != 0 {
			t.Fatalf("after %q comes %v, %v", head, after, err)
		}
	})
}

// BenchmarkDoor is the whole process, client included, for one request that is refused: the same
// again, or each one different.
func BenchmarkDoor(b *testing.B) {
	const again, different = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n", "GET /%d HTTP/1.1\r\nHost: h\r\n\r\n"
	const before = `{"handler": "headers", "response": {"delete": ["X"]}},` // so that there is no rule
	for _, c := range []struct{ name, server, before, format string }{
		{"again/door", withDoor, "", again}, {"again/bare", "", "", again},
		{"different/door", withDoor, before, different}, {"different/bare", "", before, different},
		{"different/rule", withDoor, "", different}, {"different/none", "", "", different},
	} {
		b.Run(c.name, func(b *testing.B) {
			addr := freeAddr(b)
			if err := caddy.Load(setup{server: c.server, handlers: c.before + overQuota(`, "pushback": {"dither": false}`) + "," + respondOK}.json(addr), true); err != nil {
				b.Fatal(err)
			}
			defer func() { _ = caddy.Stop() }()
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			answer, request := make([]byte, 4096), []byte(c.format)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if strings.Contains(c.format, "%") {
					request = fmt.Appendf(request[:0], c.format, i)
				}
				if _, err := conn.Write(request); err != nil {
					b.Fatal(err)
				}
				if _, err := conn.Read(answer); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDoorPasses is what the door adds to one refusal of a request that it has not seen, and
// of which it makes no rule: the shield's config or the routes before it forbid that.
func BenchmarkDoorPasses(b *testing.B) {
	b.Run("config", func(b *testing.B) { doorPasses(b, new(atDoor)) })
	b.Run("routes", func(b *testing.B) { doorPasses(b, &atDoor{byAddress: true}) })
}

func doorPasses(b *testing.B, at *atDoor) {
	request := []byte("GET /aaaaaaaa HTTP/1.1\r\nHost: h\r\nUser-Agent: test\r\n\r\n")
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(request)))
	if err != nil {
		b.Fatal(err)
	}
	h, q, d := &Handler{atDoor: at}, new(shield.Request), new(shield.Decision)
	server := &caddyhttp.Server{Routes: caddyhttp.RouteList{{MatcherSets: caddyhttp.MatcherSets{{new(caddyhttp.MatchPath)}}}}}
	vars := map[string]any{caddyhttp.TrustedProxyVarKey: false}
	r = r.WithContext(context.WithValue(context.WithValue(r.Context(), caddyhttp.ServerCtxKey, server), caddyhttp.VarsCtxKey, vars))
	c := newDoorConn(changingConn{chunk: request}, new(memos))
	p := make([]byte, 4096)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Read(p); err != nil {
			b.Fatal(err)
		}
		c.take(h)
		c.refused(0, h, r, q, nil, d)
		if _, err := c.Write(p[:600]); err != nil {
			b.Fatal(err)
		}
	}
}

// A changingConn always has another request to read.
type changingConn struct {
	net.Conn
	chunk []byte
}

func (c changingConn) Read(p []byte) (int, error) {
	for digits := c.chunk[5:13]; ; digits = digits[1:] {
		if digits[0]++; digits[0] <= 'z' {
			break
		}
		digits[0] = 'a'
	}
	return copy(p, c.chunk), nil
}

func (c changingConn) Write(p []byte) (int, error) { return len(p), nil }
