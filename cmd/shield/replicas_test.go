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

// Two processes with a store that has a password share a limit: loadtest/lab/soak has what they admit. A third, which
// defines the limit in another way, shares nothing of it, and each shows the other.
func TestReplicasShareLimits(t *testing.T) {
	t.Parallel()
	app := backend(t)
	testserver.Each(t, func(t *testing.T, program string) {
		store := testserver.Start(t, program)
		store.Do("CONFIG", "SET", "requirepass", "horse")
		store.Password = "horse"
		start := func(capacity, more string) (address, admin string) {
			return startProxy(t, "--to", app, "--capacity", capacity, "--store", "redis://:horse@"+store.Addr+"/?prefix=shop"+more)
		}
		status := func(admin, want string) {
			t.Helper()
			out := ""
			for range 100 { // until each knows the others
				if out = ask("status", "--store", "--address", admin); regexp.MustCompile(want).MatchString(out) {
					break
				}
				time.Sleep(200 * time.Millisecond)
			}
			if !regexp.MustCompile(want).MatchString(out) || strings.Contains(out, "horse") {
				t.Errorf("shield status --store:\n%s\nwant %s", out, want)
			}
		}
		_, admin := start("40/s", "")
		_, other := start("40/s", "")
		awaitStore(t, admin, 2)
		awaitStore(t, other, 2)
		status(admin, `^STORE.* UP *\n.* yes *\n`)
		_, third := start("50/s", "&replicas=1")
		status(third, ` 2 +capacity 40 per 1s`)
		status(admin, ` 1 +capacity 50 per 1s`)
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
