package caddymodule

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield"
)

// oneListener has one connection.
type oneListener struct {
	net.Listener
	conns chan net.Conn
}

func (l oneListener) Accept() (net.Conn, error) {
	if c, ok := <-l.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (l oneListener) Close() error { close(l.conns); return nil }

// inDoor plays a story in virtual time between a client and net/http behind a door, whose handler is at
// work.
func inDoor(t *testing.T, work func(c *doorConn, w http.ResponseWriter, r *http.Request), story func(client net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		pass(time.Until(shield.At(time.Hour)))
		client, end := net.Pipe()
		c := newDoorConn(end, new(memos))
		l := oneListener{conns: make(chan net.Conn, 1)}
		l.conns <- c
		server := &http.Server{
			ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, IdleTimeout: idleTimeout,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { work(c, w, r) }),
		}
		go func() { _ = server.Serve(l) }()
		story(client)
		_ = client.Close()
		_ = server.Close()
		synctest.Wait()
	})
}

// A request with the method PRI is not the beginning of HTTP/2, and is answered as any other;
// nor is what begins as that does and goes on otherwise.
func TestMethodOfHTTP2(t *testing.T) {
	for _, text := range []string{"PRI /x HTTP/1.1\r\nHost: a\r\nA: b\r\n\r\n", "PRI * HTTP/1.1\r\nHost: a\r\n\r\n"} {
		inDoor(t, func(*doorConn, http.ResponseWriter, *http.Request) {}, func(client net.Conn) {
			for range 2 {
				go func() { _, _ = io.WriteString(client, text) }()
				_ = client.SetReadDeadline(time.Now().Add(time.Second))
				answer := make([]byte, 4096)
				if n, err := client.Read(answer); err != nil || !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 200 OK") {
					t.Errorf("%q is answered %q, %v", text, answer[:n], err)
				}
			}
		})
	}
}

// The time-outs of that server.
const (
	headerTimeout = time.Minute
	bodyTimeout   = 2 * time.Minute
	idleTimeout   = 5 * time.Minute
)

// answerTo sends a request and reads the answer.
func answerTo(t *testing.T, client net.Conn, r *bufio.Reader) {
	t.Helper()
	if _, err := io.WriteString(client, get); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
}

// TestDoorHearsThatTheClientLeaves has clients leave while handlers work.
func TestDoorHearsThatTheClientLeaves(t *testing.T) {
	for _, after := range []time.Duration{0, time.Second, 3 * time.Minute} {
		var took time.Duration
		requests := 0
		work := func(_ *doorConn, _ http.ResponseWriter, r *http.Request) {
			if requests++; requests == 3 {
				began := shield.Now()
				<-r.Context().Done()
				took = shield.Now() - began
			}
		}
		inDoor(t, work, func(client net.Conn) {
			answers := bufio.NewReader(client)
			answerTo(t, client, answers)
			answerTo(t, client, answers)
			_, _ = io.WriteString(client, get)
			pass(after)
			_ = client.Close()
			synctest.Wait()
			if requests != 3 || took != after {
				t.Errorf("request %d: the handler hears after %v that the client has left, want %v", requests, took, after)
			}
		})
	}
}

// TestDoorOfPipelined has two requests come at once, and the client leave during the second.
func TestDoorOfPipelined(t *testing.T) {
	var left time.Duration
	requests := 0
	work := func(_ *doorConn, _ http.ResponseWriter, r *http.Request) {
		if requests++; requests == 2 {
			<-r.Context().Done()
			left = shield.Now()
		}
	}
	inDoor(t, work, func(client net.Conn) {
		go func() { _, _ = io.Copy(io.Discard, client) }()
		_, _ = io.WriteString(client, get+get)
		pass(time.Minute)
		began := shield.Now()
		_ = client.Close()
		synctest.Wait()
		if requests != 2 || left != began {
			t.Errorf("%d requests, and the handler hears at %v that the client has left at %v", requests, left, began)
		}
	})
}

// TestDoorKeepsRequestsWhole has a request come while another one takes its time.
func TestDoorKeepsRequestsWhole(t *testing.T) {
	requests := 0
	work := func(c *doorConn, _ http.ResponseWriter, _ *http.Request) {
		if requests++; requests == 1 {
			pass(time.Second)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if want := c.origin.sum([]byte(get)); c.passed.sum != want {
			t.Error("the second request is no whole chunk")
		}
	}
	inDoor(t, work, func(client net.Conn) {
		go func() { _, _ = io.Copy(io.Discard, client) }()
		_, _ = io.WriteString(client, get)
		pass(time.Second / 2)
		_, _ = io.WriteString(client, get)
		pass(time.Second)
		synctest.Wait()
		if requests != 2 {
			t.Errorf("%d requests, want 2", requests)
		}
	})
}

// TestDoorOfLastByte has a request come while another one takes its time, but for its last byte, which comes a
// little later: it is answered then, and no more bytes are waited for.
func TestDoorOfLastByte(t *testing.T) {
	for _, text := range []string{get, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"} {
		var took time.Duration
		requests := 0
		work := func(_ *doorConn, _ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if requests++; requests == 1 {
				pass(time.Second)
			} else {
				took = shield.Now()
			}
		}
		inDoor(t, work, func(client net.Conn) {
			began := shield.Now()
			go func() { _, _ = io.Copy(io.Discard, client) }()
			_, _ = io.WriteString(client, get+text[:len(text)-1])
			pass(time.Second / 2)
			_, _ = io.WriteString(client, text[len(text)-1:])
			pass(time.Hour)
			synctest.Wait()
			if took -= began; requests != 2 || took != time.Second {
				t.Errorf("%q: %d requests, the second one after %v, want 1s", text, requests, took)
			}
		})
	}
}

// TestDoorOfTaken has handlers take connections over, and read byte after byte.
func TestDoorOfTaken(t *testing.T) {
	const words = "some words"
	for _, after := range []time.Duration{0, time.Second / 2} {
		var heard time.Duration
		take := func(_ *doorConn, w http.ResponseWriter, r *http.Request) {
			began := shield.Now()
			if pass(after); r.Context().Err() != nil {
				t.Errorf("after %v: the request was ended", after)
			}
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			b := make([]byte, 0, len(words))
			for len(b) < rw.Reader.Buffered() {
				next, _ := rw.ReadByte()
				b = append(b, next)
			}
			for len(b) < len(words) {
				n, err := conn.Read(b[len(b) : len(b)+1])
				if b = b[:len(b)+n]; err != nil {
					t.Error(err)
					break
				}
			}
			if string(b) != words {
				t.Errorf("after %v: the handler reads %q, want %q", after, b, words)
			}
			heard = shield.Now() - began
		}
		inDoor(t, take, func(client net.Conn) {
			_, _ = io.WriteString(client, get)
			for i := range words {
				_, _ = io.WriteString(client, words[i:i+1])
			}
			pass(time.Second)
			synctest.Wait()
			if heard != after {
				t.Errorf("after %v: the words took %v", after, heard)
			}
		})
	}
}

// TestDoorDoesNotOutliveItsClient stops in the middle of a line, wherever net/http may ask for one byte,
// on a connection that was refused before. The client leaves, or says nothing more: the handler hears
// of it, and the connection ends, when the client has left or by the server's time-out.
func TestDoorDoesNotOutliveItsClient(t *testing.T) {
	for where := range 4 {
		before, line, _ := longLineParts(where, 5000)
		for cut := 4094; cut <= 4097; cut++ {
			for _, more := range []string{"", "b", "bb"} {
				for _, leaves := range []bool{false, true} {
					stopIn(t, where, before, line[:cut], more, leaves)
				}
			}
		}
	}
}

func stopIn(t *testing.T, where int, before, line, more string, leaves bool) {
	t.Helper()
	var ended time.Duration
	refuse := &Handler{atDoor: new(atDoor)}
	work := func(c *doorConn, w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/ok") {
			c.refused(shield.Now(), refuse, r, new(shield.Request), nil, new(shield.Decision))
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		ended = shield.Now()
	}
	inDoor(t, work, func(client net.Conn) {
		answers := bufio.NewReader(client)
		answerTo(t, client, answers)
		closed := make(chan struct{}, 1)
		go func() {
			_, _ = io.Copy(io.Discard, answers)
			closed <- struct{}{}
		}()
		for _, part := range []string{before, line, more} {
			if part != "" {
				_, _ = io.WriteString(client, part)
			}
			synctest.Wait()
		}
		began, most := shield.Now(), time.Duration(0)
		if leaves {
			_ = client.Close()
		} else {
			most = bodyTimeout
			if pass(most + lastWords); len(closed) == 0 { // net/http waits for the client to read the last answer
				t.Errorf("line %d, cut at %d, then %q: the connection outlives the time-out of %v", where, len(line), more, most)
			}
		}
		synctest.Wait()
		if where >= 2 && (ended == 0 || ended-began > most) {
			t.Errorf("line %d, cut at %d, then %q, leaves: %v: the handler ends after %v, want at most %v", where, len(line), more, leaves, ended-began, most)
		}
	})
}
