package main

import (
	"strings"
	"testing"

	"github.com/herdshield/shield/caddymodule"
)

func TestPrintWho(t *testing.T) {
	hammer := caddymodule.RefusedClient{Client: "192.0.2.7", LastMinute: 5400, PerSecond: 90, Reason: "early", Class: "default", Agent: "curl"}
	hostile := caddymodule.RefusedClient{Client: "\x1b[2J\u009b1m", LastMinute: 3, PerSecond: .05, Reason: "quota", Agent: "other"}
	for _, c := range []struct {
		name string
		who  caddymodule.WhoStatus
		want string
	}{
		{"none", caddymodule.WhoStatus{Shields: []caddymodule.WhoShield{{Name: "shop", Mode: "enforce"}}, Zones: []caddymodule.WhoZone{{Name: "z"}}}, `
No client was refused in the last minute.
`},
		{"some", caddymodule.WhoStatus{
			Shields: []caddymodule.WhoShield{
				{
					Name: "shop", Mode: "enforce", Refused: []caddymodule.RefusedClient{hammer, hostile},
					Early: []caddymodule.RefusedClient{hammer}, InFlight: []caddymodule.BusyClient{{Client: "192.0.2.7", InFlight: 12}},
				},
				{Name: "api", Mode: "observe", Refused: []caddymodule.RefusedClient{hammer}},
			},
			Zones: []caddymodule.WhoZone{{Name: "per_client", Refused: []caddymodule.RefusedClient{hostile}}},
		}, `
REFUSED BY  CLIENT             LAST MINUTE  PER SECOND  LAST REASON  CLASS    AGENT
shop        192.0.2.7          5400         90.0        early        default  curl
shop        "\x1b[2J\u009b1m"  3            0.1         quota                 other

EARLY AT  CLIENT     LAST MINUTE  PER SECOND  LAST REASON  CLASS    AGENT
shop      192.0.2.7  5400         90.0        early        default  curl

IN FLIGHT AT  CLIENT     REQUESTS
shop          192.0.2.7  12

REFUSED BY      CLIENT     LAST MINUTE  PER SECOND  LAST REASON  CLASS    AGENT
api (observes)  192.0.2.7  5400         90.0        early        default  curl

REFUSED BY ZONE  CLIENT             LAST MINUTE  PER SECOND  LAST REASON  CLASS  AGENT
per_client       "\x1b[2J\u009b1m"  3            0.1         quota               other
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
