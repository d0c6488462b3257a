// Package agreement has nothing but tests: they set what package sim says will
// happen beside what does when package live plays it, over real sockets and
// through Caddy. On both sides are the same text of a config, the same policies of
// clients, and a backend of the same kind:
//
//	go -C loadtest/lab test ./agreement # some 25 s
//
// # What differs
//
// Live, the arrivals are other ones of the same kind: the two sides agree as two
// seeds of one side do, and no better. Most figures are held to 15%. Four scatter by
// 5 to 9%, and are held to a third: when the last of a mix is done, and how the few of it
// wait who come when they like.
//
// Live, a request takes time besides that of the backend: a connection to Caddy,
// Caddy, a connection from there, timers that are late, and 2 processors for
// all of it. So the simulated network takes no time. Clients, Caddy and backend are one
// process.
//
// The live backend shares no code with plant.Plant. Requests that reach it are counted there,
// but by the simulator when they leave shield.
//
// The simulated Guard's clock begins with the warm-up, the real one's with the
// process. Therefore the simulated one learns of the background a second later:
// with a warm-up of 2 s that made waits up to 9% shorter, and nothing with 3 s.
//
// Live, the limit in flight is read ten times per second from the admin endpoint, and
// a herd that is connected has made its connections before it comes.
package agreement

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/share/redis/testserver"
)

// simulations is how many runs a simulated mean is of.
const simulations = 25

// tries is how many live runs may disagree: each is one of many that could have been.
const tries = 3

// plays is how many are played at most, with those that say nothing: in these the machine was busy.
const plays = 6

// tooLate is by how much a busy machine may delay the hundredth part of what clients
// send, for a run of it to say anything. Ours: half of what a request takes.
const tooLate = 25 * time.Millisecond

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// compare sets the mean of simulations beside one live run, and reports whether they agree.
func (f *figure) compare(simulated []measured, live measured) (line string, agree bool) {
	var all []float64
	for _, m := range simulated {
		all = append(all, f.of(m))
	}
	is, expected, difference := f.of(live), mean(all), 0.0
	if is != expected {
		difference = (is - expected) / math.Abs(expected)
	}
	line = fmt.Sprintf("%s: simulated %.2f (%.2f to %.2f), live %.2f, %+.1f%%; want at most %.0f%%", f.name, expected, slices.Min(all), slices.Max(all), is, 100*difference, 100*f.most())
	return line, math.Abs(difference) <= f.most() // NaN does not
}

// Simulated and live figures agree to within 15%, as far as a live run of some
// seconds can show that.
func TestSimulatorAgreesWithLive(t *testing.T) {
	if testing.Short() {
		t.Skip("needs 25 s, the whole machine, and no -short")
	}
	machine := testserver.Watch(t)
	for _, s := range short() {
		t.Run(s.name, func(t *testing.T) {
			var simulated []measured
			for seed := range simulations {
				simulated = append(simulated, s.simulate(t, uint64(seed+1)))
			}
			var wrong []string // of those that say something
			for play, said := 1, 0; play <= plays && said < tries; play++ {
				machine.Lap()
				live := s.live(t, uint64(play))
				if prompt := machine.Prompt(); live.late > tooLate || !prompt {
					t.Logf("play %d says nothing: clients were late by %v, and the machine was prompt: %v", play, live.late, prompt)
					continue
				}
				said++
				agrees := true
				for _, f := range s.figures {
					line, agree := f.compare(simulated, live)
					if t.Log(line); !agree {
						agrees = false
						wrong = append(wrong, fmt.Sprintf("play %d: %s", play, line))
					}
				}
				if agrees {
					return
				}
				if said == tries {
					t.Errorf("too far apart, %d times:\n%s", tries, strings.Join(wrong, "\n"))
				}
			}
			if !t.Failed() {
				t.Skip("needs a machine that is idle enough to send requests in time")
			}
		})
	}
}
