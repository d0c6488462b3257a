package ingress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/caddymodule/upload"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/must"
)

// limitedTo returns a Model where all requests go to one endpoint with a limit of n in flight, and none waits.
func limitedTo(n int) *model.Model {
	b := backend(service("web", policy.Service{EndpointConcurrency: n, Queue: policy.QueueOff}))
	b.Endpoints = []model.Endpoint{{}}
	return all(origin("web", policy.Ingress{}), b)
}

// Bodies of all sizes arrive whole, with their length if it was told, and when there is
// no memory to read them early.
func TestBodiesArriveWhole(t *testing.T) {
	type arrived struct {
		sum    [sha256.Size]byte
		length int64
		err    error
	}
	seen := make(chan arrived, 1)
	p := serving(t, "red", func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		seen <- arrived{sha256.Sum256(b), r.ContentLength, err}
	})
	w := newWorld(t, all(origin("web", policy.Ingress{}), backend(service("web", policy.Service{EndpointConcurrency: 5}), p)))
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(i * i >> 7)
	}
	for _, taken := range []int64{0, upload.MaxTaken} { // by others
		w.controller.bodies.Taken.Store(taken)
		for _, size := range []int64{0, 1, upload.MaxEarly - 1, upload.MaxEarly, upload.MaxEarly + 1, 3 * upload.MaxEarly, 1 << 20} {
			for _, method := range []string{http.MethodPost, http.MethodGet} {
				for _, told := range []bool{true, false} {
					var body io.Reader = bytes.NewReader(data[:size])
					length := size
					if !told {
						body, length = io.MultiReader(body), -1
					}
					resp, _ := w.send(method, "x", "/", body)
					if resp.StatusCode != 200 {
						t.Errorf("%s of %d bytes, told %v: got %d", method, size, told, resp.StatusCode)
						continue
					}
					got := <-seen
					if got.err != nil || got.sum != sha256.Sum256(data[:size]) {
						t.Errorf("%s of %d bytes, told %v: another body at the pod, or %v", method, size, told, got.err)
					}
					if size > 0 && got.length != length {
						t.Errorf("%s of %d bytes, told %v: the pod is told %d", method, size, told, got.length)
					}
				}
			}
		}
		waitFor(t, "bodies to be done with", func() bool { return w.controller.bodies.Taken.Load() == taken })
	}
}

// A body that breaks off never reaches a pod as if it were whole.
func TestHalfBodies(t *testing.T) {
	whole := make(chan int, 10)
	p := serving(t, "red", func(w http.ResponseWriter, r *http.Request) {
		if b, err := io.ReadAll(r.Body); err == nil {
			whole <- len(b)
		}
	})
	for _, is := range []policy.Service{{EndpointConcurrency: 5}, {}} {
		// What is kept for its response is kept for the time of the request.
		w := newWorld(t, within(model.Timeouts{Request: time.Second}, all(origin("web", policy.Ingress{}), backend(service("web", is), p))))
		long := strings.Repeat("x", upload.MaxEarly)
		var wg sync.WaitGroup
		for _, text := range []string{
			"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
			"Transfer-Encoding: chunked\r\n\r\n5\r\nhel",
			"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
			"Transfer-Encoding: chunked\r\n\r\n4000\r\n" + long + "\r\n",
			"Transfer-Encoding: chunked\r\n\r\n4000\r\n" + long + "\r\n5\r\nhello\r\n",
			"Content-Length: 10\r\n\r\nhello",
			"Content-Length: 16385\r\n\r\n" + long,
			"Content-Length: 20000\r\n\r\n" + long + "x",
		} {
			wg.Go(func() {
				conn, err := net.Dial("tcp", strings.TrimPrefix(w.base, "http://"))
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: x\r\n"+text)
				_ = conn.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, conn) // until the server is done with it
			})
		}
		wg.Wait()
		if len(whole) > 0 {
			t.Errorf("the pod has taken %d bytes for the whole", <-whole)
		}
		if n := w.controller.requests[broken].Load(); n > 0 {
			t.Errorf("%d half bodies are counted as the endpoints' doing", n)
		}
	}
}

// A client that does not send its body is told so, and holds nothing up meanwhile; one
// that sends at the least pace is not hurried.
func TestBodiesMustCome(t *testing.T) {
	for _, tt := range []struct {
		name    string
		length  int
		each    int // bytes
		every   time.Duration
		status  int
		atLeast time.Duration
		atMost  time.Duration
	}{
		{"nothing", 100, 0, time.Second, 408, upload.Grace, upload.Grace + time.Second},
		{"a long one at the least pace", 40 << 10, upload.MinPace, time.Second, 200, 39 * time.Second, 41 * time.Second},
		{"a long one that stops", 40 << 10, 20 << 10, time.Hour, 400, upload.Grace, upload.Grace + 30*time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				afterEpoch()
				m := newMemory(t, limitedTo(1), func(w http.ResponseWriter, r *http.Request) {
					if _, err := io.Copy(io.Discard, r.Body); err != nil {
						w.WriteHeader(http.StatusBadRequest) // as passage has it
					}
				})
				dial, stop := servePipes(m)
				defer stop()
				conn := dial()
				defer conn.Close()
				done := make(chan struct{})
				defer close(done)
				go func() {
					fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", tt.length)
					for sent := 0; sent < tt.length; sent += tt.each {
						if _, err := conn.Write(make([]byte, tt.each)); err != nil {
							return
						}
						select {
						case <-time.After(tt.every):
						case <-done:
							return
						}
					}
				}()
				began := time.Now()
				resp := must.Get(http.ReadResponse(bufio.NewReader(conn), nil))(t)
				_, _ = io.Copy(io.Discard, resp.Body)
				took := time.Since(began)
				if resp.StatusCode != tt.status || took < tt.atLeast || took > tt.atMost {
					t.Errorf("got %d after %v, want %d after %v to %v", resp.StatusCode, took, tt.status, tt.atLeast, tt.atMost)
				}
				if resp.StatusCode == 408 && (!resp.Close || m.requests[unreadable].Load() != 1) {
					t.Errorf("close is %v, and %d are counted as unreadable", resp.Close, m.requests[unreadable].Load())
				}
				_ = conn.Close()
				synctest.Wait()
				if n := m.bodies.Taken.Load(); n != 0 {
					t.Errorf("%d bytes are still taken for bodies", n)
				}
			})
		})
	}
}

// A client that does not read holds its permit for seconds only, whether the response
// comes in large pieces or in small ones that are flushed; a response that pauses, or a
// client that reads at the least pace, is not cut off. It is so over HTTP/1.1 and HTTP/2.
func TestResponsesMustBeRead(t *testing.T) {
	for _, tt := range []struct {
		name  string
		piece int // bytes that the endpoint writes at once
		pause time.Duration
		flush bool
		reads int           // bytes per second; 0: none
		most  time.Duration // that the permit is kept; 0: until all has been read
	}{
		{name: "large pieces, not read", piece: 32 << 10, most: 2 * time.Minute},
		{name: "small pieces, not read", piece: 1000, flush: true, most: 2 * time.Minute},
		{name: "read very slowly", piece: 32 << 10, reads: 100, most: 20 * time.Minute},
		{name: "read at the least pace", piece: 32 << 10, reads: upload.MinPace},
		{name: "pauses", piece: 64 << 10, pause: 10 * time.Minute, flush: true, reads: 1 << 20},
	} {
		for _, version := range []int{1, 2} {
			t.Run(fmt.Sprint(tt.name, ", HTTP/", version), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					afterEpoch()
					const size = 512 << 10
					m := newMemory(t, limitedTo(1), func(w http.ResponseWriter, r *http.Request) {
						for sent := 0; sent < size; sent += tt.piece {
							if _, err := w.Write(make([]byte, min(tt.piece, size-sent))); err != nil {
								return
							}
							if tt.flush && http.NewResponseController(w).Flush() != nil {
								return
							}
							time.Sleep(tt.pause)
						}
					})
					dial, stop := servePipes(m)
					defer stop()
					transport := &http.Transport{
						DialContext: func(context.Context, string, string) (net.Conn, error) { return dial(), nil },
						Protocols:   new(http.Protocols), HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10},
						ReadBufferSize: 4 << 10,
					}
					defer transport.CloseIdleConnections()
					transport.Protocols.SetHTTP1(version == 1)
					transport.Protocols.SetUnencryptedHTTP2(version == 2)
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					r := request(t, "http://x/").WithContext(ctx)
					resp, err := transport.RoundTrip(r)
					must.Do(t, err)
					defer resp.Body.Close()
					if resp.ProtoMajor != version {
						t.Fatalf("over %s", resp.Proto)
					}
					began := time.Now()
					var wg sync.WaitGroup
					got := 0
					wg.Go(func() {
						b := make([]byte, max(1, tt.reads))
						for tt.reads > 0 && err == nil {
							var n int
							n, err = io.ReadFull(resp.Body, b)
							got += n
							time.Sleep(time.Second)
						}
					})
					set := m.snapshot.Load().backends[0].endpoints
					for set.busy(0) && time.Since(began) < 24*time.Hour {
						time.Sleep(time.Second)
					}
					kept := time.Since(began)
					if tt.most == 0 {
						wg.Wait()
						if got != size {
							t.Errorf("%d bytes of %d were read, then %v", got, size, err)
						}
						return
					}
					if kept > tt.most {
						t.Errorf("the permit was kept for %v; want at most %v", kept, tt.most)
					}
					cancel()
					_ = resp.Body.Close()
					wg.Wait()
				})
			})
		}
	}
}
