package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/live"
)

// patience is how long a client waits for an answer: longer than whatever shield may take.
const patience = 15 * time.Second

// What becomes of a request.
const (
	served   = "served"
	rejected = "rejected"
	failed   = "failed"  // any other status
	lost     = "lost"    // no answer within patience
	broken   = "broken"  // no connection, or one that was closed before the answer was complete
	hungUp   = "hung up" // by its client
)

// outcomes counts what became of requests.
type outcomes map[string]int

func outcomeOf(status int) string {
	switch {
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		return rejected
	case status >= 200 && status < 300:
		return served
	}
	return failed
}

// A crowd is all clients of one replica.
type crowd struct {
	of   *replica
	load *live.Load // that come, are served and go

	mu      sync.Mutex // guards what follows, which is of the other clients
	counts  outcomes
	answers []answer // to one over HTTP/2
	whole   int      // uploads and streams that were served
}

type answer struct {
	at   time.Time
	took time.Duration
}

// newCrowd returns clients that ask for more than a replica's half of the capacity: most come back when they are
// told, some hammer, and some have a policy of their own.
func newCrowd(of *replica, first string, seed uint64) (*crowd, error) {
	target, err := live.NewTarget(context.Background(), "http://"+of.address+"/", false)
	if err != nil {
		return nil, err
	}
	mix, err := clients.Parse("exact:75,curl:15,hammer@300ms:10")
	if err != nil {
		return nil, err
	}
	load, err := live.NewLoad(live.LoadConfig{
		Target: target, KeepAlive: true, Mix: mix, Rate: .6 * rate, Duration: live.MaxDuration, Timeout: patience, Patience: 6 * time.Second,
		FirstAddress: netip.MustParseAddr(first), Identities: 1 << 16, Requests: live.MaxRequests, Seed: seed,
	})
	return &crowd{of: of, load: load, counts: outcomes{}}, err
}

// run returns when all clients have ended, after ctx.
func (c *crowd) run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { c.load.Run(ctx) })
	for i, path := range []string{"/", "/upload", "/events", "/slow", "/upload", "/events"} {
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetHTTP1(i > 2)
		transport.Protocols.SetUnencryptedHTTP2(i <= 2)
		all.Go(func() {
			defer transport.CloseIdleConnections()
			for ctx.Err() == nil {
				began := time.Now()
				what, told := c.send(ctx, transport, path, "10.9.0."+strconv.Itoa(i+1))
				c.mu.Lock()
				c.counts[what]++
				switch {
				case path == "/" && (what == served || what == rejected):
					c.answers = append(c.answers, answer{began, time.Since(began)})
				case path != "/slow" && what == served:
					c.whole++
				}
				c.mu.Unlock()
				if path == "/" { // it asks for more than its quota
					told = 60 * time.Millisecond
				}
				sleep(ctx, max(told, 60*time.Millisecond))
			}
		})
	}
	all.Wait()
}

// send sends a request, and reads all of the answer, unless its client hangs up before, as those of /slow do. It returns
// what became of it, and for how long the client was told to wait.
func (c *crowd) send(ctx context.Context, transport http.RoundTripper, path, from string) (what string, told time.Duration) {
	most, hangsUp := patience, path == "/slow"
	if hangsUp {
		most = rand.N(250 * time.Millisecond)
	}
	waits, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	method, body := http.MethodGet, io.Reader(nil)
	if path == "/upload" {
		method, body = http.MethodPost, &slowBody{parts: 8}
	}
	req, err := http.NewRequestWithContext(waits, method, "http://"+c.of.address+path, body)
	if err != nil {
		panic(err) // the address is ours
	}
	if path == "/events" {
		req.Header.Set("Accept", "text/event-stream")
	}
	req.Header.Set("X-Forwarded-For", from)
	req.Header.Set("Shield-Retry", "yes") // rejections are not held back
	resp, err := transport.RoundTrip(req)
	if err == nil {
		defer resp.Body.Close()
		if _, err = io.Copy(io.Discard, resp.Body); err == nil {
			told, _ = time.ParseDuration(resp.Header.Get("Retry-After-Ms") + "ms")
			return outcomeOf(resp.StatusCode), told
		}
	}
	switch {
	case ctx.Err() != nil || hangsUp && waits.Err() != nil:
		return hungUp, 0
	case errors.Is(waits.Err(), context.DeadlineExceeded):
		return lost, 0
	}
	return broken, 0
}

func (c *crowd) count(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[what]++
}

// total returns what became of all requests until now.
func (c *crowd) total() outcomes {
	all, n := c.load.Result().All, outcomes{}
	for status, count := range all.Responses {
		code, _ := strconv.Atoi(status)
		n[outcomeOf(code)] += count
	}
	n[lost], n[broken], n[hungUp] = all.TimedOut, all.Unreachable, all.CutOff
	c.mu.Lock()
	defer c.mu.Unlock()
	for what, count := range c.counts {
		n[what] += count
	}
	return n
}

// prompt returns within which time nine tenths of the answers over HTTP/2 came, of requests sent from one instant to
// another.
func (c *crowd) prompt(from, to time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	var took []time.Duration
	for _, a := range slices.Backward(c.answers) {
		if a.at.Before(from) {
			break
		}
		if a.at.Before(to) {
			took = append(took, a.took)
		}
	}
	if len(took) == 0 {
		return patience
	}
	slices.Sort(took)
	return took[len(took)*9/10]
}

// A slowBody is of 4 KiB parts, each a tenth of a second after the one before.
type slowBody struct{ parts int }

func (b *slowBody) Read(p []byte) (int, error) {
	if b.parts--; b.parts < 0 {
		return 0, io.EOF
	}
	time.Sleep(100 * time.Millisecond)
	return copy(p, strings.Repeat("x", 4<<10)), nil
}

// makeWait has n clients of a replica told to come back, and returns their addresses.
func makeWait(of *replica, n int) (addresses []string, err error) {
	last := errors.New("the others were admitted")
	for i := 1; i < 255 && len(addresses) < n; i++ {
		req, err := http.NewRequest(http.MethodGet, "http://"+of.address+"/", nil)
		if err != nil {
			return nil, err
		}
		address := "10.8.0." + strconv.Itoa(i)
		req.Header.Set("X-Forwarded-For", address)
		req.Header.Set("Shield-Retry", "yes")
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil { // a reload closes a connection now and then
			last = err
			continue
		}
		resp.Body.Close()
		if outcomeOf(resp.StatusCode) == rejected {
			addresses = append(addresses, address)
		}
	}
	if len(addresses) < n {
		return nil, fmt.Errorf("only %d clients are rejected: %w", len(addresses), last)
	}
	return addresses, nil
}
