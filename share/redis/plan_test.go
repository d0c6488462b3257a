package redis

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strconv"
	"testing"

	"github.com/alicebob/miniredis/v2"
	redigo "github.com/gomodule/redigo/redis"

	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/redis/testserver"
)

// eachStore runs a test with miniredis, and with each server that is installed.
func eachStore(t *testing.T, test func(t *testing.T, driver *driver)) {
	t.Helper()
	connect := func(t *testing.T, address string) *driver {
		driver := Options{Addresses: []string{address}}.newDriver(t.Context())
		t.Cleanup(driver.Close)
		return driver
	}
	t.Run("miniredis", func(t *testing.T) { test(t, connect(t, miniredis.RunT(t).Addr())) })
	t.Run("server", func(t *testing.T) {
		testserver.Each(t, func(t *testing.T, program string) { test(t, connect(t, testserver.Start(t, program).Addr)) })
	})
}

// plan has the script answer at a time.
func plan(driver *driver, backend string, now int64, ask share.Ask) (answer share.Answer, err error) {
	text, err := json.Marshal(ask)
	if err != nil {
		return answer, err
	}
	reply, err := planScript.runAt(context.Background(), driver, planKeys("shield:{test:"+backend+"}"), strconv.FormatInt(now, 10), string(text))
	if err != nil {
		return answer, err
	}
	return answer, json.Unmarshal([]byte(reply), &answer)
}

// A replicas plays what some replicas ask, in an order of its own.
type replicas struct {
	*rand.Rand
	seq   []int64
	after []int64
	over  []bool
	now   int64
	past  []asked // to be asked again
}

type asked struct {
	of  int
	ask share.Ask
}

func newReplicas(seed uint64, n int) *replicas {
	return &replicas{
		Rand: rand.New(rand.NewPCG(seed, 1)), now: 1_795_000_000_000,
		seq: make([]int64, n), after: make([]int64, n), over: make([]bool, n),
	}
}

// next returns what one of them asks next. Numbers are multiples of 1/8, so that sums are
// the same in any order.
func (r *replicas) next() (of int, a share.Ask) {
	r.now += []int64{0, 1, 3, 20, 100, 100, 400, 2_000, 16_000, 601_000}[min(r.IntN(10), r.IntN(10), r.IntN(40))]
	if len(r.past) > 0 && r.IntN(10) == 0 { // a duplicate, or one that comes late
		p := r.past[r.IntN(len(r.past))]
		return p.of, p.ask
	}
	of = r.IntN(len(r.seq))
	r.seq[of] += 1 + int64(r.IntN(2))
	eighths := func(n int) float64 { return float64(r.IntN(8*n)) / 8 }
	a = share.Ask{
		Name: fmt.Sprintf("r%d", of), Seq: r.seq[of], Lease: []int64{350, 350, 1200}[r.IntN(3)],
		Alone: r.over[of] || r.IntN(8) == 0, After: r.after[of], Leaves: r.IntN(50) == 0, Replicas: r.IntN(6),
	}
	if r.IntN(5) > 0 {
		a.Slots = &share.SlotsAsk{
			Rate: eighths(60), Limit: []float64{0, 100}[r.IntN(2)], Base: eighths(20), Max: int64(r.IntN(60_000)), Want: r.IntN(10) - 1, Proven: r.IntN(4),
			Guessed: r.some(), Back: r.some(), Numbers: eighths(4) - 1, Served: eighths(2), Dry: r.IntN(20) == 0, Kept: eighths(1),
		}
		if r.IntN(20) == 0 {
			a.Slots.Anew = r.some()
		}
	}
	if r.IntN(3) == 0 {
		a.News = fmt.Sprintf("news+%d/%d==", of, a.Seq)
	}
	r.past = append(r.past, asked{of, a})
	if len(r.past) > 20 {
		r.past = r.past[1:]
	}
	return of, a
}

func (r *replicas) some() (slots []share.Slot) {
	for range r.IntN(8) - 5 {
		slots = append(slots, share.Slot{Second: r.now/1000 + int64(r.IntN(20)) - 1, Size: float64(1+r.IntN(16)) / 8})
	}
	return slots
}

// hear takes an answer; some are lost.
func (r *replicas) hear(of int, a share.Answer) {
	if r.over[of] = a.Over; a.Over || a.Stale || r.IntN(10) == 0 {
		return
	}
	r.after[of] = a.After
}

// The script answers as the Model does, whatever it is asked in whichever order.
func TestPlanIsTheModel(t *testing.T) {
	eachStore(t, func(t *testing.T, driver *driver) {
		answers := map[string]int{}
		for seed := range uint64(8) {
			var model share.Model
			r := newReplicas(seed, 1+int(seed%5))
			for step := range 300 {
				of, ask := r.next()
				want := model.Plan(r.now, ask)
				got, err := plan(driver, fmt.Sprint(seed), r.now, ask)
				if err != nil || !alike(reflect.ValueOf(got), reflect.ValueOf(want)) {
					t.Fatalf("seed %d, step %d, at %d:\n%s\nthe script answers %s, %v\nthe Model         %s", seed, step, r.now, text(ask), text(got), err, text(want))
				}
				r.hear(of, got)
				count(answers, got)
			}
		}
		t.Log(answers)
		for _, kind := range []string{"over", "stale", "times", "full", "news"} {
			if answers[kind] < 20 {
				t.Errorf("%d answers have %s; the test is at fault", answers[kind], kind)
			}
		}
	})
}

func count(answers map[string]int, a share.Answer) {
	for kind, is := range map[string]bool{
		"over": a.Over, "stale": a.Stale,
		"times": a.Slots != nil && a.Slots.Times != nil, "full": a.Slots != nil && a.Slots.Full, "news": a.News != nil,
	} {
		if is {
			answers[kind]++
		}
	}
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// alike compares values; a script writes 14 digits of a number.
func alike(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Float64:
		return math.Abs(a.Float()-b.Float()) <= 1e-9*max(1, math.Abs(a.Float()))
	case reflect.Pointer:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() == b.IsNil()
		}
		return alike(a.Elem(), b.Elem())
	case reflect.Slice:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !alike(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Struct:
		for i := range a.NumField() {
			if !alike(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	}
	return a.Equal(b)
}

// No ask makes the script fail, or keeps the next one from being answered.
func TestPlanTakesAnything(t *testing.T) {
	eachStore(t, func(t *testing.T, driver *driver) {
		r := rand.New(rand.NewPCG(3, 3))
		for step := range 600 {
			ask := wild(r)
			text, err := json.Marshal(ask)
			if err != nil {
				t.Fatal(err)
			}
			backend := fmt.Sprint("wild", step%7)
			now := strconv.FormatInt(1_795_000_000_000+int64(step)*50, 10)
			if _, err := planScript.runAt(t.Context(), driver, planKeys("shield:{test:"+backend+"}"), now, string(text)); err != nil {
				t.Fatalf("step %d: %s: %v", step, text, err)
			}
		}
	})
}

// wild returns an ask whose fields may have any value.
func wild(r *rand.Rand) map[string]any {
	numbers := []any{0, 1, -1, 0.5, 1e9, -1e9, 1e300, -1e300, 7_180_000_010, 1 << 53, 1e-300}
	value := func() any {
		switch r.IntN(8) {
		case 0:
			return nil
		case 1:
			return []any{"", "x", "0-0", "\x00{}"}[r.IntN(4)]
		case 2:
			return r.IntN(2) == 0
		case 3:
			return []any{}
		case 4:
			return map[string]any{"n": numbers[r.IntN(len(numbers))]}
		}
		return numbers[r.IntN(len(numbers))]
	}
	slots := func() any {
		var list []any
		for range r.IntN(4) {
			list = append(list, map[string]any{"n": value(), "x": value()}, value())
		}
		return list
	}
	ask := map[string]any{"name": value(), "seq": value(), "lease": value(), "alone": value(), "after": value(), "news": value()}
	if r.IntN(4) > 0 {
		ask["slots"] = map[string]any{
			"rate": value(), "limit": value(), "base": value(), "max": value(), "want": value(), "proven": value(),
			"guessed": slots(), "back": slots(), "anew": slots(), "numbers": value(), "served": value(), "dry": value(), "kept": value(),
		}
	} else {
		ask["slots"] = value()
	}
	return ask
}

// However long a backlog stands, what the store keeps of it does not grow.
func TestPlanForgets(t *testing.T) {
	eachStore(t, func(t *testing.T, driver *driver) {
		var longest int64
		for step := range int64(700) {
			now := 1_795_000_000_000 + 250*step
			ask := share.Ask{Name: "a", Seq: step + 1, Lease: 350, News: "news", Slots: &share.SlotsAsk{
				Rate: 10, Max: 30_000, Want: 3, Kept: 1, Guessed: []share.Slot{{Second: now/1000 - 2, Size: 1}},
			}}
			if _, err := plan(driver, "standing", now, ask); err != nil {
				t.Fatal(err)
			}
			length, err := redigo.Int64(driver.do(t.Context(), "", "HLEN", planKeys("shield:{test:standing}")[1]))
			if err != nil {
				t.Fatal(err)
			}
			longest = max(longest, length)
		}
		t.Logf("%d fields at most", longest)
		if longest < 20 || longest > 2*64 {
			t.Errorf("the store has had %d fields, want no more than two for each of 64 s", longest)
		}
		keys, err := redigo.Strings(driver.do(t.Context(), "", "KEYS", "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			if ttl, err := redigo.Int64(driver.do(t.Context(), "", "PTTL", key)); err != nil || ttl <= 0 {
				t.Errorf("%s is kept for %d, %v", key, ttl, err)
			}
		}
	})
}
