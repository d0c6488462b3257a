package pushback

import (
	"math"
	"math/rand/v2"
	"time"
)

// A source returns how many come in each next 100 ms.
type source func() int

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// A poisson draws from a Poisson distribution by inversion, with a guide to
// where to begin: the weeks below need hundreds of millions of draws.
type poisson struct {
	rng   *rand.Rand
	sum   []float64 // cumulative
	guide [256]int
}

func newPoisson(rng *rand.Rand, mean float64) *poisson {
	p := &poisson{rng: rng}
	p.set(mean)
	return p
}

func (p *poisson) set(mean float64) {
	p.sum = p.sum[:0]
	total := 0.0
	for k := 0; float64(k) < mean || total < 1-1e-13; k++ {
		lgamma, _ := math.Lgamma(float64(k) + 1)
		total += math.Exp(float64(k)*math.Log(mean) - mean - lgamma)
		p.sum = append(p.sum, total)
		if float64(k) > mean+20*math.Sqrt(mean)+20 {
			break
		}
	}
	k := 0
	for i := range p.guide {
		for k < len(p.sum)-1 && p.sum[k] < float64(i)/float64(len(p.guide)) {
			k++
		}
		p.guide[i] = k
	}
}

func (p *poisson) draw() int {
	u := p.rng.Float64()
	k := p.guide[int(u*float64(len(p.guide)))]
	for k < len(p.sum)-1 && p.sum[k] < u {
		k++
	}
	return k
}

const perTick = 0.1 // seconds

func steady(rng *rand.Rand, rate float64) source { return newPoisson(rng, rate*perTick).draw }

// daily is Poisson with a rate that follows the day, by up to share.
func daily(rng *rand.Rand, rate, share float64) source {
	p, ticks := newPoisson(rng, rate*perTick), 0
	return func() int {
		if ticks%600 == 0 {
			p.set(rate * perTick * (1 + share*math.Sin(2*math.Pi*float64(ticks)/864000)))
		}
		ticks++
		return p.draw()
	}
}

// clustered is page loads: Poisson, each with 8 requests on average, spread over about a
// second: exponentially, by 256 quantiles, one for each byte of a draw.
func clustered(rng *rand.Rand, rate float64) source {
	parents := newPoisson(rng, rate/8*perTick)
	var delays [256]int
	for q := range delays {
		delays[q] = int(-3 * math.Log(1-(float64(q)+0.5)/256))
	}
	var ring [64]int
	i := 0
	return func() int {
		for range parents.draw() {
			draw := uint64(0)
			for k := range 1 + int(rng.ExpFloat64()*7.5) {
				if k%8 == 0 {
					draw = rng.Uint64()
				}
				ring[(i+delays[draw>>(k%8*8)&255])%64]++
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
	slow, fast := newPoisson(rng, rate*0.5*perTick), newPoisson(rng, rate*1.5*perTick)
	isFast := false
	return func() int {
		if rng.Float64() < perTick/20 {
			isFast = !isFast
		}
		if isFast {
			return fast.draw()
		}
		return slow.draw()
	}
}

// pulses is Poisson, of which a share comes within the first ticks of every period.
func pulses(rng *rand.Rand, rate float64, period time.Duration, share float64, width int) source {
	between := newPoisson(rng, rate*(1-share)*perTick)
	pulse := newPoisson(rng, rate*share*period.Seconds()/float64(width))
	i, cycle := 0, int(period/herdTick)
	return func() (n int) {
		n = between.draw()
		if i%cycle < width {
			n += pulse.draw()
		}
		i++
		return n
	}
}

// quietModels are six kinds of traffic without a herd.
var quietModels = []struct {
	name string
	rate float64
	make func(*rand.Rand) source
}{
	{"Poisson 5/s", 5, func(r *rand.Rand) source { return steady(r, 5) }},
	{"Poisson 100/s", 100, func(r *rand.Rand) source { return steady(r, 100) }},
	{"Poisson 2000/s", 2000, func(r *rand.Rand) source { return steady(r, 2000) }},
	{"daily 100/s ± 50 %", 100, func(r *rand.Rand) source { return daily(r, 100, 0.5) }},
	{"page loads 100/s", 100, func(r *rand.Rand) source { return clustered(r, 100) }},
	{"switching 50/s and 150/s", 100, func(r *rand.Rand) source { return switching(r, 100) }},
}
