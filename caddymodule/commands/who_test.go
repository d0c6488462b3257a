package commands

import (
	"strings"
	"testing"

	"github.com/herdshield/shield/caddymodule/adminapi"
)

func TestPrintWho(t *testing.T) {
	hammer := adminapi.RefusedClient{Client: "192.0.2.7", LastMinute: 5400, PerSecond: 90, Reason: "early", Class: "default", Agent: "curl", Path: "GET /items/…"}
	hostile := adminapi.RefusedClient{Client: "\x1b[2J\u009b1m", LastMinute: 3, PerSecond: .05, Reason: "quota", Agent: "other", Path: "GET /\x1b"}
	for _, c := range []struct {
		name string
		who  adminapi.WhoStatus
		want string
	}{
		{"none", adminapi.WhoStatus{Shields: []adminapi.WhoShield{{Name: "shop", Mode: "enforce"}}, Zones: []adminapi.WhoZone{{Name: "z"}}}, `
No client was refused in the last minute.
`},
		{"some", adminapi.WhoStatus{
			Shields: []adminapi.WhoShield{
				{
					Name: "shop", Mode: "enforce", Refused: []adminapi.RefusedClient{hammer, hostile},
					Early: []adminapi.RefusedClient{hammer}, InFlight: []adminapi.BusyClient{{Client: "192.0.2.7", InFlight: 12}},
				},
				{Name: "api", Mode: "observe", Refused: []adminapi.RefusedClient{hammer}},
			},
			Zones: []adminapi.WhoZone{{Name: "per_client", Refused: []adminapi.RefusedClient{hostile}}},
		}, `
REFUSED BY  CLIENT             LAST MINUTE  PER SECOND  LAST REASON  CLASS    AGENT  PATH
shop        192.0.2.7          5400         90.0        early        default  curl   GET /items/…
shop        "\x1b[2J\u009b1m"  3            0.1         quota                 other  "GET /\x1b"

EARLY AT  CLIENT     LAST MINUTE  PER SECOND  LAST REASON  CLASS    AGENT  PATH
shop      192.0.2.7  5400         90.0        early        default  curl   GET /items/…

IN FLIGHT AT  CLIENT     REQUESTS
shop          192.0.2.7  12

REFUSED BY      CLIENT     LAST MINUTE  PER SECOND  LAST REASON  CLASS    AGENT  PATH
api (observes)  192.0.2.7  5400         90.0        early        default  curl   GET /items/…

REFUSED BY ZONE  CLIENT             LAST MINUTE  PER SECOND  LAST REASON  CLASS  AGENT  PATH
per_client       "\x1b[2J\u009b1m"  3            0.1         quota               other  "GET /\x1b"
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
