package commands

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/share"
)

// The table for an operator in an overload leaves out lines that would be empty.
func TestPrintStatus(t *testing.T) {
	quiet := adminapi.ShieldStatus{
		Name: "quiet", Mode: "observe", Concurrency: 8, InFlight: 2, Admitted: 7,
		Refused: map[string]uint64{"capacity": 0}, Observed: map[string]uint64{"concurrency": 3, "quota": 0},
		Line: &adminapi.LineStatus{Spare: 7.8, KeptRatio: 1}, Clients: map[string]int{}, MaxClients: 524288,
	}
	busy := adminapi.ShieldStatus{
		Name: "shop", Mode: "enforce", Capacity: &adminapi.RateStatus{Rate: 500, Per: "1s", Burst: 50},
		Overloaded: true, Admitted: 1048251,
		Refused: map[string]uint64{"capacity": 812, "early": 95, "quota": 904}, Observed: map[string]uint64{"capacity": 0},
		Held: 37, Door: map[string]uint64{"h1": 1204},
		Line: &adminapi.LineStatus{
			BacklogSeconds: 12.44, Deferred: 200, Spare: 340.06, Promises: 8120, Deferrals: 210,
			Kept: 7764, NoShow: 240, Late: 12, Early: 2, Broken: 3, KeptRatio: 0.97,
		},
		Herd:    &adminapi.HerdStatus{Kind: "periodic", Size: 240.4, Period: 60, Phase: 0.25},
		Clients: map[string]int{"unknown": 320, "honours": 4000, "hammer": 800}, MaxClients: 524288,
	}
	fresh := adminapi.ShieldStatus{
		Name: "new", Mode: "enforce", Concurrency: 4, InFlight: 4,
		Refused: map[string]uint64{"concurrency": 1},
		Line:    &adminapi.LineStatus{BacklogSeconds: 1, Spare: 3.92, Promises: 1, KeptRatio: 1},
		Herd:    &adminapi.HerdStatus{Kind: "backlog", Size: 12},
		Clients: map[string]int{"unknown": 1}, MaxClients: 1024,
	}
	searching := adminapi.ShieldStatus{
		Name: "api", Mode: "enforce", Concurrency: 20, InFlight: 17, Admitted: 9000, Overloaded: true,
		Refused: map[string]uint64{"concurrency": 400, "retry_budget": 5}, Observed: map[string]uint64{},
		Search: &adminapi.SearchStatus{By: "adaptive", Ghosts: 2, Last: &adminapi.ChangeStatus{
			SecondsAgo: 3.2, Reason: "grown", From: 18, To: 20, LatencySeconds: .0521, BaselineSeconds: .0487,
		}},
		Queue: &adminapi.QueueStatus{Length: 3, Size: 64, Admitted: 60, Timeout: 30, Dropped: 8, Gone: 2, WaitSeconds: 1.2},
		Classes: []shield.ClassStats{
			{Name: "critical", Share: 1, Admitted: 3000}, {Name: "default", Share: .9, Admitted: 6000, Refused: 405}, {Name: "unpaid", Share: .5},
		},
		PausedSeconds: 4.21, Pauses: 1, Failures: 12,
	}
	starting := adminapi.ShieldStatus{
		Name: "web", Mode: "enforce", Concurrency: 20, Search: &adminapi.SearchStatus{By: "slo", TargetSeconds: .2},
		Queue: &adminapi.QueueStatus{Size: 64},
	}
	zone := adminapi.ZoneStatus{
		Name: "per_client", Key: "{http.vars.client_ip}", RateStatus: adminapi.RateStatus{Rate: 5, Per: "1m0s", Burst: 10},
		MaxKeys: 10000, ZoneStats: shield.ZoneStats{Stats: limiter.Stats{Keys: 20, Admitted: 40, Evicted: 1, Shared: 2}, Refused: 904},
	}
	for _, c := range []struct {
		name   string
		status adminapi.Status
		want   string
	}{
		{"nothing", adminapi.Status{}, "The running config has no shield.\n"},
		{"one that is quiet", adminapi.Status{Shields: []adminapi.ShieldStatus{quiet}}, `
SHIELD  MODE     CAPACITY  IN FLIGHT  ADMITTED  REFUSED  OBSERVED
quiet   observe  -         2 of 8     7         0        3 concurrency
`},
		{"limits that are found", adminapi.Status{Shields: []adminapi.ShieldStatus{searching, starting}}, `
SHIELD  MODE     CAPACITY  IN FLIGHT  ADMITTED  REFUSED                          OBSERVED
api     enforce  -         17 of 20   9000      400 concurrency, 5 retry_budget  0         OVERLOADED, LEFT ALONE for 4.2 s
web     enforce  -         0 of 20    0         0                                0

LIMIT  BY          IN FLIGHT  LAST CHANGE               LATENCY  BASELINE  GHOSTS  FAILURES  PAUSES
api    adaptive    17 of 20   3 s ago, 18 to 20: grown  52 ms    49 ms     2       12        1
web    slo 200 ms  0 of 20    none yet                  -        -         0       0         0

QUEUE  WAITING  ADMITTED  TIMEOUT  DROPPED  GONE  MEAN WAIT
api    3 of 64  60        30       8        2     12 ms

CLASS     OF   SHARE  ADMITTED  REFUSED  OBSERVED
critical  api  100 %  3000      0        0
default   api  90 %   6000      405      0
unpaid    api  50 %   0         0        0
`},
		{"three and a zone", adminapi.Status{Shields: []adminapi.ShieldStatus{quiet, busy, fresh}, Zones: []adminapi.ZoneStatus{zone}}, `
SHIELD  MODE     CAPACITY        IN FLIGHT  ADMITTED  REFUSED                            OBSERVED
quiet   observe  -               2 of 8     7         0                                  3 concurrency
shop    enforce  500/s burst 50  -          1048251   904 quota, 812 capacity, 95 early  0              OVERLOADED
new     enforce  -               4 of 4     0         1 concurrency                      0

LINE  BACKLOG  DEFERRED  SPARE    HELD  PROMISED  KEPT  LATE  NO-SHOW  BROKEN  EARLY
shop  12.4 s   200       340.1/s  37    8120      97 %  12    240      3       95 refused, 2 admitted
new   1.0 s    0         3.9/s    0     1         -     0     0        0       0 refused

DOOR  REFUSED AT THE DOOR
shop  1204 h1

HERD  KIND      SIZE          PERIOD  PHASE
shop  periodic  240 requests  60 s    0.2 s
new   backlog   12 clients    -       -

CLIENTS  REMEMBERED      BY POLICY
shop     5120 of 524288  4000 honours, 800 hammer, 320 unknown
new      1 of 1024       1 unknown

ZONE        KEY                    RATE          KEYS         ADMITTED  REFUSED  OBSERVED
per_client  {http.vars.client_ip}  5/m burst 10  20 of 10000  40        904      0         1 forgotten early, 2 without room: raise max_keys
`},
	} {
		var b strings.Builder
		if err := printStatus(&b, c.status); err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for line := range strings.Lines(b.String()) {
			got.WriteString(strings.TrimRight(line, " \n") + "\n")
		}
		if got.String() != strings.TrimPrefix(c.want, "\n") {
			t.Errorf("%s:\n%s\nwant:\n%s", c.name, got.String(), c.want)
		}
	}
}

func TestPrintStore(t *testing.T) {
	status := adminapi.Status{
		Shields: []adminapi.ShieldStatus{{Name: "api", Sharing: &adminapi.SharingStatus{Replicas: 3, Unit: "max 30s", Others: []share.Unit{{What: "max 20s", Replicas: 2}}}}, {Name: "own"}},
		Zones:   []adminapi.ZoneStatus{{Name: "per_client", Sharing: &adminapi.SharingStatus{Replicas: 2, Alone: true, Unit: "aabbccdd"}}},
		Store: &adminapi.StoreStatus{
			Address: "redis-1:6379", Prefix: "shop", Up: true, ForSeconds: 61, AloneSeconds: 1.25, RTTSeconds: .00042,
			Exchanges: map[string]uint64{"answered": 620, "late": 2},
		},
	}
	var b strings.Builder
	const want = `
STORE         PREFIX  STATE        ROUND TRIP  ALONE IN ALL  EXCHANGES             LAST ERROR
redis-1:6379  shop    up for 61 s  0.4 ms      1.2 s         620 answered, 2 late

SHARED      REPLICAS  STATE     UNIT
api         3         together  max 30s
            2         DIFFER    max 20s
per_client  2         ALONE     aabbccdd
`
	trimmed := func() string { return regexp.MustCompile(` +\n`).ReplaceAllString(b.String(), "\n") }
	if err := printStore(&b, status); err != nil || trimmed() != want[1:] {
		t.Errorf("got %v:\n%swant:%s", err, trimmed(), want)
	}
	b.Reset()
	status.Store.Up, status.Store.Error = false, "connection refused"
	if err := printStore(&b, status); err == nil || !strings.Contains(trimmed(), "LOST for 61 s") || !strings.Contains(trimmed(), "connection refused") {
		t.Errorf("a store that is lost: %v\n%s", err, trimmed())
	}
	if err := printStore(&b, adminapi.Status{}); err == nil || err.Error() != "the running config has no store" {
		t.Errorf("without a store the error is %v", err)
	}
}

// With --watch the status comes again and again, until the program is ended or shield is.
func TestStatusIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		start, n := time.Now(), 0
		show := func(w io.Writer) error {
			n++
			_, err := fmt.Fprintln(w, time.Since(start))
			return err
		}
		var b bytes.Buffer
		if err := repeat(ctx, &b, statusEvery, "> ", show); err != nil || b.String() != "> 0s\n> 2s\n> 4s\n" {
			t.Errorf("%q, error %v", b.String(), err)
		}
		gone := errors.New("gone")
		if err := repeat(t.Context(), &b, jsonEvery, "", func(io.Writer) error { return gone }); !errors.Is(err, gone) {
			t.Errorf("error %v, want %v", err, gone)
		}
	})
}

func TestPrintNow(t *testing.T) {
	var b strings.Builder
	if err := printNow(&b, twoShields.watch); err != nil {
		t.Fatal(err)
	}
	want := `shop refuses 84 requests/s, because the backend's capacity of 100/s is used up.
api admits all.

NOW   ARRIVALS  ADMITTED  REFUSED                       WAITING  UNTIL
shop  0.0/s     100.0/s   60.0/s capacity, 24.0/s early  1240     in 13 s
api   0.0/s     5.0/s     0.0/s (observed)              0        -

`
	if got := b.String(); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
