package commands

import (
	"strings"
	"testing"

	"github.com/herdshield/shield/caddymodule/adminapi"
)

func TestPrintWho(t *testing.T) {
	hammer := adminapi.RejectedClient{Client: "192.0.2.7", LastMinute: 5400, Early: 5398, PerSecond: 90, Reason: "early", Class: "default", Agent: "curl", Path: "GET /items/…"}
	hostile := adminapi.RejectedClient{Client: "\x1b[2J\u009b1m", LastMinute: 3, PerSecond: .05, Reason: "quota", Agent: "other", Path: "GET /\x1b"}
	for _, c := range []struct {
		name string
		who  adminapi.WhoStatus
		want string
	}{
		{"none", adminapi.WhoStatus{Shields: []adminapi.WhoList{{Name: "shop", Mode: "enforce"}}, Zones: []adminapi.WhoList{{Name: "z"}}}, `
No client was rejected in the last minute.
`},
		{"some", adminapi.WhoStatus{
			Shields: []adminapi.WhoList{
				{Name: "shop", Mode: "enforce", Rejected: []adminapi.RejectedClient{hammer, hostile}, InFlight: []adminapi.BusyClient{{Client: "192.0.2.7", InFlight: 12}}},
				{Name: "api", Mode: "observe", Rejected: []adminapi.RejectedClient{hammer}},
			},
			Zones: []adminapi.WhoList{{Name: "per_client", Rejected: []adminapi.RejectedClient{hostile}}},
		}, `
IN_FLIGHT  CLIENT     IN_FLIGHT
shop       192.0.2.7  12

REJECTED         CLIENT             AGENT  CLASS    EARLY  LAST_MINUTE  PATH          PER_SECOND  REASON
shop             192.0.2.7          curl   default  5398   5400         GET /items/…  90          early
shop             "\x1b[2J\u009b1m"  other  -        -      3            "GET /\x1b"   0.05        quota
api              192.0.2.7          curl   default  5398   5400         GET /items/…  90          early
zone per_client  "\x1b[2J\u009b1m"  other  -        -      3            "GET /\x1b"   0.05        quota

`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			if err := printWho(&out, &c.who); err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for line := range strings.Lines(out.String()) {
				got.WriteString(strings.TrimRight(line, " \n") + "\n")
			}
			if want := strings.TrimPrefix(c.want, "\n"); got.String() != want {
				t.Errorf("got:\n%s\nwant:\n%s", got.String(), want)
			}
		})
	}
}
