package realclients

import (
	"context"
	"encoding/base64"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/lab/must"
)

// A client's slot is the time at which its rejection was sent, plus what the
// rejection told it to wait. Coming before is the client's or the server's fault.
// Coming after may be the machine's, where others work too: of three attempts one
// has to come within late, and all within tooLate.
const (
	early    = 20 * time.Millisecond // timers of JavaScript are up to 1 ms early
	late     = 150 * time.Millisecond
	tooLate  = 5 * time.Second
	attempts = 3
	patience = 20 * time.Second
)

// The limits that reject. The longer wait is one that no client would choose on
// its own; see clients.
var limits = []struct {
	name   string
	config shield.Config
	wait   time.Duration // of who comes right after the burst
	status int
	code   codes.Code
}{
	{"capacity-1s", shield.Config{Capacity: limiter.Config{Rate: 1, Burst: 1}}, time.Second, 503, codes.Unavailable},
	{"capacity-2.5s", shield.Config{Capacity: slow}, 2500 * time.Millisecond, 503, codes.Unavailable},
	{"quota-2.5s", shield.Config{Zones: []shield.Zone{{Name: "quota", Limit: slow}}}, 2500 * time.Millisecond, 429, codes.ResourceExhausted},
}

var slow = limiter.Config{Rate: 2, Per: 5 * time.Second, Burst: 1}

// The tests wait nearly all of their time, so all run at once.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(len(clients)*len(limits))); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func TestClientsKeepTheirAppointments(t *testing.T) {
	places := map[string]*place{}
	var all []*place
	name := func(client, limit string, attempt int) string { return fmt.Sprintf("%s/%s/%d", client, limit, attempt) }
	for _, c := range clients {
		for _, l := range limits {
			for i := range attempts {
				p := &place{name: name(c.name, l.name, i), config: l.config}
				places[p.name] = p
				all = append(all, p)
			}
		}
	}
	server := serve(t, all)
	for _, c := range clients {
		for _, l := range limits {
			t.Run(c.name+"/"+l.name, func(t *testing.T) {
				t.Parallel()
				for i := range attempts {
					p := places[name(c.name, l.name, i)]
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					err := c.run(ctx, t, server+"/"+p.name)
					cancel()
					if lateness := keeps(t, p, err, c, l.status, l.code, l.wait); lateness <= late {
						return
					}
				}
				t.Errorf("came more than %v late each time", late)
			})
		}
	}
}

// keeps checks a client's two visits, of which the first was rejected and the
// second admitted, and returns how much after its slot the client came. On a
// machine that is so slow that no request was rejected, it returns how slow.
func keeps(t *testing.T, p *place, failed error, c client, rejected int, code codes.Code, wait time.Duration) (lateness time.Duration) {
	t.Helper()
	visits, filled, err := p.visited()
	must.Do(t, err)
	if failed == nil && len(visits) == 1 && visits[0].arrived.Sub(filled) > wait {
		lateness = visits[0].arrived.Sub(filled)
		t.Logf("not rejected: the machine took %v to come after the burst", lateness)
		return lateness
	}
	if failed != nil || len(visits) != 2 {
		for _, v := range visits {
			t.Logf("%s to %s: %d %v", v.arrived.Format(time.StampMilli), v.sent.Format(time.StampMilli), v.status, v.header)
		}
		t.Fatalf("%d visits, want one that is rejected and one that is admitted; the client says: %v", len(visits), failed)
	}
	first, second := visits[0], visits[1]
	var told time.Duration
	if c.grpc {
		told, err = pushback(first, code)
	} else {
		told, err = retryAfter(first, rejected)
	}
	must.Do(t, err)
	if second.status != http.StatusOK {
		t.Fatalf("came back and was told %d, want 200", second.status)
	}
	held := first.sent.Sub(first.arrived)
	lateness = second.arrived.Sub(first.sent.Add(told))
	t.Logf("held %v, told %v, came %v after its slot", held, told, lateness)
	if slot := held + told; slot > 2*wait+time.Second { // others may have come before, and seconds are whole
		t.Errorf("its slot was %v away, want about %v", slot, wait)
	}
	if lateness < -early {
		t.Fatalf("came %v before its slot", -lateness)
	}
	if lateness > tooLate {
		t.Fatalf("came %v after its slot", lateness)
	}
	return lateness
}

// retryAfter returns what a rejection told an HTTP client.
func retryAfter(v visit, want int) (time.Duration, error) {
	told := v.header["Retry-After"]
	if v.status != want || len(told) != 1 {
		return 0, fmt.Errorf("rejected by a %d with Retry-After: %q; want %d and one value", v.status, told, want)
	}
	s, err := strconv.Atoi(told[0])
	if err != nil || s < 1 {
		return 0, fmt.Errorf("Retry-After: %q", told[0])
	}
	return time.Duration(s) * time.Second, nil
}

// pushback returns what a rejection told a gRPC client, in both its forms.
func pushback(v visit, want codes.Code) (time.Duration, error) {
	told, code := v.header["Grpc-Retry-Pushback-Ms"], v.header.Get("Grpc-Status")
	if v.status != http.StatusOK || code != strconv.Itoa(int(want)) || len(told) != 1 {
		return 0, fmt.Errorf("rejected by a %d with gRPC status %q and pushback %q; want 200, %d and one value", v.status, code, told, want)
	}
	ms, err := strconv.Atoi(told[0])
	if err != nil {
		return 0, err
	}
	wait := time.Duration(ms) * time.Millisecond

	b, err := base64.RawStdEncoding.DecodeString(v.header.Get("Grpc-Status-Details-Bin"))
	if err != nil {
		return 0, err
	}
	var s spb.Status
	if err := proto.Unmarshal(b, &s); err != nil {
		return 0, err
	}
	details := status.FromProto(&s).Details()
	if len(details) != 1 {
		return 0, fmt.Errorf("details %v, want one", details)
	}
	if info, ok := details[0].(*errdetails.RetryInfo); !ok || info.RetryDelay.AsDuration() != wait {
		return 0, fmt.Errorf("details %v, want RetryInfo with %v", details, wait)
	}
	return wait, nil
}
