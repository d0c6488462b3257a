package realclients

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/herdshield/shield"
)

// A place is a path of the server with a shield of its own, so that measurements
// do not disturb each other. Its name is the path, without slashes around it.
type place struct {
	name   string
	config shield.Config

	mu     sync.Mutex
	filled time.Time // when another client set out to use up the burst
	err    error     // of that
	visits []visit
}

// A visit is a client's request and its response, as seen right outside of shield.
// sent is taken before any byte of the response leaves, and arrived when the
// request is here. A machine that is busy between may so make a client look late,
// but never early.
type visit struct {
	arrived, sent time.Time
	status        int
	header        http.Header
}

// visited returns the visits so far, and when the bucket was filled for them.
func (p *place) visited() (visits []visit, filled time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.visits, p.filled, p.err
}

// fill sends the place a plain request, which takes the burst. The first visit
// starts it, so that a client finds no token, however long it took to start.
func (p *place) fill(addr net.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.filled.IsZero() {
		return
	}
	p.filled = time.Now()
	req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://%s/%s/", addr, p.name), nil)
	if err != nil {
		p.err = err
		return
	}
	req.Header.Set(filling, "yes")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := client.Do(req)
	if err != nil {
		p.err = err
		return
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || string(b) != hello {
		p.err = fmt.Errorf("the first of all was not admitted: %s, %q, %v", resp.Status, b, err)
	}
}

const (
	filling = "Fills-The-Bucket" // a header
	hello   = "hello"
)

// serve serves over HTTP/1.1 and HTTP/2 until the test ends, with a shield in front of each place,
// and returns the URL. Behind, a real gRPC server answers gRPC, and everything else is told hello.
func serve(t *testing.T, places []*place) string {
	t.Helper()
	calls := grpc.NewServer()
	healthpb.RegisterHealthServer(calls, health.NewServer())
	t.Cleanup(calls.Stop)
	backend := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			calls.ServeHTTP(w, r)
			return
		}
		_, _ = io.WriteString(w, hello)
	})
	mux := http.NewServeMux()
	for _, p := range places {
		guard := shield.Must(shield.New(p.config, nil))
		path := "/" + p.name
		mux.Handle(path+"/", p.visitors(http.StripPrefix(path, guard.Handler(backend))))
	}
	server := httptest.NewUnstartedServer(mux)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

// visitors writes down who comes and goes.
func (p *place) visitors(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(filling) != "" {
			next.ServeHTTP(w, r)
			return
		}
		p.fill(r.Context().Value(http.LocalAddrContextKey).(net.Addr))
		s := &stamped{ResponseWriter: w}
		s.arrived, s.status = time.Now(), http.StatusOK // as net/http has it of who says nothing
		next.ServeHTTP(s, r)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.visits = append(p.visits, s.visit)
	})
}

// stamped writes down when a response begins, and what it says.
type stamped struct {
	http.ResponseWriter
	visit
}

func (s *stamped) WriteHeader(status int) {
	if s.sent.IsZero() && status >= 200 {
		s.sent, s.status, s.header = time.Now(), status, s.Header().Clone()
	}
	s.ResponseWriter.WriteHeader(status)
}

// Flush is what a gRPC server wants.
func (s *stamped) Flush() { _ = http.NewResponseController(s.ResponseWriter).Flush() }
