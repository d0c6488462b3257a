package shield_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield"
)

// A Watchdog ends an exchange after a pause of the backend, or at the end. The client's
// pauses, and those of streams, may last for an hour.
func TestWatchdog(t *testing.T) {
	const second = time.Second
	slowly := func(d *shield.Watchdog, pause time.Duration) {
		body := d.Body(io.NopCloser(readerFunc(func([]byte) (int, error) { time.Sleep(pause); return 1, nil })))
		_, _ = body.Read(make([]byte, 1))
	}
	begin := func(d *shield.Watchdog, status int, contentType string) {
		d.Begin(httptest.NewRequest(http.MethodGet, "/", nil), status, http.Header{"Content-Type": {contentType}})
	}
	for _, tt := range []struct {
		name       string
		end, pause time.Duration
		do         func(d *shield.Watchdog)
		want       time.Duration // when it ends; 0: never
		clients    bool
	}{
		{"a silent backend", 0, 10 * second, func(*shield.Watchdog) {}, 10 * second, false},
		{"a backend at work", 25 * second, 10 * second, func(d *shield.Watchdog) {
			for range 9 {
				time.Sleep(3 * second)
				d.Reads(true)
				d.Reads(false)
			}
		}, 25 * second, false},
		{"a slow upload", 0, 10 * second, func(d *shield.Watchdog) { slowly(d, time.Minute) }, 70 * second, false},
		{"no upload", 0, 10 * second, func(d *shield.Watchdog) { slowly(d, 2*time.Hour) }, time.Hour, true},
		{"no upload in time", 20 * second, 10 * second, func(d *shield.Watchdog) { slowly(d, time.Minute) }, 20 * second, true},
		{"a slow reader", 0, 10 * second, func(d *shield.Watchdog) {
			d.Reads(true)
			time.Sleep(time.Minute)
			d.Reads(false)
		}, 70 * second, false},
		{"a response", 0, 10 * second, func(d *shield.Watchdog) { begin(d, 200, "text/html") }, 10 * second, false},
		{"events", 0, 10 * second, func(d *shield.Watchdog) { begin(d, 200, "text/event-stream; charset=utf-8") }, time.Hour, false},
		{"events with an end", 20 * second, 10 * second, func(d *shield.Watchdog) { begin(d, 200, "text/event-stream") }, 20 * second, false},
		{"events with a long pause", 0, 2 * time.Hour, func(d *shield.Watchdog) { begin(d, 200, "text/event-stream") }, 2 * time.Hour, false},
		{"a call", 0, 10 * second, func(d *shield.Watchdog) { begin(d, 200, "application/grpc+proto") }, time.Hour, false},
		{"an upgrade", 20 * second, 10 * second, func(d *shield.Watchdog) { begin(d, 101, "") }, 0, false},
		{"an end alone", 20 * time.Hour, 0, func(*shield.Watchdog) {}, 20 * time.Hour, false},
		{"stopped", 20 * second, 10 * second, func(d *shield.Watchdog) { d.Stop() }, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(time.Hour - shield.Now()) // synctest begins before the process
				began, end := shield.Now(), time.Duration(0)
				if tt.end > 0 {
					end = began + tt.end
				}
				ctx, d := shield.Watch(t.Context(), httptest.NewRecorder(), end, tt.pause, began)
				defer d.Stop()
				done := make(chan bool)
				go func() {
					defer close(done)
					tt.do(d)
				}()
				defer func() { <-done }()
				select {
				case <-ctx.Done():
					late, clients := d.Late()
					if took := shield.Now() - began; took != tt.want || !late || clients != tt.clients || !errors.Is(context.Cause(ctx), shield.ErrTimeout) {
						t.Errorf("after %v: late %v, because of the client %v, %v; want after %v, %v", took, late, clients, context.Cause(ctx), tt.want, tt.clients)
					}
					if d.Begin(httptest.NewRequest(http.MethodGet, "/", strings.NewReader("")), 200, nil) {
						t.Error("a response may begin afterwards")
					}
				case <-time.After(30 * time.Hour):
					if tt.want > 0 {
						t.Errorf("it does not end; want after %v", tt.want)
					}
				}
			})
		})
	}
}

// A client that has yet to read is broken off at the server's own writer: Caddy's wrapper for idle clients has
// deadlines of its own, which no other goroutine than the writing one may set.
func TestLateClientIsBrokenOffAtTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour - shield.Now()) // synctest begins before the process
		server, wrapper := &deadlines{ResponseWriter: httptest.NewRecorder()}, new(deadlines)
		wrapper.ResponseWriter = server
		_, d := shield.Watch(t.Context(), wrapped{wrapper}, shield.Now()+time.Second, 0, 0)
		defer d.Stop()
		d.Reads(true)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if server.writes == 0 || wrapper.writes > 0 {
			t.Errorf("set %d times at the server, %d at the wrapper; want the server's alone", server.writes, wrapper.writes)
		}
	})
}

// deadlines counts the deadlines for writing.
type deadlines struct {
	http.ResponseWriter
	writes int
}

func (d *deadlines) SetWriteDeadline(time.Time) error { d.writes++; return nil }

type wrapped struct{ *deadlines }

func (w wrapped) Unwrap() http.ResponseWriter { return w.ResponseWriter }

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
