package redis

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/redis/testserver"
)

// Most of these tests wait for servers, so more of them run at once than there are
// processors.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// An echo is a link that only tells that it lives, and remembers what became of it.
type echo struct {
	every      time.Duration // 0: 20 ms
	mu         sync.Mutex
	next, sent time.Duration
	flies      bool
	seq        int64
	seen       seen
}

// What became of the exchanges of an echo.
type seen struct {
	heard, missed int
	slowest       time.Duration // of those that were answered
	longest       time.Duration // of all
	overlap       bool          // two were on their way
}

func (e *echo) Due(now time.Duration) (ask share.LeaseAsk, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now < e.next {
		return ask, false
	}
	e.seen.overlap = e.seen.overlap || e.flies
	e.seq++
	e.next, e.sent, e.flies = now+cmp.Or(e.every, 20*time.Millisecond), now, true
	return share.LeaseAsk{Me: fmt.Sprintf("%p", e), Seq: e.seq, Alone: true}, true
}

func (e *echo) Heard(now, sent time.Duration, answer share.LeaseAnswer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.flies = false
	e.seen.heard++
	e.seen.slowest, e.seen.longest = max(e.seen.slowest, now-sent), max(e.seen.longest, now-sent)
	if answer.Now == 0 {
		panic("an answer without a time")
	}
}

func (e *echo) Missed(now time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.flies = false
	e.seen.missed++
	e.seen.longest = max(e.seen.longest, now-e.sent)
}

func (e *echo) OnWake(func()) {}

func (e *echo) Next(time.Duration) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.next
}

func (e *echo) Bye(time.Duration) (ask share.LeaseAsk, ok bool) { return ask, false }

func (e *echo) Alone(time.Duration) (alone bool, replicas int) { return false, 1 }

func (e *echo) saw() seen {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen
}

// A bench is a Client with one echo.
type bench struct {
	*testing.T
	*Client
	*echo
	machine *testserver.Machine
}

var began = time.Now()

func sinceBegan() time.Duration { return time.Since(began) }

func newBench(t *testing.T, o Options) *bench {
	t.Helper()
	b := &bench{T: t, echo: &echo{}, machine: testserver.Watch(t)}
	client, err := Open(o, sinceBegan, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.Client = client
	t.Cleanup(client.Close)
	client.Serve(b.echo, Backend, "echo", "an echo")
	return b
}

// tells waits until the store is away for a reason that has a text in it.
func (b *bench) tells(text string) {
	b.Helper()
	b.until(text+" is told", func() bool { s := b.Status(); return !s.Up && strings.Contains(s.Error, text) })
}

// returns waits until the store is up again.
func (b *bench) returns() {
	b.Helper()
	b.until("it is up", func() bool { return b.Status().Up })
	b.await("answers", 20)
}

// await waits until more exchanges were answered, and fails after a while.
func (b *bench) await(what string, more int) {
	b.Helper()
	before := b.saw().heard
	b.until(what, func() bool { return b.saw().heard >= before+more })
}

func (b *bench) until(what string, ok func() bool) {
	b.Helper()
	for range 6000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.Fatalf("%s: not within a minute; status %+v", what, b.Status())
}

func TestOneServer(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, program string) {
		server := testserver.Start(t, program)
		b := newBench(t, Options{Addresses: []string{server.Addr}, Prefix: "shop"})
		b.await("answers", 20)
		b.until("the server is up", func() bool { s := b.Status(); return s.Up && s.Exchanges["answered"] >= 15 })
		for _, key := range strings.Fields(server.Do("KEYS", "*")) {
			if !strings.HasPrefix(key, "shield:{shop:b:echo}:") {
				t.Errorf("key %q", key)
			}
		}
		server.Do("SCRIPT", "FLUSH") // as a restart does
		b.await("answers after the server has forgotten the script", 5)
		if saw := b.saw(); saw.overlap || b.machine.Prompt() && saw.missed > 2 { // before it was connected
			t.Errorf("of one link there was %+v", saw)
		}
	})
}

// Killed, and back empty; frozen; asleep: the time without it is what it was.
func TestServerGoesAndComesBack(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(s *testserver.Server){
		"killed": func(s *testserver.Server) { s.Kill(); time.Sleep(2 * time.Second); s.Restart() },
		"frozen": func(s *testserver.Server) { s.Do("CLIENT", "PAUSE", "2000"); time.Sleep(2 * time.Second) },
		"asleep": func(s *testserver.Server) { s.Do("DEBUG", "SLEEP", "2") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testserver.Each(t, func(t *testing.T, program string) {
				server := testserver.Start(t, program)
				b := newBench(t, Options{Addresses: []string{server.Addr}})
				b.await("answers", 20)
				gone := time.Now()
				away(server)
				back := time.Now()
				b.await("answers again", 1)
				took := time.Since(back)
				t.Logf("the first answer came %v after the server was back", took)
				b.await("answers", 20)
				most := time.Since(gone)
				if b.machine.Prompt() && took > time.Second {
					t.Errorf("the first answer came %v after the server was back", took)
				}
				if alone := time.Duration(b.Status().AloneSeconds * 1e9); alone < 1900*time.Millisecond || b.machine.Prompt() && alone > most+time.Second/2 { // the connection took some time, too
					t.Errorf("alone for %v, want at most %v", alone, most)
				}
				if slowest := b.saw().slowest; slowest > share.GiveUp {
					t.Errorf("an answer was taken after %v", slowest)
				}
			})
		})
	}
}

func TestWrongOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"add at least one host:port":                            {},
		`"redis-1"; use host:port`:                              {Addresses: []string{"redis-1"}},
		`is "h:99999"; use host:port, and a port of 1 to 65535`: {Addresses: []string{"h:99999"}},
		`is "h:0"; use`:                                         {Addresses: []string{"h:0"}},
		`is "h:redis"; use`:                                     {Addresses: []string{"h:redis"}},
		`address is "h"; use`:                                   {Addresses: []string{"me:horse@h"}},
		"but password is empty":                                 {Addresses: []string{"a:1"}, Username: "shield"},
		`prefix is "a b"`:                                       {Addresses: []string{"a:1"}, Prefix: "a b"},
	} {
		if _, err := Open(o, sinceBegan, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}

// Close leaves no goroutine behind, whatever the server does.
func TestCloseEndsAll(t *testing.T) {
	program := testserver.Programs(t)[0]
	server, machine := testserver.Start(t, program), testserver.Watch(t)
	before := runtime.NumGoroutine()
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"at once", func() {}},
		{"in service, then frozen", func() {
			time.Sleep(200 * time.Millisecond)
			server.Do("CLIENT", "PAUSE", "60000")
			time.Sleep(50 * time.Millisecond)
		}},
		{"frozen from the start", func() { time.Sleep(50 * time.Millisecond) }},
		{"gone", func() { server.Kill(); time.Sleep(200 * time.Millisecond) }},
	} {
		c, err := Open(Options{Addresses: []string{server.Addr}}, sinceBegan, nil)
		if err != nil {
			t.Fatal(err)
		}
		c.Serve(&echo{}, Backend, "echo", "an echo")
		step.do()
		at := time.Now()
		c.Close()
		if took := time.Since(at); took > 3*time.Second && machine.Prompt() {
			t.Errorf("%s: Close took %v", step.name, took)
		}
	}
	for range 1500 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	stacks := make([]byte, 1<<20)
	t.Errorf("%d goroutines, before %d\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
}
