package seeds

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

// The waits are for each attempt the least, the middle, and the most, or one that is all; "…": it goes on so for ever.
func TestTextbook(t *testing.T) {
	for name, table := range map[string]string{
		"try-n-times":      "0s 0s",
		"clojure":          "1s 2s 4s 8s",
		"google-analytics": "1001ms/1501ms/2s 2001ms/2501ms/3s 4001ms/4501ms/5s 8001ms/8501ms/9s 16001ms/16501ms/17s",
		"go-array": "5ms/10ms/14ms 5ms/10ms/14ms 50ms/100ms/149ms 50ms/100ms/149ms 250ms/500ms/749ms 250ms/500ms/749ms " +
			"1500ms/3s/4499ms 1500ms/3s/4499ms 2500ms/5s/7499ms 2500ms/5s/7499ms 2500ms/5s/7499ms …",
		"google-http-java-client": "250ms/500ms/750ms 375ms/750ms/1125ms 562ms/1125ms/1688ms 843ms/1687ms/2531ms 1265ms/2530ms/3795ms " +
			"1897ms/3795ms/5693ms 2846ms/5692ms/8538ms 4269ms/8538ms/12807ms 6403ms/12807ms/19211ms 9605ms/19210ms/28815ms " +
			"14407ms/28815ms/43223ms 21611ms/43222ms/64833ms 30s/1m0s/1m30s 30s/1m0s/1m30s …",
		"binary-exponential": "0s/1s/2s 0s/2s/4s 0s/4s/8s 0s/8s/16s 0s/16s/32s 0s/32s/64s 0s/64s/128s 0s/128s/256s 0s/256s/512s " +
			"0s/512s/1024s 0s/512s/1024s 0s/512s/1024s 0s/512s/1024s 0s/512s/1024s 0s/512s/1024s",
		"ethernet": "0s/1s/1s 0s/2s/3s 0s/4s/7s 0s/8s/15s 0s/16s/31s 0s/32s/63s 0s/64s/127s 0s/128s/255s 0s/256s/511s " +
			"0s/512s/1023s 0s/512s/1023s 0s/512s/1023s 0s/512s/1023s 0s/512s/1023s 0s/512s/1023s",
		"modified-binary-exponential": "0s/1s/2s 2s/4s/6s 6s/10s/14s 14s/22s/30s 30s/46s/62s …",
		"server-timing":               "1s 2s 4s 8s 16s 32s 64s …",
		"tcp-rto":                     "3s 6s 12s",
		"paranoid-pirate":             "1s 2s 4s 8s 16s 32s 32s …",
		"docker-restart":              "100ms 200ms 400ms 800ms 1600ms 3200ms 6400ms 12800ms 25600ms 51200ms 1m0s 1m0s …",
		"hadoop":                      "200ms/400ms/600ms 400ms/800ms/1200ms 800ms/1600ms/2400ms 1600ms/3200ms/4800ms 3200ms/6400ms/9600ms",
	} {
		p, attempt := Policy(name), 0
		for row := range strings.FieldsSeq(strings.TrimSuffix(table, "…")) {
			attempt++
			want := strings.Split(row, "/")
			for i, u := range []float64{0, 0.5, 1 - 1e-10} {
				w, err := time.ParseDuration(want[min(i, len(want)-1)])
				if err != nil {
					t.Fatal(name, err)
				}
				if got, again := p.Next(clients.Rejected{Attempt: attempt, U: u, Status: 503}); !again || (got-w).Abs() > time.Microsecond {
					t.Errorf("%s, attempt %d, draw %v: comes back %v after %v, want after %v", name, attempt, u, again, got, w)
				}
			}
		}
		if _, again := p.Next(clients.Rejected{Attempt: attempt + 1, Status: 503}); again != strings.HasSuffix(table, "…") {
			t.Errorf("%s comes back after attempt %d: %v", name, attempt+1, again)
		}
	}
}

func TestElapsedLimit(t *testing.T) {
	for elapsed, want := range map[time.Duration]bool{0: true, 15 * time.Minute: true, 15*time.Minute + 1: false} {
		if _, again := (GoogleHTTPJava{}).Next(clients.Rejected{Attempt: 20, Elapsed: elapsed}); again != want {
			t.Errorf("google-http-java-client comes back %v after the start: %v, want %v", elapsed, again, want)
		}
	}
}

// A client that learns of its failure after the end of its window takes the one that it is in, uniformly in the rest. Otherwise windows
// are those of the catalog's table.
func TestModifiedBinary(t *testing.T) {
	p := ModifiedBinary{Slot: time.Second}
	for _, c := range []struct {
		u    float64
		want time.Duration
	}{{0, 0}, {0.5, 2 * time.Second}, {math.Nextafter(1, 0), 4 * time.Second}} {
		if got, _ := p.Next(clients.Rejected{Attempt: 1, Elapsed: 10 * time.Second, U: c.u}); (got - c.want).Abs() > time.Microsecond {
			t.Errorf("after a timeout of 10 s, draw %v: waits %v, want %v", c.u, got, c.want)
		}
	}
}
