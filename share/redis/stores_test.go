package redis

import (
	"crypto/tls"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/redis/testserver"
)

// Several addresses of what is no Cluster.
func TestNoCluster(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, program string) {
		servers := []*testserver.Server{testserver.Start(t, program), testserver.Start(t, program)}
		b := newBench(t, Options{Addresses: testserver.Addresses(servers)})
		b.tells("use one address of a server")
	})
}

func TestTLS(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, program string) {
		server, _ := testserver.StartTLS(t, program)
		b := newBench(t, Options{Addresses: []string{server.Addr}, TLS: server.TLS})
		b.await("answers", 20)

		newClient := newBench(t, Options{Addresses: []string{server.Addr}, TLS: &tls.Config{}})
		newClient.tells("certificate signed by unknown authority")
		plain := newBench(t, Options{Addresses: []string{server.Addr}})
		plain.until("TLS that is missing is told", func() bool { return plain.Status().Error != "" })
	})
}

// Rights have each command that the scripts use, and no other that writes.
func TestRightsAreThoseOfTheScripts(t *testing.T) {
	used := map[string]bool{"evalsha": true, "eval": true, "cluster|slots": true}
	for _, call := range regexp.MustCompile(`redis\.call\('(\w+)'`).FindAllStringSubmatch(share.Script, -1) {
		used[strings.ToLower(call[1])] = true
	}
	for _, word := range strings.Fields(Rights("shop")) {
		if command, ok := strings.CutPrefix(word, "+"); ok {
			if !used[command] {
				t.Errorf("no script uses %s", command)
			}
			delete(used, command)
		}
	}
	if len(used) > 0 {
		t.Errorf("rights lack %v", used)
	}
	if docs, err := os.ReadFile("../../docs/guides/replicas.md"); err != nil || !strings.Contains(string(docs), Rights("shop")+"\n") {
		t.Errorf("docs/guides/replicas.md has other rights than %s (%v)", Rights("shop"), err)
	}
}

// Scripts run under the rights that are documented; other keys and commands are rejected.
func TestRights(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, program string) {
		server := testserver.Start(t, program)
		server.Do(append([]string{"ACL", "SETUSER", "shop", "on", ">secret"}, strings.Fields(Rights("shop"))...)...)
		b := newBench(t, Options{Addresses: []string{server.Addr}, Username: "shop", Password: "secret", Prefix: "shop"})
		b.await("answers", 20)

		other := newBench(t, Options{Addresses: []string{server.Addr}, Username: "shop", Password: "secret", Prefix: "other"})
		other.tells("NOPERM")
		other.tells("ACL SETUSER")
		if got := server.Do("ACL", "DRYRUN", "shop", "KEYS", "*"); !strings.Contains(got, "no permissions") {
			t.Errorf("KEYS: %s", got)
		}
	})
}

func TestWrongPassword(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, program string) {
		server := testserver.Start(t, program)
		server.Do("CONFIG", "SET", "requirepass", "right")
		server.Password = "right"
		newBench(t, Options{Addresses: []string{server.Addr}, Password: "right"}).await("answers", 5)
		for want, password := range map[string]string{"WRONGPASS": "wrong", "NOAUTH": ""} {
			newBench(t, Options{Addresses: []string{server.Addr}, Password: password}).tells(want)
		}
	})
}

// A server without memory, that must not forget anything: the script fails as a whole.
func TestFull(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, program string) {
		server := testserver.Start(t, program, "--maxmemory-policy", "noeviction")
		b := newBench(t, Options{Addresses: []string{server.Addr}})
		b.await("answers", 20)
		server.Do("CONFIG", "SET", "maxmemory", "1")
		b.tells("OOM")
		server.Do("CONFIG", "SET", "maxmemory", "0")
		b.returns()
	})
}

// A way that is slow, and one that is cut.
func TestSlow(t *testing.T) {
	t.Parallel()
	for _, delay := range []time.Duration{100 * time.Millisecond, time.Second} {
		t.Run(delay.String(), func(t *testing.T) {
			t.Parallel()
			testserver.Each(t, func(t *testing.T, program string) {
				proxy := testserver.StartProxy(t, testserver.Start(t, program).Addr)
				b := newBench(t, Options{Addresses: []string{proxy.Addr}})
				b.await("answers", 20)
				proxy.Delay(delay)
				b.until("it is away", func() bool { return !b.Status().Up })
				proxy.Delay(0)
				b.returns()
				proxy.Cut(true)
				b.until("it is away", func() bool { return !b.Status().Up })
				proxy.Cut(false)
				b.returns()
				if slowest := b.saw().slowest; slowest > share.GiveUp {
					t.Errorf("the slowest answer that was taken took %v", slowest)
				}
			})
		})
	}
}
