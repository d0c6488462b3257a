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

// A store is used with the right certificate, password and rights, which are those that are documented. Otherwise it's said what is wrong.
func TestWhyAStoreIsNotUsed(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, program string) {
		open, other, locked := testserver.Start(t, program), testserver.Start(t, program), testserver.Start(t, program)
		secure, _ := testserver.StartTLS(t, program)
		locked.Do(append([]string{"ACL", "SETUSER", "shop", "on", ">secret"}, strings.Fields(Rights("shop"))...)...)
		if got := locked.Do("ACL", "DRYRUN", "shop", "KEYS", "*"); !strings.Contains(got, "no permissions") {
			t.Errorf("KEYS: %s", got)
		}
		locked.Do("CONFIG", "SET", "requirepass", "right")
		locked.Password = "right"
		for _, c := range []struct {
			want   string // "": it is used
			server *testserver.Server
			Options
		}{
			{"use one address of a server", open, Options{Addresses: []string{other.Addr}}},
			{"", secure, Options{TLS: secure.TLS}},
			{"certificate signed by unknown authority", secure, Options{TLS: &tls.Config{}}},
			{"", locked, Options{Password: "right"}},
			{"WRONGPASS", locked, Options{Password: "wrong"}},
			{"NOAUTH", locked, Options{}},
			{"", locked, Options{Username: "shop", Password: "secret", Prefix: "shop"}},
			{"NOPERM", locked, Options{Username: "shop", Password: "secret", Prefix: "other"}},
			{"ACL SETUSER", locked, Options{Username: "shop", Password: "secret", Prefix: "other"}},
		} {
			c.Addresses = append(c.Addresses, c.server.Addr)
			if b := newBench(t, c.Options); c.want == "" {
				b.await("answers", 20)
			} else {
				b.tells(c.want)
			}
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
