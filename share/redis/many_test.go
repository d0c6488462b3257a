package redis

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/redis/testserver"
)

// Hundreds of links on few connections, and a server that freezes: no link is held up for
// longer than an exchange may take, and all go on when it is back.
func TestManyLinks(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, testserver.Programs(t)[0])
	way := testserver.StartProxy(t, server.Addr)
	b := newBench(t, Options{Addresses: []string{way.Addr}})
	echoes := make([]*echo, 200)
	for i := range echoes {
		echoes[i] = &echo{every: 100 * time.Millisecond}
		b.Serve(echoes[i], Backend, fmt.Sprint("many", i), "an echo")
	}
	all := func(more int) func() bool {
		least := map[*echo]int{}
		for _, e := range echoes {
			least[e] = e.saw().heard + more
		}
		return func() bool {
			return !slices.ContainsFunc(echoes, func(e *echo) bool { return e.saw().heard < least[e] })
		}
	}
	way.Delay(2 * share.MaxTrip) // twice as many exchanges would be in flight as may be
	// What has been closed is listed for a moment yet, so of two lists those count that are in both.
	began, most, answered, before := time.Now(), 0, all(2), map[string]bool{}
	b.until("all are answered", func() bool {
		open, both := map[string]bool{}, 0
		for line := range strings.Lines(server.Do("CLIENT", "LIST")) {
			id, _, _ := strings.Cut(line, " ")
			if open[id] = strings.Contains(line, "cmd=eval"); open[id] && before[id] {
				both++
			}
		}
		most, before = max(most, both), open
		return answered()
	})
	if took := time.Since(began); took > 20*time.Second { // one that is given up leaves the next no time
		t.Errorf("it took %v until all are answered twice", took)
	}
	if most < 1 || most > mostCalls {
		t.Errorf("%d connections, want at most %d", most, mostCalls)
	}
	way.Delay(0)
	server.Do("CLIENT", "PAUSE", "2000")
	time.Sleep(2 * time.Second)
	b.until("all are answered again", all(1))
	longest := time.Duration(0)
	for _, e := range echoes {
		longest = max(longest, e.saw().longest)
	}
	if longest > 2*share.GiveUp && b.machine.Prompt() {
		t.Errorf("an exchange took %v", longest)
	}
}
