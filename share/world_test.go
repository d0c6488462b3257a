package share_test

import (
	"container/heap"
	"encoding/json"
	"flag"
	"fmt"
	"runtime/debug"
	"testing"
	"time"

	redigo "github.com/gomodule/redigo/redis"

	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/redis/testserver"
	"github.com/herdshield/shield/share/virtual"
)

const (
	ms       = time.Millisecond
	simStart = 1_700_000_000_000 // of the store's clock
)

// must returns what a call returned that may fail, and does not in a test.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A world has what happens to some replicas and their store, in virtual time.
type world struct {
	now    time.Duration
	store  store
	set    time.Duration          // by how much the store's clock was set
	passes func(to time.Duration) // called before time passes; nil: not called
	queue  events
	serial int
}

type event struct {
	at     time.Duration
	serial int
	do     func()
}
type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].serial < e[j].serial
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func (w *world) at(t time.Duration, do func()) {
	w.serial++
	heap.Push(&w.queue, event{max(t, w.now), w.serial, do})
}

func (w *world) run(to time.Duration) {
	for len(w.queue) > 0 && w.queue[0].at <= to {
		e := heap.Pop(&w.queue).(event)
		w.pass(e.at)
		e.do()
	}
	w.pass(to)
}

func (w *world) pass(to time.Duration) {
	if w.passes != nil {
		w.passes(to)
	}
	w.now = to
}

// A peer is a replica: it carries the exchanges of its link.
type peer struct {
	*world
	link interface {
		OnWake(wake func())
		Due(now time.Duration) (share.LeaseAsk, bool)
		Heard(now, sent time.Duration, answer share.LeaseAnswer)
		Missed(now time.Duration)
		Next(now time.Duration) time.Duration
	}
	trip   func() (way time.Duration, arrives bool) // of what is sent now
	twice  func() bool                              // it is sent twice; nil: never
	ahead  time.Duration                            // its clock, of the world's
	frozen time.Duration                            // until then
	dead   bool
	woken  bool
	timer  time.Duration

	exchanges, keys int
}

// begin has the peer carry exchanges from an instant on.
func (p *peer) begin(at time.Duration) {
	p.link.OnWake(func() { p.woken = true })
	p.at(at, p.pump)
}

// on does something later: when the peer is thawed; never if it is dead.
func (p *peer) on(d time.Duration, do func()) {
	p.at(p.now+d, func() {
		switch {
		case p.dead:
		case p.now < p.frozen:
			p.on(p.frozen-p.now, do)
		default:
			do()
		}
	})
}

// pump sends what is due, and comes back when something will be.
func (p *peer) pump() {
	p.on(0, func() {
		p.woken = false
		sent := p.now
		if ask, ok := p.link.Due(sent + p.ahead); ok {
			p.exchanges, p.keys = p.exchanges+1, p.keys+len(ask.Pools)
			answered := false
			send := func() {
				way, arrives := p.trip()
				if !arrives {
					return
				}
				p.at(p.now+way, func() {
					answer := p.store.Do(simStart+(p.now+p.set).Milliseconds(), ask)
					mustFit(&answer, &ask)
					if way, arrives := p.trip(); arrives {
						p.on(way, func() { answered = true; p.link.Heard(p.now+p.ahead, sent+p.ahead, answer); p.pump() })
					}
				})
			}
			if send(); p.twice != nil && p.twice() {
				send()
			}
			p.on(share.GiveUp, func() {
				if !answered {
					answered = true
					p.link.Missed(p.now + p.ahead)
					p.pump()
				}
			})
		}
		next := p.link.Next(p.now+p.ahead) - p.ahead
		if next <= p.now {
			panic(fmt.Sprintf("a shell that has just asked what is due is to ask again %v ago: it would never rest", p.now-next))
		}
		if next != p.timer {
			p.timer = next
			p.at(next, p.pump)
		}
	})
}

// look pumps if the link has woken its shell.
func (p *peer) look() {
	if p.woken {
		p.pump()
	}
}

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
