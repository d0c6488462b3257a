package share_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"runtime/debug"
	"testing"

	redigo "github.com/gomodule/redigo/redis"

	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/redis/testserver"
	"github.com/herdshield/shield/share/virtual"
)

// onServer has all tests run the script in a real server. Without it, those of one exchange do, and others run it in
// the process.
var onServer = flag.Bool("server", false, "")

// The script leaves garbage at each exchange, and little else is in the memory of these tests: the collector would take
// a third of their time.
func init() { debug.SetGCPercent(1000) }

// A store answers at virtual instants.
type store interface {
	Do(ms int64, ask share.LeaseAsk) share.LeaseAnswer
	Flush()
}

func newStore(t testing.TB) store {
	t.Helper()
	if *onServer {
		return newServer(t, testserver.Programs(t)[0])
	}
	return virtual.New()
}

// A server is a store that is one: it runs the script of one unit.
type server struct {
	t      testing.TB
	conn   redigo.Conn
	script *redigo.Script
}

func newServer(t testing.TB, program string) *server {
	t.Helper()
	conn, err := redigo.Dial("tcp", testserver.Start(t, program).Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &server{t, conn, redigo.NewScript(-1, share.Script)}
}

func (s *server) Flush() {
	if _, err := s.conn.Do("FLUSHALL"); err != nil {
		s.t.Error(err)
	}
}

func (s *server) Do(ms int64, ask share.LeaseAsk) (a share.LeaseAnswer) {
	text, err := json.Marshal(&ask)
	if err != nil {
		s.t.Fatal(err)
	}
	args := redigo.Args{}.Add(3+len(ask.Keys)).Add("{unit}roster", "{unit}notes", "{unit}units")
	for _, key := range ask.Keys {
		args = args.Add("{unit}" + key)
	}
	reply, err := redigo.String(s.script.Do(s.conn, args.Add(ms, text, ask.Notes)...))
	if err == nil {
		err = json.Unmarshal([]byte(reply), &a)
	}
	if err != nil {
		s.t.Fatalf("%v: %s", err, text)
	}
	return a
}

// mustFit panics if what an honest store has answered counts as no answer.
func mustFit(a *share.LeaseAnswer, ask *share.LeaseAsk) {
	if !a.Stale && !a.Fits(ask) {
		panic(fmt.Sprintf("an honest store answers %+v to %+v, which does not fit", a, ask))
	}
}
