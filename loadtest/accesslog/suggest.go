package accesslog

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/report"
)

// Suggest returns a Caddyfile that follows from the Estimate, with comments on the origin of
// its numbers. It loads unchanged; the reader replaces the site's address and the backend.
func (e *Estimate) Suggest() string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, "\t\t"+format+"\n", args...) }
	b.WriteString("example.com {\n\tshield {\n")

	if full := digits(e.Responses.Full); full != "" {
		say("# What was served at best while more than 5 %% was answered 502, 503 or 504: it could")
		say("# not do more then. If a limit of your own rejected them, this is that limit.")
		say("capacity %s/s", full)
	} else if peak := digits(e.Responses.Peak); peak != "" {
		say("# What the backend can do is not in the log: it was never seen full. It has")
		say("# done this much for a minute, so its capacity is not below:")
		say("# capacity %s/s", peak)
	}

	initial := int(min(max(leastInitial, math.Ceil(2*e.Concurrency.Peak)), maxLimit/4))
	say("# In its worst minute %.1f requests were in work at once, by Little's law; it", e.Concurrency.Peak)
	say("# begins with twice as many (%d to %d), and finds out what is best.", leastInitial, maxLimit/4)
	say("concurrency adaptive {")
	say("\tinitial %d", initial)
	if most := 4 * initial; most > defaultMax {
		say("\tmax %d", most)
	}
	say("}")

	for _, r := range e.Returns {
		if m, ok := r.Policy.(clients.MaxAttempts); ok && obeys(m) {
			say("# %s of the clients come when they are told, and go after %s: their", percent(r.Share), report.Plural(m.N, "attempt", "attempts"))
			say("# first appointment should be one that can be kept.")
			say("pushback {")
			say("\tmax 59s")
			say("}")
			break
		}
	}
	if len(e.Returns) > 0 {
		say("# Of %s, %s come when they are told.", report.Plural(e.Judged, "rejected client that was judged", "rejected clients that were judged"), percent(e.Honour()))
	} else {
		say("# What clients do that are rejected is not in the log.")
	}
	b.WriteString("\t}\n\treverse_proxy 127.0.0.1:9000\n}\n")
	return b.String()
}

const (
	leastInitial = 4
	defaultMax   = 1000    // of concurrency adaptive
	maxLimit     = 100_000 // that it may have
	maxRate      = 1e9     // per second, of capacity
)

// digits is a rate to three digits, rounded down; "" if there is none.
func digits(rate float64) string {
	if !(rate > 0) || rate > maxRate {
		return ""
	}
	unit := math.Pow(10, math.Floor(math.Log10(rate))-2)
	return strconv.FormatFloat(math.Floor(rate/unit+1e-9)*unit, 'f', max(0, int(-math.Round(math.Log10(unit)))), 64)
}
