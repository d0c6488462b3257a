package live_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/live"
	"github.com/herdshield/shield/loadtest/plant"
)

// Twenty clients meet a backend that is not crowded: no client comes twice.
func ExampleLoad_Run() {
	backend, err := live.NewBackend(live.BackendConfig{Config: plant.Config{Workers: 20, Queue: 100}, Service: time.Millisecond})
	if err != nil {
		log.Fatal(err)
	}
	defer backend.Close()
	server := httptest.NewServer(backend)
	defer server.Close()

	target, err := live.NewTarget(context.Background(), server.URL, false)
	if err != nil {
		log.Fatal(err)
	}
	load, err := live.NewLoad(live.LoadConfig{
		Target: target, Herd: 20, Mix: clients.All(clients.Exact{}), Timeout: time.Minute, Patience: time.Minute,
	})
	if err != nil {
		log.Fatal(err)
	}
	all := load.Run(context.Background()).All
	fmt.Printf("%d of %d served in %d attempts: %v\n", all.Served, all.Clients, all.Requests, all.Answers)
	// Output:
	// 20 of 20 served in 20 attempts: map[200:20]
}
