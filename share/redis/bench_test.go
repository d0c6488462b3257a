package redis

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/herdshield/shield/pushback"
	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/redis/testserver"
)

// BenchmarkLease is the exchange of one of four replicas: idle at the beat, and with a herd, in which each asks for
// tokens and slots, and tells some promises. It prints the time that the server itself has taken for one call.
func BenchmarkLease(b *testing.B) {
	program := testserver.Programs(b)[0]
	server := testserver.Start(b, program)
	driver := Options{Addresses: []string{server.Addr}}.newDriver()
	defer driver.Close()
	for _, herd := range []bool{false, true} {
		b.Run(map[bool]string{false: "beat", true: "herd"}[herd], func(b *testing.B) {
			r, keys := rand.New(rand.NewPCG(1, 1)), []string{}
			for _, name := range []string{"roster", "notes", "units", "tokens"} {
				keys = append(keys, fmt.Sprintf("shield:{bench%v}:%s", herd, name))
			}
			after := [4]int64{}
			server.Do("CONFIG", "RESETSTAT")
			for seq := int64(1); b.Loop(); seq++ {
				of := int(seq % 4)
				ask := share.LeaseAsk{Me: fmt.Sprint("replica", of), Seq: seq, Life: 1, N: 4, Known: 4,
					Till: 9e15, After: after[of], Slots: &pushback.SlotsAsk{Limit: 100, Base: 7.5, Max: 30_000, Kept: 1}}
				ask.Of, ask.Pools = []share.PoolKind{{Rate: 0.1, Cap: 10, Parts: 1, Stay: 600_000}}, [][4]float64{{1, 0, 0, 0}}
				if herd {
					ask.Pools[0] = [4]float64{1, r.Float64(), 0, float64(r.IntN(2))}
					ask.Slots.Want = r.IntN(5)
					ask.Notes = strings.Repeat("0123456789abcdef", 2*r.IntN(4))
				}
				text, err := json.Marshal(&ask)
				if err != nil {
					b.Fatal(err)
				}
				reply, err := driver.run(context.Background(), new(string), keys, "", string(text), ask.Notes)
				if err != nil {
					b.Fatal(err)
				}
				var answer share.LeaseAnswer
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
