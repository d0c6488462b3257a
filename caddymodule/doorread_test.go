package caddymodule

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield"
)

// countingConn counts what a connection is asked for.
type countingConn struct {
	net.Conn
	reads, deadlines atomic.Int32
}

func (c *countingConn) Read(p []byte) (int, error) {
	c.reads.Add(1)
	return c.Conn.Read(p)
}

func (c *countingConn) SetReadDeadline(t time.Time) error {
	c.deadlines.Add(1)
	return c.Conn.SetReadDeadline(t)
}

// impatientConn has reads time out of its own accord.
type impatientConn struct{ net.Conn }

func (impatientConn) Read([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }
func (impatientConn) RemoteAddr() net.Addr     { return &net.TCPAddr{} }
func (impatientConn) LocalAddr() net.Addr      { return &net.TCPAddr{} }

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

// inDoor plays a story in virtual time between a client and net/http behind a door.
func inDoor(t *testing.T, handler func(c *doorConn, w http.ResponseWriter, r *http.Request), story func(client net.Conn, counts *countingConn)) {
	synctest.Test(t, func(t *testing.T) {
		pass(time.Until(shield.At(time.Hour)))
		client, end := net.Pipe()
		counts := &countingConn{Conn: end}
		c := newDoorConn(counts, new(memos))
		l := oneListener{conns: make(chan net.Conn, 1)}
		l.conns <- c
		server := &http.Server{
			ReadHeaderTimeout: time.Minute, IdleTimeout: 5 * time.Minute,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler(c, w, r) }),
		}
		go func() { _ = server.Serve(l) }()
		story(client, counts)
		_ = client.Close()
		_ = server.Close()
		synctest.Wait()
	})
}

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

// TestBackgroundReads asks a connection for no more than it must.
func TestBackgroundReads(t *testing.T) {
	first := true
	answer := func(_ *doorConn, w http.ResponseWriter, _ *http.Request) {
		if pass(time.Millisecond); first {
			pass(3 * backgroundAfter)
		}
		first = false
	}
	inDoor(t, answer, func(client net.Conn, counts *countingConn) {
		const requests = 100
		r := bufio.NewReader(client)
		for range requests {
			answerTo(t, client, r)
		}
		synctest.Wait()
		if n := counts.reads.Load(); n > requests+2 { // one in the background, and the next request
			t.Errorf("%d reads for %d requests", n, requests)
		}
		if n := counts.deadlines.Load(); n > 5 {
			t.Errorf("%d deadlines for %d requests", n, requests)
		}
	})
}

// TestBackgroundSeesTheEnd has clients leave while handlers work.
func TestBackgroundSeesTheEnd(t *testing.T) {
	for _, after := range []time.Duration{0, backgroundAfter, 3 * time.Minute} {
		var ended atomic.Int64
		requests := 0
		work := func(_ *doorConn, _ http.ResponseWriter, r *http.Request) {
			switch requests++; requests {
			case 1:
				pass(3 * backgroundAfter)
			case 3:
				<-r.Context().Done()
				ended.Store(int64(shield.Now()))
			}
		}
		inDoor(t, work, func(client net.Conn, _ *countingConn) {
			answers := bufio.NewReader(client)
			answerTo(t, client, answers)
			answerTo(t, client, answers)
			pass(backgroundAfter * 3 / 4) // the timer runs
			_, _ = io.WriteString(client, get)
			pass(after)
			began := shield.Now()
			_ = client.Close()
			pass(time.Second)
			if took := time.Duration(ended.Load()) - began; took < 0 || took > 2*backgroundAfter {
				t.Errorf("the handler hears after %v that the client has left", took)
			}
		})
	}
}

// TestBackgroundOfPipelined has two requests come at once, and the client leave during the second.
func TestBackgroundOfPipelined(t *testing.T) {
	for _, wary := range []bool{false, true} {
		var ended atomic.Int64
		requests := 0
		work := func(c *doorConn, _ http.ResponseWriter, r *http.Request) {
			if wary {
				c.background.refused()
			}
			if requests++; requests == 2 {
				<-r.Context().Done()
				ended.Store(int64(shield.Now()))
			}
		}
		inDoor(t, work, func(client net.Conn, _ *countingConn) {
			go func() { _, _ = io.Copy(io.Discard, client) }()
			_, _ = io.WriteString(client, get+get)
			pass(time.Minute)
			began := shield.Now()
			_ = client.Close()
			pass(time.Second)
			if took := time.Duration(ended.Load()) - began; requests != 2 || took < 0 || took > time.Millisecond {
				t.Errorf("a refusal before: %v: %d requests, and the handler hears after %v that the client has left", wary, requests, took)
			}
		})
	}
}

// TestBackgroundKeepsRequestsWhole has a request come while one is refused that takes its time.
func TestBackgroundKeepsRequestsWhole(t *testing.T) {
	var requests atomic.Int32
	work := func(c *doorConn, _ http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) == 1 {
			c.background.refused()
			pass(5 * backgroundAfter)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.passed.sum == 0 {
			t.Error("the second request is no whole chunk")
		}
	}
	inDoor(t, work, func(client net.Conn, _ *countingConn) {
		go func() { _, _ = io.Copy(io.Discard, client) }()
		_, _ = io.WriteString(client, get)
		pass(3 * backgroundAfter)
		_, _ = io.WriteString(client, get)
		pass(time.Second)
		if n := requests.Load(); n != 2 {
			t.Errorf("%d requests, want 2", n)
		}
	})
}

// TestBackgroundOfTaken has handlers take connections over, and read byte after byte.
func TestBackgroundOfTaken(t *testing.T) {
	const words = "some words"
	for _, wary := range []bool{false, true} {
		for _, after := range []time.Duration{0, 3 * backgroundAfter} {
			var heard atomic.Int64
			take := func(c *doorConn, w http.ResponseWriter, r *http.Request) {
				if wary {
					c.background.refused()
				}
				if pass(after); r.Context().Err() != nil {
					t.Errorf("a refusal before: %v, after %v: the request was ended", wary, after)
				}
				conn, rw, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				began, b := shield.Now(), make([]byte, 0, len(words))
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
					t.Errorf("a refusal before: %v, after %v: the handler reads %q, want %q", wary, after, b, words)
				}
				heard.Store(1 + int64(shield.Now()-began))
			}
			inDoor(t, take, func(client net.Conn, _ *countingConn) {
				_, _ = io.WriteString(client, get)
				_, _ = io.WriteString(client, words)
				pass(time.Second)
				if took := time.Duration(heard.Load()); took != 1 {
					t.Errorf("a refusal before: %v, after %v: the words took %v", wary, after, took-1)
				}
			})
		}
	}
}

// TestReadDeadlines ends reads when they are to end, though the connection hears of few deadlines.
func TestReadDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pass(time.Until(shield.At(time.Hour)))
		client, end := net.Pipe()
		defer client.Close()
		counts := &countingConn{Conn: end}
		c := newDoorConn(counts, new(memos))
		for i, s := range []struct {
			set       []time.Duration // from now; 0: none
			takes     time.Duration   // until the read times out; < 0: the client sends
			deadlines int32           // that the connection hears of
		}{
			{[]time.Duration{time.Minute, time.Hour, 0, 2 * time.Minute}, 2 * time.Minute, 2},
			{[]time.Duration{0}, -1, 1}, // after a time-out
			{[]time.Duration{time.Minute, 0}, -1, 1},
			{[]time.Duration{time.Hour}, time.Hour, 1},                // after that minute
			{[]time.Duration{time.Hour, time.Minute}, time.Minute, 1}, // after that hour
			{[]time.Duration{0}, -1, 1},
			{[]time.Duration{-1}, 0, 0},
			{[]time.Duration{-1, 0}, -1, 0},
			{[]time.Duration{-1, time.Minute}, time.Minute, 1},
		} {
			before, began := counts.deadlines.Load(), time.Now()
			for _, left := range s.set {
				var by time.Time
				switch {
				case left > 0:
					by = began.Add(left)
				case left < 0:
					by = time.Unix(1, 0)
				}
				if err := c.SetReadDeadline(by); err != nil {
					t.Fatal(err)
				}
			}
			if s.takes < 0 {
				go func() { _, _ = client.Write([]byte("x")) }()
			}
			n, err := c.receive(make([]byte, 8))
			if timedOut := errors.Is(err, os.ErrDeadlineExceeded); timedOut != (s.takes >= 0) || timedOut == (n > 0) {
				t.Errorf("%d: %d bytes, %v", i, n, err)
			}
			if took := time.Since(began); took != max(0, s.takes) {
				t.Errorf("%d: the read took %v, want %v", i, took, s.takes)
			}
			if heard := counts.deadlines.Load() - before; heard != s.deadlines {
				t.Errorf("%d: the connection hears of %d deadlines, want %d", i, heard, s.deadlines)
			}
		}
		_ = c.SetReadDeadline(time.Time{})
		if n, err := newDoorConn(impatientConn{}, new(memos)).receive(make([]byte, 8)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a connection with a time-out of its own: %d bytes, %v", n, err)
		}
		ended := make(chan error)
		go func() {
			_, err := c.receive(make([]byte, 8))
			ended <- err
		}()
		synctest.Wait()
		_ = c.SetReadDeadline(time.Unix(1, 0))
		if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a read that is under way: %v", err)
		}
	})
}
