package door

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/herdshield/shield"
)

const get = "GET /a HTTP/1.1\r\nHost: h\r\nUser-Agent: test\r\n\r\n"

// TestHandsOfNoStream gives back what the door has admitted and no handler asks for: the server refuses the stream, or the connection ends.
func TestHandsOfNoStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(shield.At(time.Hour))) // virtual time begins in the year 2000
		g := shield.Must(shield.New(shield.Config{Concurrency: 1}, nil))
		h, of := &h2Conn{c: new(conn)}, &Shield{Guard: func() *shield.Guard { return g }}
		h.number(&frame{bytes: make([]byte, frameHead)}, nil, true, &hand{of, g.Admit(shield.Now(), shield.Request{})})
		before := g.Backend().Stats(shield.Now()).InFlight
		time.Sleep(time.Second)
		if after := g.Backend().Stats(shield.Now()).InFlight; before != 1 || after != 0 {
			t.Errorf("%d are in flight, and %d after a second", before, after)
		}
	})
}

// TestHeldRejections leaves rejections that are to be held back to the handler.
func TestHeldRejections(t *testing.T) {
	d := shield.Decision{Zone: -1}
	d.Hint = samples[0]
	m := &memo{alike: true, since: 1, until: time.Hour, of: new(Shield), page: page{policy: d.Rejection().Policy}}
	all := memos{all: [4]*memo{m}}
	if all.telling(m, &d, 2) != m {
		t.Error("the door does not tell it")
	}
	if d.Hold = 1; all.telling(m, &d, 2) != nil {
		t.Error("the door tells it at once")
	}
}

// A takingConn takes all that is written.
type takingConn struct{ net.Conn }

func (takingConn) SetWriteDeadline(time.Time) error { return nil }
func (takingConn) Write(b []byte) (int, error)      { return len(b), nil }

// TestH2KeepsNoLongBuffers has a burst of rejections, after which the connection is idle.
func TestH2KeepsNoLongBuffers(t *testing.T) {
	h := &h2Conn{out: h2Writer{conn: takingConn{}, turn: make(chan struct{}, 1)}}
	for range 3 {
		h.answers = append(h.answers, make([]byte, 50<<10)...)
		h.flush()
		for h.out.waits() > 0 {
			runtime.Gosched()
		}
	}
	h.out.turn <- struct{}{} // what was written is done with
	if kept := cap(h.answers) + cap(h.out.spare) + cap(h.out.waiting.answers); kept > 3*maxPage {
		t.Errorf("%d bytes are kept", kept)
	}
}

const next = "GET /next HTTP/1.1\r\nHost: next\r\n\r\n"

// FuzzWhole checks that what is remembered is one request without a body, and nothing else.
func FuzzWhole(f *testing.F) {
	for _, head := range smuggled {
		f.Add([]byte(head))
	}
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

// smuggled are heads that servers have been known to disagree about, and some that they do not.
var smuggled = func() (all []string) {
	for _, line := range []string{
		"GET /%zz HTTP/1.1", "GET /%2e HTTP/1.1", "GET //h/a HTTP/1.1", "GET /a#b HTTP/1.1", "GET  / HTTP/1.1", "GET /  HTTP/1.1", "GET\t/ HTTP/1.1", "get / HTTP/1.1",
		"GET / HTTP/1.1 HTTP/1.1", "GET /? HTTP/1.1 HTTP/1.1", "GET / HTTP/1.0", "GET / HTTP/1.2", "GET http://i/ HTTP/1.1", "OPTIONS * HTTP/1.1", "OPTIONS /a HTTP/1.1",
		"\r\nGET / HTTP/1.1", "GET / HTTP/1.1\r", "GET /.well-known/acme-challenge/x HTTP/1.1", "HEAD /a/b?c=%20d HTTP/1.1", "POST / HTTP/1.1", "CONNECT h:1 HTTP/1.1", "PRI * HTTP/1.1",
	} {
		all = append(all, line+"\r\nHost: h\r\n\r\n")
	}
	for _, fields := range []string{
		"", "Host:h \r\n", "Host: h\t\r\n", "Host: a, b\r\n", "Host: a@b\r\n", "Host: h\r\nhost: i\r\n", "Host:\r\n", " Host: h\r\n", "Host: h:80\r\nUser-Agent: x\r\nAccept: text/html\r\nConnection: keep-alive\r\n",
		"Host: h\r\nX: y\r\n z\r\n", "Host: h\r\nX\r\n", "Host: h\r\n: y\r\n", "Host: h\r\nX : y\r\n", "Host: h\r\nX_Y: z\r\n", "Host: h\r\nContent-Length: 0\r\n", "Host: h\r\nContent-Length: 5\r\n",
		"Host: h\r\nX: \rContent-Length: 5\r\n", "Host: h\r\nX: y\nContent-Length: 5\r\n", "Host: h\r\nConnection: keep-alive, close\r\n", "Host: h\r\nConnection: Accept\r\n",
		"Host: h\r\nAccept:\r\nAccept: text/html\r\n", "Host: h\r\nSec-Fetch-Mode:\r\nAccept: text/html\r\n", "Host: h\r\nCookie: a=b; shield_retry=1\r\n", "Host: h\r\nX: \x00\r\n", "Host: h\r\nX: \xff\r\n",
		"Host: h\r\nUser-Agent: x \r\n", "Host: h\r\nTransfer-Encoding: chunked\r\n", "Host: h\r\nX-Request-Timeout: 9\r\n", "Host: h\r\nX-Shield-Class: a\r\n", "Host: h\r\nExpect: 100-continue\r\n",
	} {
		all = append(all, "GET / HTTP/1.1\r\n"+fields+"\r\n")
	}
	return append(all, get+"x", get+"\r\n", get+get, "GET / HTTP/1.1\nHost: h\n\n", "\x00GET\nh\n\n\n", "GET / HTTP/1.1\r\nHost: h\r\nContent-Length : 5\r\n\r\nhello",
		"GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
}()

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
