package pushback

import (
	"math"
	"math/rand/v2"
	"time"
)

// A source returns how many come in each next 100 ms.
type source func() int

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// poisson draws from a Poisson distribution: by counting arrivals, or from about 50 on as from
// a normal one.
func poisson(rng *rand.Rand, mean float64) (n int) {
	if mean > 50 {
		return max(0, int(math.Round(mean+math.Sqrt(mean)*rng.NormFloat64())))
	}
	for at := rng.ExpFloat64(); at < mean; at += rng.ExpFloat64() {
		n++
	}
	return n
}

const perTick = 0.1 // seconds

func steady(rng *rand.Rand, rate float64) source {
	return func() int { return poisson(rng, rate*perTick) }
}

// daily is Poisson with a rate that follows the day, by up to share.
func daily(rng *rand.Rand, rate, share float64) source {
	ticks := 0.
	return func() int {
		ticks++
		return poisson(rng, rate*perTick*(1+share*math.Sin(2*math.Pi*ticks/864000)))
	}
}

// clustered is page loads: Poisson, each with 8 requests on average, spread over about a
// second.
func clustered(rng *rand.Rand, rate float64) source {
	var ring [64]int
	i := 0
	return func() int {
		for range poisson(rng, rate/8*perTick) {
			for range 1 + int(rng.ExpFloat64()*7.5) {
				ring[(i+int(rng.ExpFloat64()*3))%64]++
			}
		}
		n := ring[i%64]
		ring[i%64] = 0
		i++
		return n
	}
}

// switching is Poisson with a rate that is now half as much again, now half
// of it, for 20 s on average.
func switching(rng *rand.Rand, rate float64) source {
	is := 0.5
	return func() int {
		if rng.Float64() < perTick/20 {
			is = 2 - is
		}
		return poisson(rng, rate*is*perTick)
	}
}

// pulses is Poisson, of which a share comes within the first ticks of every period.
func pulses(rng *rand.Rand, rate float64, period time.Duration, share float64, width int) source {
	i, cycle := 0, int(period/herdTick)
	return func() (n int) {
		n = poisson(rng, rate*(1-share)*perTick)
		if i%cycle < width {
			n += poisson(rng, rate*share*period.Seconds()/float64(width))
		}
		i++
		return n
	}
}

// quietModels are six kinds of traffic without a herd.
var quietModels = []struct {
	name string
	make func(*rand.Rand) source
}{
	{"Poisson 5/s", func(r *rand.Rand) source { return steady(r, 5) }},
	{"Poisson 100/s", func(r *rand.Rand) source { return steady(r, 100) }},
	{"Poisson 2000/s", func(r *rand.Rand) source { return steady(r, 2000) }},
	{"daily 100/s ± 50%", func(r *rand.Rand) source { return daily(r, 100, 0.5) }},
	{"page loads 100/s", func(r *rand.Rand) source { return clustered(r, 100) }},
	{"switching 50/s and 150/s", func(r *rand.Rand) source { return switching(r, 100) }},
}
