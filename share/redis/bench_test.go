package redis

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/redis/testserver"
)

// BenchmarkPlan is the exchange of one of four replicas: idle at the beat, and with a herd,
// in which each asks for slots, gives some back, and tells some promises. It
// prints the time that the server itself has taken for one call.
func BenchmarkPlan(b *testing.B) {
	program := testserver.Programs(b)[0]
	server := testserver.Start(b, program)
	driver := Options{Addresses: []string{server.Addr}}.newDriver(b.Context())
	defer driver.Close()
	for _, herd := range []bool{false, true} {
		b.Run(map[bool]string{false: "beat", true: "herd"}[herd], func(b *testing.B) {
			r, keys := rand.New(rand.NewPCG(1, 1)), planKeys(fmt.Sprintf("shield:{bench%v%d}", herd, rand.Int()))
			after := [4]int64{}
			server.Do("CONFIG", "RESETSTAT")
			seq := int64(0)
			for b.Loop() {
				seq++
				of := int(seq % 4)
				ask := share.Ask{Name: fmt.Sprint("replica", of), Seq: seq, Lease: 350, Alone: seq <= 4, After: after[of]}
				ask.Slots = &share.SlotsAsk{Limit: 100, Base: 7.5, Max: 30_000, Kept: 1}
				if herd {
					ask.Slots.Want = r.IntN(5)
					ask.News = strings.Repeat("0123456789abcdef", 2*r.IntN(4))
				}
				text, err := json.Marshal(&ask)
				if err != nil {
					b.Fatal(err)
				}
				reply, err := planScript.run(context.Background(), driver, keys, string(text))
				if err != nil {
					b.Fatal(err)
				}
				var answer share.Answer
				if err := json.Unmarshal([]byte(reply), &answer); err != nil {
					b.Fatal(err)
				}
				after[of] = answer.After
			}
			b.ReportMetric(taken(b, server), "server-µs/op")
		})
	}
}

// taken returns how many microseconds a call of a script has taken the server.
func taken(b *testing.B, server *testserver.Server) (us float64) {
	b.Helper()
	_, stat, _ := strings.Cut(server.Do("INFO", "commandstats"), "cmdstat_evalsha:")
	_, stat, _ = strings.Cut(stat, "usec_per_call=")
	if _, err := fmt.Sscanf(stat, "%f", &us); err != nil {
		b.Fatal(err)
	}
	return us
}
