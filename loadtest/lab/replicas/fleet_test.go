package replicas

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/lab/process"
	"github.com/herdshield/shield/loadtest/live"
	"github.com/herdshield/shield/share/redis/testserver"
)

// shield is the program, which TestMain builds.
var shield string

func TestMain(m *testing.M) { os.Exit(process.Main(m, &shield)) }

// A fleet is some processes of the program before one backend, with a store.
type fleet struct {
	backend *backend
	store   *testserver.Server
	target  live.Target // its Addresses are the replicas
	admins  []string
}

// config is what all replicas of a fleet are given.
const config = `{
	admin %s
	persist_config off
	auto_https off
	log {
		level ERROR
	}
	servers {
		trusted_proxies static 127.0.0.0/8
		trusted_proxies_strict
	}
	shield {
		store redis %s {
			secret 0123456789abcdef
		}
	}
}
http://%s {
	shield {
		%s
	}
	reverse_proxy %s {
		header_up At {time.now.unix_ms}
	}
}
`

// start starts n replicas that have a limit, and returns when they know each other, and
// their buckets are full.
func start(t *testing.T, n int, limit, program string) *fleet {
	t.Helper()
	f := &fleet{backend: newBackend(), store: testserver.Start(t, program)}
	upstream := httptest.NewServer(f.backend)
	t.Cleanup(upstream.Close)
	for i := range n {
		address, admin := process.Free(t), process.Free(t)
		file := filepath.Join(t.TempDir(), "Caddyfile")
		text := fmt.Sprintf(config, admin, f.store.Addr, address, limit, upstream.Listener.Addr())
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(shield, "run", "--adapter", "caddyfile", "--config", file)
		cmd.Env = append(os.Environ(), "HOME="+filepath.Dir(file))
		stop, err := process.Start(t.Context(), cmd, file+".log", "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stop)
		f.admins = append(f.admins, admin)
		target, err := live.NewTarget(t.Context(), "http://"+address+"/", false)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			target.Addresses = append(f.target.Addresses, target.Addresses...)
		}
		f.target = target
	}
	for _, admin := range f.admins {
		f.await(t, admin)
	}
	time.Sleep(2 * time.Second) // a new store begins with empty buckets
	return f
}

// await returns when a replica shares with all the others.
func (f *fleet) await(t *testing.T, admin string) {
	t.Helper()
	var status adminapi.Status
	for range 400 {
		resp, err := http.Get("http://" + admin + "/shield/")
		if err != nil {
			t.Fatal(err)
		}
		status = adminapi.Status{}
		err = json.NewDecoder(resp.Body).Decode(&status)
		resp.Body.Close()
		if err != nil || len(status.Shields) != 1 {
			t.Fatalf("%d shields: %v", len(status.Shields), err)
		}
		if s := status.Shields[0].Sharing; s != nil && !s.Alone && s.Replicas == len(f.admins) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("it does not share with %d replicas within 20 s: %+v", len(f.admins), status)
}

// load returns clients of the fleet that obey Retry-After, each with an address of its own
// from first on.
func (f *fleet) load(t *testing.T, first string, change func(*live.LoadConfig)) *live.Load {
	t.Helper()
	c := live.LoadConfig{
		Target: f.target, Mix: clients.All(obedient{}), Timeout: 30 * time.Second, Patience: 2 * time.Minute,
		FirstAddress: netip.MustParseAddr(first), Seed: 1,
	}
	change(&c)
	l, err := live.NewLoad(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A backend takes service for each request, and counts.
type backend struct {
	service time.Duration

	mu     sync.Mutex  // guards what follows
	sent   []time.Time // when replicas passed on what came, to the millisecond
	inside int
	most   int // that were ever inside
	// Since the last take: the time that all inside were there together, until at.
	since, at time.Time
	used      time.Duration
}

func newBackend() *backend { return &backend{since: time.Now(), at: time.Now()} }

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ms, err := strconv.ParseInt(r.Header.Get("At"), 10, 64)
	if err != nil {
		panic(err) // config has no such header
	}
	b.move(1, time.UnixMilli(ms))
	time.Sleep(b.service)
	b.move(-1, time.Time{}) // before the response, with which the replica gives the place to another
	w.WriteHeader(http.StatusOK)
}

// move counts that a request comes, 1, which was sent at an instant, or has been served, -1.
func (b *backend) move(n int, sent time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count()
	if n > 0 {
		b.sent = append(b.sent, sent)
	}
	b.inside += n
	b.most = max(b.most, b.inside)
}

// count counts until now. b.mu must be held.
func (b *backend) count() {
	now := time.Now()
	b.used += time.Duration(b.inside) * now.Sub(b.at)
	b.at = now
}

// take returns how many were inside on average since the last call, and at most ever.
func (b *backend) take() (mean float64, most int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count()
	mean = b.used.Seconds() / b.at.Sub(b.since).Seconds()
	b.since, b.used = b.at, 0
	return mean, b.most
}

// excess returns by how many more came than a bucket lets in that is full at first: the most
// of any window of time, beyond burst + rate * time. Each counts when it was sent: see the
// package's comment.
func (b *backend) excess(rate, burst float64) (most float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	sent := slices.SortedFunc(slices.Values(b.sent), time.Time.Compare)
	level, last := burst, time.Time{}
	for _, at := range sent {
		level = min(burst, level+rate*at.Sub(last).Seconds()) - 1
		last, most = at, max(most, -level)
	}
	return max(0, most-rate/1000) // a millisecond is what two instants are off by
}
