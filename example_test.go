package shield_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
)

// A client may send two requests at once and then one every ten seconds. The
// third learns when to come back.
func ExampleGuard_Handler() {
	guard, err := shield.New(shield.Config{
		Zones: []shield.Zone{{
			Name:  "clients",
			Limit: limiter.Config{Rate: 6, Per: time.Minute, Burst: 2},
			Key:   func(r *http.Request) string { return r.Header.Get("Api-Key") },
		}},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	handler := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "hello")
	}))

	// In a server this would be http.ListenAndServe(addr, handler).
	for range 3 {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Api-Key", "alice")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		body, _ := io.ReadAll(w.Body)
		fmt.Print(w.Code, " ", string(body))
		for _, name := range []string{"Retry-After", "RateLimit", "RateLimit-Policy"} {
			if value := w.Header().Get(name); value != "" {
				fmt.Println(name+":", value)
			}
		}
	}
	// Output:
	// 200 hello
	// 200 hello
	// 429 {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429,"detail":"This client has used up its quota. Come back when retry-after seconds have passed.","violated-policies":["clients"],"retry-after":10}
	// Retry-After: 10
	// RateLimit: "clients";r=0;t=10
	// RateLimit-Policy: "clients";q=2;w=20
}

// Without HTTP: the caller says what time it is and gives back what it was
// given. The backend takes ten requests a second, and two at a time.
func ExampleGuard_Admit() {
	guard, err := shield.New(shield.Config{
		Capacity:    limiter.Config{Rate: 10, Burst: 3},
		Concurrency: 2,
		Queue:       loadshed.QueueConfig{Size: loadshed.NoQueue},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	admit := func(now time.Duration) shield.Decision {
		d := guard.Admit(now, shield.Request{})
		if d.Admit {
			fmt.Println(now, "admitted")
		} else {
			fmt.Printf("%v rejected for %v: held back for %v, told %d s\n", now, d.Reason, d.Hold.Round(time.Millisecond), d.Hint.Seconds)
		}
		return d
	}

	first, second := admit(0), admit(0)
	admit(30 * time.Millisecond)
	first.Done(40*time.Millisecond, shield.Served)
	second.Done(40*time.Millisecond, shield.Served)

	third := admit(40 * time.Millisecond)
	third.Done(50*time.Millisecond, shield.Served)
	admit(60 * time.Millisecond)
	admit(60 * time.Millisecond)
	admit(100 * time.Millisecond)
	// Output:
	// 0s admitted
	// 0s admitted
	// 30ms rejected for concurrency: held back for 0s, told 1 s
	// 40ms admitted
	// 60ms rejected for capacity: held back for 72ms, told 1 s
	// 60ms rejected for capacity: held back for 174ms, told 1 s
	// 100ms admitted
}

// In a server of another protocol: the second of two requests finds no permit, and is told when to return.
func ExampleGuard_Enter() {
	guard := shield.Must(shield.New(shield.Config{Concurrency: 1, Queue: loadshed.QueueConfig{Size: loadshed.NoQueue}}, nil))
	reject := func(seconds int) { fmt.Println("rejected for", seconds, "s") }
	var serve func()
	handle := func(ctx context.Context) {
		d := guard.Enter(ctx, shield.Now(), shield.Request{})
		if !d.Admit {
			if _, ok := d.Deliver(ctx); ok { // false if the client is gone
				reject(d.Hint.Seconds)
			}
			return
		}
		defer func() { d.Done(shield.Now(), shield.Served) }()
		serve()
	}
	serve = func() {
		fmt.Println("admitted")
		handle(context.Background())
	}
	handle(context.Background())
	// Output:
	// admitted
	// rejected for 1 s
}

// A guard around a handler: 50 requests per second for each client address.
func ExampleRatePerClient() {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })

	guard := shield.Must(shield.New(shield.RatePerClient(50, 100), nil))
	handler := guard.Handler(mux)

	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	fmt.Println(w.Code)
	// Output: 200
}

// Behind a load balancer all users come from its address. The balancer appends the
// address that it sees to X-Forwarded-For, so the last one is true.
func ExampleConfig_client() {
	balancer := netip.MustParsePrefix("10.0.0.0/8")

	client := func(r *http.Request) string {
		peer, _ := netip.ParseAddrPort(r.RemoteAddr)
		address := peer.Addr()
		if seen := r.Header.Values("X-Forwarded-For"); balancer.Contains(address) && len(seen) > 0 {
			last := seen[len(seen)-1]
			address, _ = netip.ParseAddr(strings.TrimSpace(last[strings.LastIndexByte(last, ',')+1:]))
		}
		return string(shield.AppendNetwork(nil, address, 32, 64))
	}
	guard := shield.Must(shield.New(shield.Config{
		Concurrency: 64,
		PerClient:   8,
		Zones:       []shield.Zone{{Name: "clients", Limit: limiter.Config{Rate: 5, Burst: 20}}},
		Client:      client,
	}, nil))

	handler := guard.Handler(http.NotFoundHandler())
	for _, from := range []string{"192.0.2.1", "192.0.2.2", "evil, 192.0.2.1"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = "10.0.0.1:4711"
		r.Header.Set("X-Forwarded-For", from)
		var w *httptest.ResponseRecorder
		for range 20 {
			w = httptest.NewRecorder()
			handler.ServeHTTP(w, r)
		}
		fmt.Println(from, w.Code)
	}
	// Output:
	// 192.0.2.1 404
	// 192.0.2.2 404
	// evil, 192.0.2.1 429
}

// Checkouts go first, and exports wait until there is room.
func ExampleConfig_classes() {
	guard := shield.Must(shield.New(shield.Config{
		Adaptive: &loadshed.AdaptiveConfig{Max: 200},
		Classes:  []loadshed.Class{{Name: loadshed.Critical}, {Name: loadshed.Sheddable}, {Name: "export", Share: 0.3}},
		Class: func(r *http.Request) string {
			switch {
			case strings.HasPrefix(r.URL.Path, "/checkout/"):
				return loadshed.Critical
			case strings.HasPrefix(r.URL.Path, "/export/"):
				return "export"
			}
			return loadshed.Default
		},
	}, nil))

	handler := guard.Handler(http.NotFoundHandler())
	for _, path := range []string{"/export/all", "/checkout/1", "/", "/checkout/2"} {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil))
	}
	for _, class := range guard.ClassStats() {
		fmt.Println(class.Name, class.Admitted)
	}
	// Output:
	// critical 2
	// default 1
	// sheddable 0
	// export 1
	// unpaid 0
}

// New limits apply at once, and no client is forgiven. A mistake leaves the old limits.
func ExampleNew() {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })

	state := new(shield.State)
	var current atomic.Pointer[http.Handler]
	use := func(config shield.Config) error {
		guard, err := shield.New(config, state)
		if err != nil {
			return err // the limits in use stay
		}
		handler := guard.Handler(mux)
		current.Store(&handler)
		return nil
	}
	server := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*current.Load()).ServeHTTP(w, r) })

	ask := func() {
		w := httptest.NewRecorder()
		server.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Println(w.Code)
	}
	fmt.Println(use(shield.RatePerClient(0.01, 1)))
	ask()
	fmt.Println(use(shield.RatePerClient(0.02, 1)))
	ask()
	fmt.Println(use(shield.RatePerClient(-1, 1)))
	ask()
	// Output:
	// <nil>
	// 200
	// <nil>
	// 429
	// zone "clients": rate is -1 per 1s; use more than 0 and at most 1e9 per second
	// 429
}
