package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/oncall"
	"github.com/herdshield/shield/share/redis/testserver"
)

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
		note := func(s *oncall.Sharing) {
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

// Two proxies share their limits through a store with a password, which is nowhere to be seen: loadtest/lab/soak has what they admit.
func TestReplicasShareLimits(t *testing.T) {
	t.Parallel()
	app := backend(t)
	testserver.Each(t, func(t *testing.T, program string) {
		store := testserver.Start(t, program)
		store.Do("CONFIG", "SET", "requirepass", "horse")
		store.Password = "horse"
		for range 2 {
			_, admin := startProxy(t, "--to", app, "--capacity", "40/s", "--store", "redis://:horse@"+store.Addr+"/?prefix=shop")
			defer func() {
				awaitStore(t, admin, 2)
				if out := ask("status", "--store", "--address", admin); !regexp.MustCompile(`^STORE.* UP *\n.* yes *\n`).MatchString(out) || strings.Contains(out, "horse") {
					t.Errorf("shield status --store:\n%s", out)
				}
			}()
		}
	})
}

// The config of docs/guides/replicas.md is all that replicas need, and the status is as shown there.
func TestReplicasOfThePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/guides/replicas.md")
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
			await(t, caddyfile(t, "{\n\tadmin "+admin+"\n"+text), serving)
			admins = append(admins, admin)
		}
		for _, admin := range admins {
			awaitStore(t, admin, 3)
			// Numbers and hashes differ, and so does where columns begin.
			differs := regexp.MustCompile(`(?s)^.*\n(SHARING)|(?:secret|script) [0-9a-f]{8}`) // so does what the store is said to do
			plain := func(text string) string {
				return strings.Join(strings.Fields(differs.ReplaceAllString(text, "$1")), " ")
			}
			out, want := "", plain(string(shown[1]))
			for range 50 { // on a busy machine a replica works alone at times
				if out = ask("status", "--store", "--address", admin); plain(out) == want {
					break
				}
				time.Sleep(200 * time.Millisecond)
			}
			if plain(out) != want {
				t.Errorf("the status is\n%swant, as in docs/guides/replicas.md\n%s", out, shown[1])
			}
		}
	})
}
