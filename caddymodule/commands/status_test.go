package commands

import (
	"regexp"
	"strings"
	"testing"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/oncall"
	"github.com/herdshield/shield/pushback"
	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/redis"
)

// The status has each field that is not 0, in a table of its object.
func TestPrintStatus(t *testing.T) {
	status := adminapi.Status{
		Shields: []oncall.Situation{
			{Name: "quiet", Mode: "observe", Facts: &oncall.Facts{
				Concurrency: 8, InFlight: 2, Admitted: 7, Rejected: map[string]uint64{"capacity": 0}, Observed: map[string]uint64{"concurrency": 3, "quota": 0},
				Lately: new(oncall.Lately),
			}},
			{Name: "shop", Mode: "enforce", Says: "shop rejects all.", Facts: &oncall.Facts{
				Capacity: &oncall.RateLimit{Rate: 500, Per: "1s", Burst: 50}, Overloaded: true, Admitted: 1048251, PausedSeconds: 4.2123,
				Rejected: map[string]uint64{"capacity": 812, "early": 95}, Families: map[string]pushback.FamilyStats{"curl": {Told: 2}},
				Lately: &oncall.Lately{Arrivals: 9, Rejected: map[string]float64{"capacity": 4.5}}, Waiting: &oncall.Waiting{Clients: 17, Over: -1},
				Classes: []shield.ClassStats{{Name: "critical", Share: 1, Admitted: 3000}, {Name: "default", Share: .9, Rejected: 405}},
			}},
		},
		Zones: []adminapi.ZoneStatus{{
			Name: "per_client", Key: "{header.X}", RateLimit: oncall.RateLimit{Rate: 5, Per: "1m0s", Burst: 10},
			MaxKeys: 10000, ZoneStats: shield.ZoneStats{Stats: limiter.Stats{Keys: 20, Admitted: 40}},
		}},
	}
	for _, c := range []struct {
		status adminapi.Status
		want   string
	}{
		{adminapi.Status{}, "The running config has no shield.\n"},
		{status, `
shop rejects all.

SHIELD  ADMITTED  CONCURRENCY  IN_FLIGHT  MODE     OVERLOADED  PAUSED_SECONDS
quiet   7         8            2          observe  -           -
shop    1048251   -            -          enforce  yes         4.212

CAPACITY  BURST  PER  RATE
shop      50     1s   500

CLASSES  NAME      ADMITTED  REJECTED  SHARE
shop     critical  3000      -         1
shop     default   -         405       0.9

FAMILIES  CURL.TOLD
shop      2

LATELY  ARRIVALS  REJECTED.CAPACITY
shop    9         4.5

OBSERVED  CONCURRENCY
quiet     3

REJECTED  CAPACITY  EARLY
shop      812       95

WAITING  CLIENTS  OVER_SECONDS
shop     17       -1

ZONE        ADMITTED  BURST  KEY         KEYS  MAX_KEYS  PER   RATE
per_client  40        10     {header.X}  20    10000     1m0s  5

`},
	} {
		var b strings.Builder
		if err := printStatus(&b, &c.status); err != nil {
			t.Fatal(err)
		}
		if got := regexp.MustCompile(` +\n`).ReplaceAllString(b.String(), "\n"); got != strings.TrimPrefix(c.want, "\n") {
			t.Errorf("%s\nwant:\n%s", got, c.want)
		}
	}
}

func TestPrintStore(t *testing.T) {
	status := adminapi.Status{
		Shields: []oncall.Situation{{Name: "api", Facts: &oncall.Facts{Sharing: &share.Sharing{Replicas: 3, Unit: "max 30s", Others: []share.Unit{{What: "max 20s", Replicas: 2}}}}}, {Name: "own", Facts: new(oncall.Facts)}},
		Zones:   []adminapi.ZoneStatus{{Name: "per_client", Sharing: &share.Sharing{Alone: true, Unit: "aabbccdd"}}},
		Store:   &redis.Status{Address: "redis-1:6379", Prefix: "shop", Up: true, ForSeconds: 61, RTTSeconds: .00142, Exchanges: map[string]uint64{"answered": 620, "late": 2}},
	}
	var b strings.Builder
	if err := printStore(&b, &status); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"redis-1:6379 +61 +shop +0.00142 +yes", "redis-1:6379 +620 +2", `ALONE +OTHERS.1.REPLICAS +OTHERS.1.WHAT +REPLICAS +UNIT\s+api +- +2 +max 20s +3 +max 30s`, "per_client +yes .* aabbccdd"} {
		if !regexp.MustCompile(want).MatchString(b.String()) {
			t.Errorf("no %s in\n%s", want, b.String())
		}
	}
	status.Store.Up, status.Store.Error = false, "connection refused"
	if err := printStore(&b, &status); err == nil || !strings.Contains(b.String(), "connection refused") {
		t.Errorf("a store that is lost: %v\n%s", err, b.String())
	}
	if err := printStore(&b, &adminapi.Status{}); err == nil || err.Error() != "the running config has no store" {
		t.Errorf("without a store the error is %v", err)
	}
}
