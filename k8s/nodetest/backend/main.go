// Command backend is the protected backend of the test on a node: it answers after a given
// time, and counts the requests in flight.
//
//	GET  /            answers after -service-time, or ?ms=N if that is given
//	GET  /stats       its counts, as JSON: see stats
//	POST /stats       the same, and resets them
//
// Every other path is like /. X-Backend-Pod has the name of the pod, X-Backend-In-Flight how many
// requests it had in flight with this one. So clients know the maximum even of pods that are gone.
//
// After SIGTERM, requests in flight may end, for at most -grace. A pod also needs a preStop
// hook that waits until no new requests come.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// longest bounds ?ms.
const longest = time.Minute

func main() {
	listen := os.Getenv("LISTEN") // a common convention for apps
	if listen == "" {
		listen = ":8080"
	}
	address := flag.String("address", listen, "`host:port` to listen on; default: $LISTEN, or :8080")
	serviceTime := flag.Duration("service-time", 20*time.Millisecond, "how long a response takes")
	grace := flag.Duration("grace", 20*time.Second, "how long requests may take to end after SIGTERM")
	flag.Parse()
	pod, err := os.Hostname()
	if err != nil {
		log.Fatal(err)
	}
	b := &backend{pod: pod, serviceTime: *serviceTime}
	server := &http.Server{Addr: *address, Handler: b, ReadHeaderTimeout: 10 * time.Second}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		ctx, cancel := context.WithTimeout(context.Background(), *grace)
		defer cancel()
		ended <- server.Shutdown(ctx)
	}()
	log.Printf("backend %s: listening on %s", pod, *address)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
	if err := <-ended; err != nil {
		log.Printf("backend %s: %v with %+v", pod, err, b.seen(false))
	}
	log.Printf("backend %s: ended after %+v", pod, b.seen(false))
}

type backend struct {
	pod         string
	serviceTime time.Duration

	mu    sync.Mutex
	stats stats // guarded by mu
}

// stats are a backend's counts since its start, or the last reset.
type stats struct {
	Pod      string `json:"pod"`
	InFlight int    `json:"in_flight"` // now
	Most     int    `json:"most"`      // of InFlight at any time
	Requests int    `json:"requests"`  // in all
	Broken   int    `json:"broken"`    // their client left, or their body broke off
}

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/stats" {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(b.seen(r.Method == http.MethodPost))
		return
	}
	n := b.enter()
	ok := false
	defer func() { b.leave(ok) }()
	after := b.serviceTime
	if ms, err := strconv.ParseUint(r.URL.Query().Get("ms"), 10, 31); err == nil {
		after = min(time.Duration(ms)*time.Millisecond, longest)
	}
	timer := time.NewTimer(after)
	defer timer.Stop()
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	select {
	case <-timer.C:
	case <-r.Context().Done():
		return
	}
	h := w.Header()
	h.Set("X-Backend-Pod", b.pod)
	h.Set("X-Backend-In-Flight", strconv.Itoa(n))
	h.Set("Content-Type", "text/plain; charset=utf-8")
	_, err := io.WriteString(w, b.pod+"\n")
	ok = err == nil
}

// enter counts a request that begins, and returns how many are in flight with it.
func (b *backend) enter() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Requests++
	b.stats.InFlight++
	b.stats.Most = max(b.stats.Most, b.stats.InFlight)
	return b.stats.InFlight
}

// leave counts a request that ends.
func (b *backend) leave(ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.InFlight--
	if !ok {
		b.stats.Broken++
	}
}

// seen returns the stats so far, and with anew resets them.
func (b *backend) seen(anew bool) stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats
	s.Pod = b.pod
	if anew {
		b.stats = stats{InFlight: s.InFlight, Most: s.InFlight}
	}
	return s
}
