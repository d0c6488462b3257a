package seeds

import (
	"math"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

const (
	lispCast  = "E. Normand, LispCast, "
	revisited = "\"Exponential back-off, revisited\" (2024)"
)

// textbook are the policies of the articles that the project started from, with their formulas and sources.
var textbook = []clients.Entry{
	{
		Name: "try-n-times", Policy: clients.MaxAttempts{N: 3, Policy: clients.Fixed{}}, About: "0 s, 2 retries", Source: lispCast + "\"Try three times\"",
	},
	{
		Name: "clojure", Policy: clients.Client{On: clients.Failures, Attempts: 5, Own: clients.Exponential{Base: time.Second, Factor: 2}},
		About:  "1 s · 2^(n-1) while under 10 s: 1, 2, 4, 8 s, 5 attempts; any failure",
		Source: lispCast + "\"Exponential Backoff\", macro try-backoff",
	},
	{
		Name: "google-analytics", Policy: clients.Client{On: clients.S403 | clients.S429 | clients.S500 | clients.S503 | clients.Lost, Attempts: 6, Own: GoogleAnalytics{}},
		About:  "2^(n-1) s + U{1 … 1000} ms, 6 attempts; 403, 429, 500, 503, no response",
		Source: "Google Analytics Core Reporting API, \"Implementing exponential backoff\"; which failures is ours",
	},
	{
		Name: "go-array", Policy: GoArray{},
		About:  "m/2 + ⌊U·m⌋ ms, m = 10 10 100 100 500 500 3000 3000 5000 5000 …, for ever",
		Source: "P. Teichman, \"Simple backoff\", package backoff",
	},
	{
		Name: "google-http-java-client", Policy: clients.Client{On: clients.Server | clients.Lost, Own: GoogleHTTPJava{}},
		About:  "min(60 s, 0.5 s · 1.5^(n-1)) ± 50%, 15 min; 5xx, no response",
		Source: "googleapis/google-http-java-client, ExponentialBackOff and ON_SERVER_ERROR; HttpRequest stops it after 10 retries: *11",
	},
	{
		Name: "binary-exponential", Policy: Binary{},
		About:  "U · 2^min(n,10) slots of 1 s, 16 attempts",
		Source: revisited + ", second graph; truncated as IEEE 802.3 does",
	},
	{
		Name: "ethernet", Policy: Binary{Whole: true},
		About:  "⌊U · 2^min(n,10)⌋ slots of 1 s, 16 attempts",
		Source: "Metcalfe and Boggs (1976); IEEE 802.3, 4.2.3.2.5, whose slot is 51.2 µs at 10 Mb/s",
	},
	{
		Name: "modified-binary-exponential", Policy: ModifiedBinary{Slot: time.Second},
		About:  "retry n uniform in [2^n-2, 2^(n+1)-2) slots of 1 s from the first request, for ever",
		Source: revisited + "; Bender et al., \"Adversarial Contention Resolution for Simple Channels\" (2005)",
	},
	{
		Name: "server-timing", Policy: ServerTiming{},
		About:  "Retry-After exactly; without it 2^(n-1) s, for ever",
		Source: "J. J. Geewax, \"API Design Patterns\" (2021), 29.2.2 and listing 29.1",
	},
	{
		Name: "tcp-rto", Policy: clients.MaxAttempts{N: 4, Policy: clients.Exponential{Base: 3 * time.Second, Cap: time.Minute, Factor: 2}},
		About:  "3 s · 2^(n-1), 4 attempts: the first RTO of rtt_init, RTT_RXTMAX 60, RTT_MAXNREXMT 3",
		Source: "Stevens, Fenner and Rudoff, \"UNIX Network Programming\" 1 (3rd ed.), 22.5, lib/rtt.c",
	},
	{
		Name: "paranoid-pirate", Policy: clients.Exponential{Base: time.Second, Cap: 32 * time.Second, Factor: 2},
		About:  "min(32 s, 2^(n-1) s), for ever: INTERVAL_INIT 1000, INTERVAL_MAX 32000",
		Source: "P. Hintjens, \"ZeroMQ\" (2013), chapter 4, ppworker",
	},
	{
		Name: "docker-restart", Policy: clients.Exponential{Base: 100 * time.Millisecond, Cap: time.Minute, Factor: 2},
		About:  "min(1 min, 100 ms · 2^(n-1)), for ever",
		Source: "moby/moby, restartmanager.go; the reset after 10 s of running is not in it",
	},
	{
		Name: "hadoop", Policy: clients.MaxAttempts{N: 6, Policy: clients.Exponential{Base: 400 * time.Millisecond, Factor: 2, Jitter: 0.5}},
		About:  "200 ms · 2^n · U[0.5, 1.5), 6 attempts",
		Source: "apache/hadoop, RetryPolicies.exponentialBackoffRetry(5, 200 ms), as in NameNodeProxies",
	},
}

type GoogleAnalytics struct{}

func (GoogleAnalytics) Next(r clients.Rejected) (time.Duration, bool) {
	return seconds(math.Exp2(float64(max(r.Attempt, 1)-1))) + time.Millisecond + milliseconds(1000*r.U), true
}

type GoArray struct{}

// goArray has the milliseconds before each attempt, and the last for all later ones.
var goArray = [...]float64{0, 10, 10, 100, 100, 500, 500, 3000, 3000, 5000}

func (GoArray) Next(r clients.Rejected) (time.Duration, bool) {
	m := goArray[min(max(r.Attempt, 0), len(goArray)-1)]
	return milliseconds(m/2) + milliseconds(r.U*m), true
}

// GoogleHTTPJava rounds its interval down to milliseconds each time that it multiplies it.
type GoogleHTTPJava struct{}

func (GoogleHTTPJava) Next(r clients.Rejected) (time.Duration, bool) {
	const most = 60_000
	if r.Elapsed > 15*time.Minute {
		return 0, false
	}
	interval := 500
	for n := 1; n < r.Attempt && interval < most; n++ {
		interval = min(int(float64(interval)*1.5), most)
	}
	return milliseconds(float64(interval)/2 + r.U*(float64(interval)+1)), true
}

// Ethernet's numbers, IEEE 802.3 4.2.3.2.5.
const (
	backoffLimit = 10 // windows grow no more after so many collisions
	attemptLimit = 16
)

// Binary is truncated binary exponential backoff in slots of 1 s. Whole rounds down to whole
// slots, 0 to 2^min(n,10)-1, as Ethernet does.
type Binary struct{ Whole bool }

func (p Binary) Next(r clients.Rejected) (time.Duration, bool) {
	if r.Attempt >= attemptLimit {
		return 0, false
	}
	slots := r.U * math.Exp2(float64(min(r.Attempt, backoffLimit)))
	if p.Whole {
		slots = math.Floor(slots)
	}
	return seconds(slots), true
}

// ModifiedBinary retries once in each of the windows [2^n-2, 2^(n+1)-2) slots, n = 1, 2, 3 …,
// which do not overlap. If all fail at once, the rate of retries never rises:
// N/2^⌊log2(t+2)⌋ per slot. The wait is uniform in what is left of a window. A client that
// learns of its failure only after its window, as after a timeout, takes the current one.
type ModifiedBinary struct{ Slot time.Duration } // above 0

func (p ModifiedBinary) Next(r clients.Rejected) (time.Duration, bool) {
	now := max(r.Elapsed, 0).Seconds() / p.Slot.Seconds()
	for n := min(max(r.Attempt, 1), 60); ; n++ {
		size := math.Exp2(float64(n))
		start, end := size-2, 2*size-2
		if now < end || n == 62 {
			start = max(start, now)
			return time.Duration((start + r.U*(end-start) - now) * float64(p.Slot)), true
		}
	}
}

// ServerTiming waits exactly as long as the server says. Told never to come back, it stops.
type ServerTiming struct{}

func (ServerTiming) Next(r clients.Rejected) (time.Duration, bool) {
	if r.Hint.Never {
		return 0, false
	}
	if r.Hint.Seconds > 0 {
		return time.Duration(r.Hint.Seconds) * time.Second, true
	}
	return seconds(math.Exp2(float64(max(r.Attempt, 1) - 1))), true
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// milliseconds is so many whole milliseconds, rounded down.
func milliseconds(n float64) time.Duration { return time.Duration(math.Floor(n)) * time.Millisecond }
