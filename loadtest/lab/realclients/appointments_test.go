package realclients

import (
	"context"
	"encoding/base64"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/lab/must"
)

// A client's slot is the time at which its rejection was sent, plus what the
// rejection told it to wait. Coming before is the client's or the server's fault.
// Coming after may be the machine's, where others work too: of three attempts one
// has to come within late, and all within tooLate.
const (
	early    = 20 * time.Millisecond // timers of JavaScript are up to 1 ms early
	late     = 150 * time.Millisecond
	tooLate  = 5 * time.Second
	attempts = 3
	patience = 20 * time.Second
)

// The limits that reject. The longer wait is one that no client would choose on
// its own; see clients.
var limits = []struct {
	name   string
	config shield.Config
	wait   time.Duration // of who comes right after the burst
	status int
	code   codes.Code
}{
	{"capacity-1s", shield.Config{Capacity: limiter.Config{Rate: 1, Burst: 1}}, time.Second, 503, codes.Unavailable},
	{"capacity-2.5s", shield.Config{Capacity: slow}, 2500 * time.Millisecond, 503, codes.Unavailable},
	{"quota-2.5s", shield.Config{Zones: []shield.Zone{{Name: "quota", Limit: slow}}}, 2500 * time.Millisecond, 429, codes.ResourceExhausted},
}

var slow = limiter.Config{Rate: 2, Per: 5 * time.Second, Burst: 1}

// The tests wait nearly all of their time, so all run at once.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(len(clients)*len(limits))); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func TestClientsKeepTheirAppointments(t *testing.T) {
	places := map[string]*place{}
	var all []*place
	name := func(client, limit string, attempt int) string { return fmt.Sprintf("%s/%s/%d", client, limit, attempt) }
	for _, c := range clients {
		for _, l := range limits {
			for i := range attempts {
				p := &place{name: name(c.name, l.name, i), config: l.config}
				places[p.name] = p
				all = append(all, p)
			}
		}
	}
	server := serve(t, all)
	for _, c := range clients {
		for _, l := range limits {
			t.Run(c.name+"/"+l.name, func(t *testing.T) {
				t.Parallel()
				for i := range attempts {
					p := places[name(c.name, l.name, i)]
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					err := c.run(ctx, t, server+"/"+p.name)
					cancel()
					if lateness := keeps(t, p, err, c, l.status, l.code, l.wait); lateness <= late {
						return
					}
				}
				t.Errorf("came more than %v late each time", late)
			})
		}
	}
}

// keeps checks a client's two visits, of which the first was rejected and the
// second admitted, and returns how much after its slot the client came. On a
// machine that is so slow that no request was rejected, it returns how slow.
func keeps(t *testing.T, p *place, failed error, c client, rejected int, code codes.Code, wait time.Duration) (lateness time.Duration) {
	t.Helper()
	visits, filled, err := p.visited()
	must.Do(t, err)
	if failed == nil && len(visits) == 1 && visits[0].arrived.Sub(filled) > wait {
		lateness = visits[0].arrived.Sub(filled)
		t.Logf("not rejected: the machine took %v to come after the burst", lateness)
		return lateness
	}
	if failed != nil || len(visits) != 2 {
		for _, v := range visits {
			t.Logf("%s to %s: %d %v", v.arrived.Format(time.StampMilli), v.sent.Format(time.StampMilli), v.status, v.header)
		}
		t.Fatalf("%d visits, want one that is rejected and one that is admitted; the client says: %v", len(visits), failed)
	}
	first, second := visits[0], visits[1]
	var told time.Duration
	if c.grpc {
		told, err = pushback(first, code)
	} else {
		told, err = retryAfter(first, rejected)
	}
	must.Do(t, err)
	if second.status != http.StatusOK {
		t.Fatalf("came back and was told %d, want 200", second.status)
	}
	held := first.sent.Sub(first.arrived)
	lateness = second.arrived.Sub(first.sent.Add(told))
	t.Logf("held %v, told %v, came %v after its slot", held, told, lateness)
	if slot := held + told; slot > 2*wait+time.Second { // others may have come before, and seconds are whole
		t.Errorf("its slot was %v away, want about %v", slot, wait)
	}
	if lateness < -early {
		t.Fatalf("came %v before its slot", -lateness)
	}
	if lateness > tooLate {
		t.Fatalf("came %v after its slot", lateness)
	}
	return lateness
}

// retryAfter returns what a rejection told an HTTP client.
func retryAfter(v visit, want int) (time.Duration, error) {
	told := v.header["Retry-After"]
	if v.status != want || len(told) != 1 {
		return 0, fmt.Errorf("rejected by a %d with Retry-After: %q; want %d and one value", v.status, told, want)
	}
	s, err := strconv.Atoi(told[0])
	if err != nil || s < 1 {
		return 0, fmt.Errorf("Retry-After: %q", told[0])
	}
	return time.Duration(s) * time.Second, nil
}

// pushback returns what a rejection told a gRPC client, in both its forms.
func pushback(v visit, want codes.Code) (time.Duration, error) {
	told, code := v.header["Grpc-Retry-Pushback-Ms"], v.header.Get("Grpc-Status")
	if v.status != http.StatusOK || code != strconv.Itoa(int(want)) || len(told) != 1 {
		return 0, fmt.Errorf("rejected by a %d with gRPC status %q and pushback %q; want 200, %d and one value", v.status, code, told, want)
	}
	ms, err := strconv.Atoi(told[0])
	if err != nil {
		return 0, err
	}
	wait := time.Duration(ms) * time.Millisecond

	b, err := base64.RawStdEncoding.DecodeString(v.header.Get("Grpc-Status-Details-Bin"))
	if err != nil {
		return 0, err
	}
	var s spb.Status
	if err := proto.Unmarshal(b, &s); err != nil {
		return 0, err
	}
	details := status.FromProto(&s).Details()
	if len(details) != 1 {
		return 0, fmt.Errorf("details %v, want one", details)
	}
	if info, ok := details[0].(*errdetails.RetryInfo); !ok || info.RetryDelay.AsDuration() != wait {
		return 0, fmt.Errorf("details %v, want RetryInfo with %v", details, wait)
	}
	return wait, nil
}

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
