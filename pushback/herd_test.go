package pushback

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// A stage is Appointments to which arrivals are told every 100 ms.
type stage struct {
	Appointments
	terms *Terms
	now   time.Duration
	came  uint64
}

func newStage(t testing.TB) *stage {
	return &stage{terms: termsOf(t, ResponseConfig{NoDither: true}), now: time.Hour}
}

// bin lets 100 ms pass, in which n requests come.
func (s *stage) bin(n int) HerdKind {
	s.came += uint64(n)
	s.now += herdTick
	s.Tick(s.now, s.came, 0, 0)
	return s.Herd().Kind
}

// watch lets bins pass until a kind of herd is there, and returns after how long, or -1.
func (s *stage) watch(long time.Duration, from source, until HerdKind) time.Duration {
	for i := range int(long / herdTick) {
		if s.bin(from()) == until {
			return time.Duration(i+1) * herdTick
		}
	}
	return -1
}

// A false alarm would wake a person up for nothing. So a day of each model passes without one.
func TestHerdIsSilent(t *testing.T) {
	long := 24 * time.Hour
	if testing.Short() {
		long = 3 * time.Hour
	}
	for _, m := range quietModels {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			if found := s.watch(long, m.make(newRand(3)), PeriodicHerd); found >= 0 {
				t.Errorf("a herd after %v: %+v", found, s.Herd())
			}
		})
	}
}

// Pulses beside other requests are found within the time given, with their period, size and
// phase, and are forgotten when they end. Small ones are no herd, however regular.
func TestHerdFindsPulses(t *testing.T) {
	for _, c := range []struct {
		period time.Duration
		rate   float64 // of all requests, per second
		share  float64 // of them, in pulses
		width  int     // of a pulse, in bins
		within time.Duration
	}{
		{time.Second, 100, 0.2, 1, 35 * time.Second},
		{time.Second, 100, 0.1, 1, 250 * time.Second},
		{5 * time.Second, 100, 0.1, 2, 125 * time.Second},
		{10 * time.Second, 100, 0.1, 3, 250 * time.Second},
		{30 * time.Second, 100, 0.1, 10, 510 * time.Second},
		{time.Minute, 100, 0.05, 10, 1020 * time.Second},
		{time.Minute, 0.2, 1, 1, 13 * time.Minute}, // nothing but 12 clients each minute
		{time.Hour, 5, 0.1, 100, 20 * time.Hour},
		{time.Second, 20_000, 0.02, 1, -1}, // less than 3% of all
		{time.Minute, 0.03, 1, 1, -1},      // two clients
	} {
		for seed := range uint64(2) {
			s := newStage(t)
			from := pulses(newRand(seed+1), c.rate, c.period, c.share, c.width)
			found := s.watch(max(c.within, 10*time.Minute), from, PeriodicHerd)
			if found > c.within || found < 0 && c.within > 0 {
				t.Errorf("%+v, seed %d: found after %v", c, seed, found)
			}
			if found < 0 || c.within < 0 {
				continue
			}
			// Once all remembered cycles are with the pulse:
			s.watch(24*c.period, from, NoHerd)
			r, size := s.Herd(), c.rate*c.share*c.period.Seconds()
			if r.Kind != PeriodicHerd || r.Period != c.period || math.Abs(r.Size/size-1) > 0.35 {
				t.Errorf("%+v, seed %d: %+v, want a size of %.0f", c, seed, r, size)
			}
			middle := time.Duration(c.width) * herdTick / 2
			if off := (r.Phase-middle+3*c.period/2)%c.period - c.period/2; off.Abs() > max(c.period/20, herdTick/2) {
				t.Errorf("%+v, seed %d: the phase is %v, want %v", c, seed, r.Phase, middle)
			}
			if s.watch(24*c.period, steady(newRand(9), c.rate), NoHerd) < 0 {
				t.Errorf("%+v, seed %d: still a herd 24 periods after its end", c, seed)
			}
		}
	}
}

// A herd goes on as a minute begins, for as long as its clients were rejected in the one before.
func TestHerdOutlastsAMinute(t *testing.T) {
	var a Appointments
	for client := range uint64(HerdClients) {
		a.Saw(1 + client)
	}
	for i, want := range []HerdKind{BacklogHerd, BacklogHerd, NoHerd} {
		if a.herds.tick(time.Duration(i)*time.Minute+1, 0, time.Minute); a.Herd().Kind != want {
			t.Errorf("in minute %d: %v, want %v", i, a.Herd().Kind, want)
		}
	}
}

// Many clients that wait are a herd, until few do. A few clients that hammer are none, however
// far the promises to them reach, and no clients that come when they were told to are.
func TestBacklogIsAHerd(t *testing.T) {
	for _, c := range []struct {
		clients int
		rate    float64
		want    HerdKind
	}{{1000, 100, BacklogHerd}, {300, 100, NoHerd}, {HerdClients, 0.5, BacklogHerd}, {HerdClients - 1, 0.1, NoHerd}} {
		s := newStage(t)
		s.bin(0)
		due := map[int][]uint64{}
		for key := range uint64(c.clients) {
			var told Told
			s.Reject(s.now, &Caller{Key: 1 + key}, &Visit{}, s.terms, Supply{Rate: c.rate}, &told)
			s.Saw(1 + key)
			s.Saw(1 + key)
			bin := int((told.Wait + herdTick - 1) / herdTick)
			due[bin] = append(due[bin], 1+key)
		}
		if got := s.bin(c.clients); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
		if r := s.Herd(); r.Kind == BacklogHerd && r.Size != float64(c.clients) || r.Clients != min(c.clients, HerdClients) {
			t.Errorf("%+v: %+v", c, r)
		}
		for i := range 600 {
			for _, key := range due[i] {
				var v Visit
				s.Arrive(s.now+herdTick, &Caller{Key: key}, s.terms, c.rate, true, &v)
			}
			if got := s.bin(len(due[i])); i > 200 && got != NoHerd {
				t.Fatalf("%+v: %v after %v: %+v", c, got, s.now, s.Herd())
			}
		}
		for range 1200 {
			s.bin(0)
		}
		if r := s.Herd(); r != (HerdReport{}) {
			t.Errorf("%+v: minutes later: %+v", c, s.Herd())
		}
	}
}

// After a long silence all pulses are forgotten.
func TestHerdGaps(t *testing.T) {
	s := newStage(t)
	if s.watch(time.Minute, pulses(newRand(1), 100, time.Second, 0.5, 1), PeriodicHerd) < 0 {
		t.Fatal("the pulse was not found")
	}
	s.now += 20 * time.Minute
	if got := s.bin(1); got != NoHerd {
		t.Errorf("%+v", s.Herd())
	}
}

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
