package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/share/redis/testserver"
)

// Two replicas with a store admit together what one admits, as real processes with a real
// store; without one, twice as much.
func TestReplicasShareLimits(t *testing.T) {
	t.Setenv(secretVariable, "correct horse battery staple")
	t.Setenv(passwordVariable, "")
	app := backend(t)
	testserver.Each(t, func(t *testing.T, program string) {
		store := testserver.Start(t, program)
		store.Do("CONFIG", "SET", "requirepass", "horse")
		store.Password = "horse"
		for _, limit := range []string{"--rate", "--capacity"} {
			run := func(prefix string, replicas int) int {
				t.Helper()
				var addresses, admins []string
				for range replicas {
					args := []string{"--to", app, limit, "40/s"}
					if limit == "--rate" {
						args = append(args, "--burst", "40")
					}
					if prefix != "" {
						args = append(args, "--store", fmt.Sprintf("redis://:horse@%s/?prefix=%s", store.Addr, prefix))
					}
					address, admin := startProxy(t, args...)
					addresses, admins = append(addresses, address), append(admins, admin)
				}
				if prefix != "" {
					for _, admin := range admins {
						awaitStore(t, admin, replicas)
					}
					time.Sleep(1100 * time.Millisecond) // a new store begins with empty buckets
				}
				return load(t, addresses, 300, 4*time.Second)
			}
			alone, apart, shared := run("", 1), run("", 2), run("shared"+strings.TrimPrefix(limit, "--"), 2)
			t.Logf("%s %s 40/s: one process admits %d in 4 s, two without a store %d, two with one %d", program, limit, alone, apart, shared)
			if shared > 40+40*4+40*4/50+2 || float64(shared) < .94*float64(alone) { // the load takes 2 % longer, in an unlucky second
				t.Errorf("%s: two replicas admit %d, one %d; want the same", limit, shared, alone)
			}
			if apart < alone*3/2 {
				t.Errorf("%s: two replicas without a store admit %d, one %d: the load shows nothing", limit, apart, alone)
			}
		}
	})
}

// awaitStore waits until a process shares all that it shares with so many replicas in all.
func awaitStore(t *testing.T, admin string, replicas int) {
	t.Helper()
	last := ""
	for range 200 {
		resp, err := http.Get("http://" + admin + "/shield/")
		if err != nil {
			t.Fatal(err)
		}
		var status caddymodule.Status
		err = json.NewDecoder(resp.Body).Decode(&status)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		shared, together := 0, 0
		note := func(s *caddymodule.SharingStatus) {
			if s != nil {
				shared++
				if !s.Alone && s.Replicas == replicas {
					together++
				}
			}
		}
		for _, s := range status.Shields {
			note(s.Sharing)
		}
		for _, z := range status.Zones {
			note(z.Sharing)
		}
		if shared > 0 && shared == together && status.Store.Up {
			return
		}
		last = fmt.Sprintf("%+v", status)
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("it does not share with %d replicas: %s", replicas, last)
}

// load sends rate requests per second to all addresses in turn, and returns how many were served.
func load(t *testing.T, addresses []string, rate int, length time.Duration) (served int) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	var mu sync.Mutex
	var all sync.WaitGroup
	every := time.NewTicker(time.Second / time.Duration(rate))
	defer every.Stop()
	end := time.After(length)
	for i := 0; ; i++ {
		select {
		case <-end:
			all.Wait()
			return served
		case <-every.C:
		}
		all.Go(func() {
			resp, err := client.Get("http://" + addresses[i%len(addresses)])
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			mu.Lock()
			defer mu.Unlock()
			if resp.StatusCode == http.StatusOK {
				served++
			}
		})
	}
}
