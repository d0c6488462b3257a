package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/share/redis/testserver"
)

// awaitStore waits until what the command says of the store is right: each has to know of the others, and on a busy machine a replica works
// alone at times.
func awaitStore(t *testing.T, admin, want string, right func(said string) bool) {
	t.Helper()
	said := ""
	for range 300 {
		if said = ask("status", "--store", "--address", admin); right(said) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("shield status --store:\n%s\nwant %s", said, want)
}

// Two proxies share their limits through a store with a password, which is nowhere to be seen: loadtest/lab/soak has what they admit.
func TestReplicasShareLimits(t *testing.T) {
	t.Parallel()
	app := backend(t)
	testserver.Each(t, func(t *testing.T, program string) {
		store := testserver.Start(t, program)
		store.Do("CONFIG", "SET", "requirepass", "horse")
		store.Password = "horse"
		var admins []string
		for range 2 {
			_, admin := startProxy(t, "--to", app, "--capacity", "40/s", "--store", "redis://:horse@"+store.Addr+"/?prefix=shop")
			admins = append(admins, admin)
		}
		want := regexp.MustCompile(`^STORE.* UP *\n.* yes *\n(.|\n)*\nSHARING .* REPLICAS .*\nproxy +2 +`)
		for _, admin := range admins {
			awaitStore(t, admin, want.String(), func(said string) bool { return want.MatchString(said) && !strings.Contains(said, "horse") })
		}
	})
}

// The config of docs/guides/replicas.md is all that replicas need, and the status is as shown there.
func TestReplicasOfThePage(t *testing.T) {
	t.Parallel()
	page := read(t, "../../docs/guides/replicas.md")
	config := regexp.MustCompile("(?s)```caddyfile\n\\{\n(.*?)```").FindStringSubmatch(page)
	shown := regexp.MustCompile("(?s)```text\n(STORE .*?)```").FindStringSubmatch(page)
	if config == nil || shown == nil {
		t.Fatal("the page has no config, or no status")
	}
	app := backend(t)
	testserver.Each(t, func(t *testing.T, program string) {
		store := testserver.Start(t, program)
		var admins []string
		for range 3 {
			address, admin := testserver.FreeAddress(t), testserver.FreeAddress(t)
			text := strings.NewReplacer("127.0.0.1:6379", store.Addr, "api.example.com", "http://"+address, "app:8080", app).Replace(config[1])
			await(t, caddyfile(t, "{\n\tadmin "+admin+"\n"+text), serving)
			admins = append(admins, admin)
		}
		// Numbers and hashes differ, and so do where columns begin, and what the store is said to do.
		differs := regexp.MustCompile(`(?s)^.*\n(SHARING)|(?:secret|script) [0-9a-f]{8}`)
		plain := func(text string) string {
			return strings.Join(strings.Fields(differs.ReplaceAllString(text, "$1")), " ")
		}
		for _, admin := range admins {
			awaitStore(t, admin, "as in docs/guides/replicas.md\n"+shown[1], func(said string) bool { return plain(said) == plain(shown[1]) })
		}
	})
}
