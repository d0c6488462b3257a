package shield

import (
	"encoding/binary"
	"io"
	"net/http"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/pushback"
)

// frame returns an HTTP/2 frame (RFC 9113, section 4.1).
func frame(kind, flags byte, stream uint32, payload ...byte) []byte {
	f := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	return append(binary.BigEndian.AppendUint32(append(f, flags), stream), payload...)
}

// Rejections that are never read, on streams of HTTP/2 whose client allows no data, end after
// a while, and so do their goroutines.
func TestRejectedStreamsThatAreNotReadEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inBubble(t)
		const streams = 200
		g := mustNew(t, Config{Capacity: perSecond(1e-3, 1), Pushback: pushback.ResponseConfig{Body: pushback.Problem}}, nil)
		g.Admit(Now(), Request{}) // the only token
		server := &http.Server{Protocols: new(http.Protocols), Handler: g.Handler(nil)}
		server.Protocols.SetUnencryptedHTTP2(true)
		listener := newPipe()
		go func() { _ = server.Serve(listener) }()
		client, _ := listener.Dial()
		reset := 0
		go func() { // it reads all frames, and answers none
			head := make([]byte, 9)
			for {
				if _, err := io.ReadFull(client, head); err != nil {
					return
				}
				if head[3] == 3 { // RST_STREAM
					reset++
				}
				_, _ = io.CopyN(io.Discard, client, int64(head[0])<<16|int64(head[1])<<8|int64(head[2]))
			}
		}()
		send := func(b []byte) {
			if _, err := client.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		send([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
		send(frame(4, 0, 0, 0, 4, 0, 0, 0, 0)) // SETTINGS_INITIAL_WINDOW_SIZE = 0
		for i := range uint32(streams) {
			send(frame(1, 5, 2*i+1, 0x82, 0x86, 0x84, 0x41, 1, 'x')) // GET http://x/
		}
		goroutines := func() int {
			synctest.Wait()
			return runtime.NumGoroutine()
		}
		time.Sleep(2 * time.Second) // rejections are held back
		soon := goroutines()
		time.Sleep(20 * time.Second)
		later := goroutines()
		t.Logf("%d streams: %d goroutines after 2 s, %d after 22 s; %d are reset", streams, soon, later, reset)
		// Goroutines of other tests are counted, too.
		if soon < streams || later > soon-streams*3/4 || reset != streams {
			t.Errorf("%d streams: %d goroutines after 2 s, %d after 22 s; %d are reset; want all of them to end", streams, soon, later, reset)
		}
		_ = client.Close()
		_ = server.Close()
	})
}
