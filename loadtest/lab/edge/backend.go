package main

import (
	"context"
	"encoding/json"
	"hash/maphash"
	"math"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/herdshield/shield/loadtest/edge"
)

// backendVar in the environment makes this program a backend: it has the job in JSON.
const backendVar = "EDGE_BACKEND"

// A job is what a backend does. The push begins when it has been calm for so long since its first request.
type job struct {
	Address string
	Workers int
	Mean    time.Duration // of times of service, which are exponential
	Calm    time.Duration
	Push    edge.Push
}

// A backend is a pool of workers with a queue before them, first come, first served, which do not notice that
// a client has gone. It shares no code with plant.Plant.
//
// A worker that is late, because timers are, begins with the next request when it should have: otherwise a request
// of 20 ms would take 21, and at 80% of what the backend serves that is a quarter of the room that is left.
type backend struct {
	job
	first   func() time.Time // of all requests
	workers chan time.Time   // those who are idle, and since when; who waits to receive is in the queue
	seed    maphash.Seed
}

func newBackend(j job) *backend {
	b := &backend{job: j, first: sync.OnceValue(time.Now), workers: make(chan time.Time, j.Workers), seed: maphash.MakeSeed()}
	for range j.Workers {
		b.workers <- time.Time{}
	}
	return b
}

func (b *backend) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	began, arrived := b.first(), time.Now()
	begin := <-b.workers
	if begin.Before(arrived) {
		begin = arrived
	}
	end := begin.Add(time.Duration(float64(b.takes(r)) * b.slower(begin.Sub(began))))
	time.Sleep(time.Until(end))
	b.workers <- end
}

// takes is how long a request takes alone: the same for all attempts of a client.
func (b *backend) takes(r *http.Request) time.Duration {
	client, _, _ := strings.Cut(r.Header.Get("X-Forwarded-For"), ",")
	u := float64(maphash.String(b.seed, client)>>11) / (1 << 53)
	return time.Duration(-math.Log1p(-u) * float64(b.Mean))
}

// slower is how many times as long requests take that begin then.
func (b *backend) slower(since time.Duration) float64 {
	if since < b.Calm || since >= b.Calm+b.Push.Length {
		return 1
	}
	return b.Push.Depth
}

// beBackend serves until it is told to end.
func beBackend(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", j.Address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: newBackend(j)}
	context.AfterFunc(ctx, func() { server.Close() })
	if err := server.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}
