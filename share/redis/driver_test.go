package redis

import (
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	redigo "github.com/gomodule/redigo/redis"

	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/redis/testserver"
)

func TestRedirection(t *testing.T) {
	for reply, want := range map[string]string{
		"MOVED 3999 10.0.0.2:6381":           "10.0.0.2:6381",
		"ASK 3999 10.0.0.2:6381":             "",
		"MOVED 3999 ::1:6381":                "[::1]:6381", // as Redis writes it
		"MOVED 3999 [::1]:6381":              "[::1]:6381",
		"MOVED 3999 redis-2.example.com:638": "redis-2.example.com:638",
		"MOVED 3999 :6381":                   "10.0.0.1:6381",
		"MOVED 3999 ?:6381":                  "",
		"MOVED 3999":                         "",
		"MOVED 3999 6381":                    "",
		"ERR 3999 10.0.0.2:6381":             "",
	} {
		if got := moved(redigo.Error(reply), "10.0.0.1:7000"); got != want {
			t.Errorf("%s: %q, want %q", reply, got, want)
		}
	}
}

// A Cluster is found by one address. After a slot has gone from one node to another, exchanges are answered, with the rights that are documented.
func TestClusterSlotMoves(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, program string) {
		servers := testserver.StartCluster(t, program, 0)
		for _, s := range servers {
			s.Do(append([]string{"ACL", "SETUSER", "shop", "on", ">secret"}, strings.Fields(Rights("shop"))...)...)
		}
		b := newBench(t, Options{Addresses: []string{servers[2].Addr}, Username: "shop", Password: "secret", Prefix: "shop"})
		b.await("answers", 20)
		b.until("the Cluster is up", func() bool { return b.Status().Up })
		n := servers[0].Do("CLUSTER", "KEYSLOT", "shield:{shop:b:echo}:")
		i := slices.IndexFunc(servers, func(s *testserver.Server) bool { return s.Do("KEYS", "*") != "" })
		from, to := servers[i], servers[(i+1)%len(servers)]
		to.Do("CLUSTER", "SETSLOT", n, "IMPORTING", from.Do("CLUSTER", "MYID"))
		from.Do("CLUSTER", "SETSLOT", n, "MIGRATING", to.Do("CLUSTER", "MYID"))
		host, port, _ := net.SplitHostPort(to.Addr)
		from.Do(append([]string{"MIGRATE", host, port, "", "0", "5000", "KEYS"}, strings.Fields(from.Do("KEYS", "*"))...)...)
		for _, s := range []*testserver.Server{to, from, servers[(i+2)%len(servers)]} {
			s.Do("CLUSTER", "SETSLOT", n, "NODE", to.Do("CLUSTER", "MYID"))
		}
		b.await("answers of the node to which they have gone", 20)
	})
}

// A node of a Cluster goes, its replica takes over, and another node knows.
func TestClusterFailover(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, program string) {
		servers := testserver.StartCluster(t, program, 1)
		b := newBench(t, Options{Addresses: testserver.Addresses(servers)})
		b.await("answers", 20)
		role := func(s *testserver.Server, is string) bool { return strings.HasPrefix(s.Do("ROLE"), is) }
		node := slices.IndexFunc(servers, func(s *testserver.Server) bool { return s.Do("KEYS", "*") != "" && role(s, "master") })
		_, port, _ := net.SplitHostPort(servers[node].Addr)
		replica := servers[slices.IndexFunc(servers, func(s *testserver.Server) bool { return role(s, "slave\n127.0.0.1\n"+port) })]
		servers[node].Kill()
		at := time.Now()
		b.await("answers of the replica", 20)
		t.Logf("20 answers %v later, alone for %v s", time.Since(at), b.Status().AloneSeconds)
		if !role(replica, "master") {
			t.Error("the replica is no master")
		}
	})
}

// Servers with a password, and Sentinels without, then with; a Sentinel goes, and another takes over.
func TestSentinelsWithPassword(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, program string) {
		sentinel, master, replica := testserver.StartSentinel(t, program)
		another := testserver.AnotherSentinel(t, program, master)
		for _, s := range []*testserver.Server{sentinel, another} {
			s.Do("SENTINEL", "SET", testserver.Master, "auth-pass", "secret")
		}
		for _, s := range []*testserver.Server{replica, master} {
			s.Do("CONFIG", "SET", "masterauth", "secret")
			s.Do("CONFIG", "SET", "requirepass", "secret")
			s.Password = "secret"
		}
		o := Options{Addresses: []string{sentinel.Addr, another.Addr}, Sentinel: testserver.Master, Password: "secret"}
		b := newBench(t, o)
		b.await("answers of the master", 20)
		sentinel.Do("ACL", "SETUSER", "default", "resetpass", ">secret")
		sentinel.Password = "secret"
		newBench(t, o).await("answers, by way of a Sentinel with a password", 20)
		o.Password, o.Addresses = "", o.Addresses[:1]
		newBench(t, o).tells("NOAUTH")
		sentinel.Kill()
		b.await("answers while another Sentinel is asked", 100)
	})
}

// A master that Sentinels have replaced is left even if it goes on answering.
func TestMasterIsReplaced(t *testing.T) {
	t.Parallel()
	program := testserver.Programs(t)[0]
	old, next := testserver.Start(t, program), testserver.Start(t, program)
	sentinel := testserver.AnotherSentinel(t, program, old)
	b := newBench(t, Options{Addresses: []string{sentinel.Addr}, Sentinel: testserver.Master})
	b.await("answers of the master", 20)
	host, port, _ := net.SplitHostPort(next.Addr)
	sentinel.Do("SENTINEL", "REMOVE", testserver.Master)
	b.await("answers while there is no master", 20)
	sentinel.Do("SENTINEL", "MONITOR", testserver.Master, host, port, "1")
	b.until("the next master is asked", func() bool { return next.Do("KEYS", "*") != "" })
	b.await("answers of the next master", 20)
	newBench(t, Options{Addresses: []string{sentinel.Addr}, Sentinel: "other"}).tells(`have no master "other"`)
}

// Connecting may take longer than an exchange: a later one has the connection.
func TestConnectingTakesLong(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, testserver.Programs(t)[0])
	server.Do("CONFIG", "SET", "requirepass", "secret")
	server.Password = "secret"
	proxy := testserver.StartProxy(t, server.Addr)
	proxy.Delay(share.GiveUp * 7 / 10) // the password takes as long as an exchange
	b := newBench(t, Options{Addresses: []string{proxy.Addr}, Password: "secret"})
	b.await("an answer", 1)
	if trip := b.Status().RTTSeconds; trip > share.GiveUp.Seconds() {
		t.Errorf("an answer counts that took %v s", trip)
	}
	b.await("answers", 2)
}

// Whatever listens at the address of the store, the process goes on, and takes no memory for what was only announced.
func TestAnswersOfNoStore(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{
		"$9223372036854775807\r\n", "$99999999999999999999\r\n", "*9223372036854775807\r\n", "$2000000000\r\n", "*1000000000\r\n", "$-7\r\n", "*\r\n",
		strings.Repeat("*1\r\n", 4<<20), strings.Repeat("*200000\r\n", 1000), strings.Repeat("+", 20<<20), ":1\r\n", "+OK\r\n", "$-1\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n",
	}
	var at atomic.Int64
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for buffer := make([]byte, 64<<10); ; {
					if _, err := conn.Read(buffer); err != nil {
						return
					}
					if _, err := io.WriteString(conn, texts[int(at.Add(1))%len(texts)]); err != nil {
						return
					}
				}
			}()
		}
	}()
	t.Cleanup(func() { l.Close() })
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b := newBench(t, Options{Addresses: []string{l.Addr().String()}})
	b.until("all are answered", func() bool { return b.saw().missed >= len(texts) })
	runtime.ReadMemStats(&after)
	if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; mib > 256 || b.saw().heard > 0 {
		t.Errorf("%d answers were taken for those of a store, and %d MiB for all, want none and less than 256", b.saw().heard, mib)
	} else {
		t.Logf("%d MiB", mib)
	}
}
