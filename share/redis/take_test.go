package redis

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"testing"

	"github.com/herdshield/shield/share"
)

// take has the script answer at a time.
func take(driver *driver, zone string, now int64, ask share.TakeAsk) (answer share.TakeAnswer, err error) {
	text, err := json.Marshal(ask)
	if err != nil {
		return answer, err
	}
	reply, err := takeScript.runAt(context.Background(), driver, takeKeys("shield:{test:"+zone+"}", ask.Keys), strconv.FormatInt(now, 10), string(text))
	if err != nil {
		return answer, err
	}
	return answer, json.Unmarshal([]byte(reply), &answer)
}

// A takers plays what some replicas ask about a few keys, in an order of its own.
type takers struct {
	*rand.Rand
	zone  share.TakeAsk // what all asks have alike
	now   int64
	each  []share.TakeAsk
	past  []share.TakeAsk
	alone []bool
}

func newTakers(seed uint64, n int) *takers {
	zones := []share.TakeAsk{
		{Rate: 10, Burst: 20, Cost: 1}, {Rate: 1.0 / 3600, Burst: 5, Cost: 2}, {Rate: 333.3, Burst: 50, Cost: 7}, {Rate: 5, Burst: 1, Cost: 1},
	}
	return &takers{
		Rand: rand.New(rand.NewPCG(seed, 1)), zone: zones[seed%4], now: 1_795_000_000_000,
		each: make([]share.TakeAsk, n), alone: make([]bool, n),
	}
}

// next returns what one of them asks next: duplicates and late ones included.
func (r *takers) next() (of int, a share.TakeAsk) {
	r.now += []int64{0, 1, 3, 20, 100, 100, 400, 2_000, 16_000, 601_000}[min(r.IntN(10), r.IntN(10), r.IntN(40))]
	if len(r.past) > 0 && r.IntN(10) == 0 {
		return 0, r.past[r.IntN(len(r.past))]
	}
	of = r.IntN(len(r.each))
	mine := &r.each[of]
	mine.Seq++
	a = *mine
	a.Name, a.Life, a.Lease = fmt.Sprintf("replica%d", of), a.Life+1, []int64{350, 350, 1200}[r.IntN(3)]
	a.Alone = r.alone[of] || r.IntN(12) == 0
	a.Replicas, a.Leaves = r.IntN(3), r.IntN(30) == 0
	a.Rate, a.Burst, a.Cost = r.zone.Rate, r.zone.Burst, r.zone.Cost
	for key := range 6 {
		if r.IntN(3) == 0 {
			a.Keys = append(a.Keys, share.KeyTake{
				Key: fmt.Sprintf("%016x", key), Held: int64(r.IntN(3) * r.IntN(2_000_000)), Gave: int64(r.IntN(2) * r.IntN(2_000_000)), Want: r.IntN(12) - 1,
			})
		}
	}
	if r.past = append(r.past, a); len(r.past) > 20 {
		r.past = r.past[1:]
	}
	return of, a
}

// hear takes an answer; some are lost.
func (r *takers) hear(of int, ask share.TakeAsk, t share.TakeAnswer) {
	mine := &r.each[of]
	if ask.Leaves || ask.Seq != mine.Seq || ask.Name != fmt.Sprintf("replica%d", of) || t.Stale || r.IntN(10) == 0 {
		return
	}
	mine.Last, mine.Heard = ask.Seq, t.Now
	r.alone[of] = t.Over
	if t.Over || ask.Alone {
		mine.Life++
		return
	}
	mine.After = t.After
}

// The script answers as the ZoneModel does, whatever it is asked in whichever order.
func TestTakeIsTheModel(t *testing.T) {
	eachStore(t, func(t *testing.T, driver *driver) {
		answers := map[string]int{}
		for seed := range uint64(12) {
			var model share.ZoneModel
			r := newTakers(seed, 1+int(seed%5))
			for step := range 300 {
				if r.IntN(200) == 0 {
					model.Forget()
					if _, err := driver.do(t.Context(), "", "FLUSHALL"); err != nil {
						t.Fatal(err)
					}
				}
				of, ask := r.next()
				want := model.Take(r.now, ask)
				got, err := take(driver, fmt.Sprint(seed), r.now, ask)
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Fatalf("seed %d, step %d, at %d:\n%s\nthe script answers %s, %v\nthe ZoneModel     %s", seed, step, r.now, text(ask), text(got), err, text(want))
				}
				r.hear(of, ask, got)
				for kind, is := range map[string]bool{"over": got.Over, "stale": got.Stale, "news": got.News != nil, "born": got.Born > 0} {
					if is {
						answers[kind]++
					}
				}
				for _, k := range got.Keys {
					answers["tokens"] += k.Got
					answers["wait"] += min(1, int(k.Wait))
				}
			}
		}
		t.Log(answers)
		for _, kind := range []string{"over", "stale", "tokens", "news", "wait", "born"} {
			if answers[kind] < 20 {
				t.Errorf("%d answers have %s; the test is at fault", answers[kind], kind)
			}
		}
	})
}

// No ask makes the script fail, or keeps the next one from being answered.
func TestTakeTakesAnything(t *testing.T) {
	eachStore(t, func(t *testing.T, driver *driver) {
		r := rand.New(rand.NewPCG(4, 4))
		numbers := []any{0, 1, -1, 0.5, 1e9, -1e9, 1e300, -1e300, 7_180_000_010, 1 << 53, 1e-300, nil, "", "x", true, []any{}, map[string]any{"k": 1}}
		value := func() any { return numbers[r.IntN(len(numbers))] }
		for step := range 1000 {
			ask := map[string]any{}
			for _, field := range []string{"name", "life", "seq", "last", "heard", "lease", "alone", "leaves", "replicas", "rate", "burst", "cost", "after", "keys"} {
				if r.IntN(6) > 0 {
					ask[field] = value()
				}
			}
			if r.IntN(3) > 0 {
				ask["alone"], ask["rate"], ask["burst"], ask["cost"] = false, 10, 20, 1
				ask["name"], ask["seq"] = fmt.Sprint("r", r.IntN(3)), step
				ask["keys"] = []any{value(), map[string]any{"k": value(), "h": value(), "g": value(), "w": value()}, map[string]any{"k": "0a", "h": 0, "g": 0, "w": 3}}
			}
			text, err := json.Marshal(ask)
			if err != nil {
				t.Fatal(err)
			}
			keys := takeKeys(fmt.Sprint("shield:{test:wild", step%7, "}"), []share.KeyTake{{Key: "a"}, {Key: "b"}, {Key: "c"}})
			now := strconv.FormatInt(1_795_000_000_000+int64(step)*50, 10)
			reply, err := takeScript.runAt(t.Context(), driver, keys, now, string(text))
			var answer share.TakeAnswer
			if err == nil {
				err = json.Unmarshal([]byte(reply), &answer)
			}
			if err != nil || answer.Now == 0 {
				t.Fatalf("step %d: %s: %s, %v", step, text, reply, err)
			}
		}
	})
}
