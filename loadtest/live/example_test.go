package live_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"time"

	"github.com/herdshield/shield/loadtest/live"
)

// Twenty clients meet a backend that is not crowded: no client comes twice.
func ExampleHerd_Run() {
	backend, err := live.NewBackend(live.BackendConfig{
		Workers: 20, Service: time.Millisecond, Crowd: 100, MaxSlowdown: 3, Queue: 100,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer backend.Close()
	server := httptest.NewServer(backend)
	defer server.Close()

	herd, err := live.NewHerd(live.HerdConfig{
		URL: server.URL, Clients: 20, Timeout: time.Minute, Attempts: 3, Patience: time.Minute,
	})
	if err != nil {
		log.Fatal(err)
	}
	r := herd.Run(context.Background())
	fmt.Printf("%d of %d served in %d attempts: %v\n", r.Served, r.Clients, r.Attempts, r.Answers)
	// Output:
	// 20 of 20 served in 20 attempts: map[200:20]
}
