package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/share/redis/testserver"
)

// Two replicas with a store admit together what one admits, as real processes with a real
// store; without one, twice as much.
func TestReplicasShareLimits(t *testing.T) {
	t.Setenv(secretVariable, "correct horse battery staple")
	t.Setenv(passwordVariable, "")
	app, machine := backend(t), testserver.Watch(t)
	testserver.Each(t, func(t *testing.T, program string) {
		store := testserver.Start(t, program)
		store.Do("CONFIG", "SET", "requirepass", "horse")
		store.Password = "horse"
		for _, limit := range []string{"--rate", "--capacity"} {
			run := func(prefix string, replicas int) visit {
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
						out, err := command(t, "status", "--store", "--address", admin).CombinedOutput()
						if err != nil || !strings.Contains(string(out), "together") || !strings.Contains(string(out), " up for ") || strings.Contains(string(out), "horse") {
							t.Errorf("shield status --store: %v\n%s", err, out)
						}
					}
					time.Sleep(3 * time.Second / 2) // a new store begins with empty buckets, which are full after a second
				}
				machine.Lap()
				v := load(t, addresses, 300, 2*time.Second)
				v.prompt = machine.Lap()
				return v
			}
			shared, alone, apart := run("shared"+strings.TrimPrefix(limit, "--"), 2), run("", 1), run("", 2)
			t.Logf("%s %s 40/s: one process admits %+v in 2 s, two without a store %+v, two with one %+v", program, limit, alone, apart, shared)
			bucket := func(v visit) float64 { return 40 + 40*v.came.Seconds() }
			if most := 40 + 40*1.02*shared.last.Seconds() + 2 + shared.late; shared.served > most {
				t.Errorf("%s: two replicas admit %v; want at most %.0f", limit, shared.served, most)
			}
			if shared.prompt && alone.prompt && shared.served/bucket(shared) < .92*alone.served/bucket(alone) {
				t.Errorf("%s: two replicas admit %v, one %v; want the same", limit, shared.served, alone.served)
			}
			if apart.prompt && apart.served < 1.5*alone.served {
				t.Errorf("%s: two replicas without a store admit %v, one %v: the load shows nothing", limit, apart.served, alone.served)
			}
		}
	})
}

// awaitStore waits until a process shares all that it shares with so many replicas in all.
func awaitStore(t *testing.T, admin string, replicas int) {
	t.Helper()
	last := ""
	for range 600 {
		resp, err := http.Get("http://" + admin + "/shield/")
		if err != nil {
			t.Fatal(err)
		}
		var status adminapi.Status
		err = json.NewDecoder(resp.Body).Decode(&status)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		shared, together := 0, 0
		note := func(s *adminapi.SharingStatus) {
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

// A visit is how many requests were served, of those that came for a while.
type visit struct {
	served     float64
	late       float64       // of them, which took so long that the decision may be of a time long past
	came, last time.Duration // for how long they came, and when the last was served
	prompt     bool          // the machine was
}

// load sends rate requests per second to all addresses in turn.
func load(t *testing.T, addresses []string, rate int, length time.Duration) (v visit) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	var mu sync.Mutex
	var all sync.WaitGroup
	every := time.NewTicker(time.Second / time.Duration(rate))
	defer every.Stop()
	began, end := time.Now(), time.After(length)
	for i := 0; ; i++ {
		select {
		case <-end:
			v.came = time.Since(began)
			all.Wait()
			return v
		case <-every.C:
		}
		all.Go(func() {
			sent := time.Now()
			resp, err := client.Get("http://" + addresses[i%len(addresses)])
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			mu.Lock()
			defer mu.Unlock()
			if resp.StatusCode == http.StatusOK {
				v.served++
				v.last = time.Since(began)
				if time.Since(sent) > 100*time.Millisecond {
					v.late++
				}
			}
		})
	}
}

// Tests of replicas that mostly wait, at once.
func TestReplicasAtOnce(t *testing.T) {
	t.Setenv(secretVariable, "correct horse battery staple")
	t.Setenv(passwordVariable, "")
	t.Run("herd", herdBeforeReplicas)
	t.Run("differ", replicasThatDiffer)
	t.Run("page", replicasOfThePage)
}

// A herd that is refused by four processes comes back to any of them when it was told, and is
// served at the rate of one backend.
func herdBeforeReplicas(t *testing.T) {
	t.Parallel()
	const herd, replicas, attempts = 300, 4, 20
	app, machine := backend(t), testserver.Watch(t)
	testserver.Each(t, func(t *testing.T, program string) {
		store := testserver.Start(t, program)
		var addresses, admins []string
		for range replicas {
			address, admin := startProxy(t, "--to", app, "--capacity", "60/s", "--store", "redis://"+store.Addr)
			addresses, admins = append(addresses, address), append(admins, admin)
		}
		for _, admin := range admins {
			awaitStore(t, admin, replicas)
		}
		time.Sleep(3 * time.Second / 2) // a new store begins with empty buckets, which are full after a second
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: herd}}
		defer client.CloseIdleConnections()
		var requests atomic.Int64
		var all sync.WaitGroup
		machine.Lap()
		begin := time.Now()
		for i := range herd {
			all.Go(func() {
				for attempt := range attempts {
					req, err := http.NewRequestWithContext(t.Context(), "GET", fmt.Sprintf("http://%s/%d", addresses[(i+attempt)%replicas], i), nil)
					if err != nil {
						t.Error(err)
						return
					}
					requests.Add(1)
					resp, err := client.Do(req)
					if err != nil {
						t.Error(err)
						return
					}
					resp.Body.Close()
					if resp.StatusCode == http.StatusOK {
						return
					}
					wait, err := strconv.Atoi(resp.Header.Get("Retry-After"))
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(time.Duration(wait) * time.Second)
				}
				t.Errorf("client %d was refused %d times", i, attempts)
			})
		}
		all.Wait()
		took, each := time.Since(begin), float64(requests.Load())/herd
		t.Logf("%s: a herd of %d before %d processes is served in %.1f s, %.2f requests each", program, herd, replicas, took.Seconds(), each)
		if took < 3500*time.Millisecond { // 60 at once, and 240 at 60/s
			t.Errorf("a herd of %d is served in %v: the limit does not hold", herd, took)
		}
		if machine.Lap() && (took > 15*time.Second || each > 3) { // 4.6 s and 1.8 are usual
			t.Errorf("a herd of %d is served in %v, %.2f requests each", herd, took, each)
		}
	})
}

// Replicas that define a limit in another way share nothing of it, and each shows the other.
func replicasThatDiffer(t *testing.T) {
	t.Parallel()
	app := backend(t)
	testserver.Each(t, func(t *testing.T, program string) {
		store := testserver.Start(t, program)
		var admins []string
		for _, args := range [][]string{{"--capacity", "40/s"}, {"--capacity", "50/s"}} {
			_, admin := startProxy(t, append([]string{"--to", app, "--store", "redis://" + store.Addr + "/?replicas=1"}, args...)...)
			admins = append(admins, admin)
		}
		for i, other := range []string{"50 per 1s", "40 per 1s"} {
			awaitStore(t, admins[i], 1)
			want := regexp.MustCompile(`(?m)^ +1 +DIFFER +capacity ` + other)
			var out []byte
			for range 100 {
				out, _ = command(t, "status", "--store", "--address", admins[i]).CombinedOutput()
				if want.Match(out) {
					break
				}
				time.Sleep(200 * time.Millisecond)
			}
			if !want.Match(out) {
				t.Errorf("the other replica is not shown:\n%s", out)
			}
		}
	})
}

// The config of docs/replicas.md is all that replicas need, and the status is as shown there.
func replicasOfThePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/replicas.md")
	if err != nil {
		t.Fatal(err)
	}
	config := regexp.MustCompile("(?s)```caddyfile\n\\{\n(.*?)```").FindSubmatch(page)
	shown := regexp.MustCompile("(?s)```text\n(STORE .*?)```").FindSubmatch(page)
	if config == nil || shown == nil {
		t.Fatal("the page has no config, or no status")
	}
	app := backend(t)
	testserver.Each(t, func(t *testing.T, program string) {
		store := testserver.Start(t, program)
		var admins []string
		for range 3 {
			address, admin := testserver.FreeAddress(t), testserver.FreeAddress(t)
			text := strings.NewReplacer("127.0.0.1:6379", store.Addr, "api.example.com", "http://"+address, "app:8080", app).Replace(string(config[1]))
			file := filepath.Join(t.TempDir(), "Caddyfile")
			if err := os.WriteFile(file, []byte("{\n\tadmin "+admin+"\n"+text), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := command(t, "run", "--adapter", "caddyfile", "--config", file)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = cmd.Process.Signal(os.Interrupt)
				_ = cmd.Wait()
			})
			awaitAnswer(t, "http://"+address)
			admins = append(admins, admin)
		}
		for _, admin := range admins {
			awaitStore(t, admin, 3)
			// Numbers and hashes differ, and so does where columns begin.
			differs := regexp.MustCompile(`127\.0\.0\.1:\d+|redis-1:6379|[\d.]+ (?:s|ms|answered|late|failed|slow)\b,?|(?:secret|script) [0-9a-f]{8}`)
			plain := func(text []byte) string {
				return strings.Join(strings.Fields(differs.ReplaceAllString(string(text), "")), " ")
			}
			var out []byte
			for range 50 { // on a busy machine a replica works alone at times
				if out, err = command(t, "status", "--store", "--address", admin).CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				if plain(out) == plain(shown[1]) {
					break
				}
				time.Sleep(200 * time.Millisecond)
			}
			if plain(out) != plain(shown[1]) {
				t.Errorf("the status is\n%swant, as in docs/replicas.md\n%s", out, shown[1])
			}
		}
	})
}

// awaitAnswer returns when a server answers.
func awaitAnswer(t *testing.T, url string) {
	t.Helper()
	for range 300 {
		if resp, err := http.Get(url); err == nil {
			resp.Body.Close()
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("%s does not answer within 30 s", url)
}
