package pushback

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	ticketSecret = []byte("sixteen bytes at least")
	alice        = []byte("192.0.2.7")
	bob          = []byte("192.0.2.8")

	noon = time.Unix(1_790_000_000, 0)
)

// tickets makes and redeems those of one secret.
type tickets struct {
	promises promises
	secret   []byte
}

func newTickets() *tickets { return &tickets{secret: ticketSecret} }

func (t *tickets) text(client []byte, due time.Time) string { return ticketOf(t.secret, client, due) }

func (t *tickets) redeem(now time.Time, client []byte, text string) (due time.Time, err error) {
	wait, mark, err := checkTicket(t.secret, now, client, text)
	if at := now.Sub(noon) + time.Hour; err == nil && !t.promises.once(at, mark, at+wait+clockSkew) {
		err = errWorthless
	}
	return now.Add(wait), err
}

// A ticket is good for its client, in its time, once; whatever else is brought is worth nothing,
// and uses nothing up.
func TestWhenATicketIsGood(t *testing.T) {
	text := newTickets().text(alice, noon)
	foreign := &tickets{secret: []byte("sixteen bytes at most.")}
	for _, c := range []struct {
		story  string
		client []byte
		text   string
		after  time.Duration // now, after it is due
		want   error
	}{
		{"from before the clock was set back", alice, text, -maxTicketAhead - time.Microsecond, errWorthless},
		{"as far ahead as can be", alice, text, -maxTicketAhead, errEarly},
		{"early", alice, text, -clockSkew - time.Microsecond, errEarly},
		{"early by less than clocks differ", alice, text, -clockSkew, nil},
		{"on time", alice, text, 0, nil},
		{"late", alice, text, ticketGrace, nil},
		{"too late", alice, text, ticketGrace + time.Microsecond, errWorthless},
		{"another client's", bob, text, 0, errWorthless},
		{"another client's, early", bob, text, -10 * time.Second, errWorthless},
		{"without a name", nil, text, 0, errWorthless},
		{"a longer name", append(alice[:len(alice):len(alice)], 0), text, 0, errWorthless},
		{"of another secret", alice, foreign.text(alice, noon), 0, errWorthless},
		{"none", alice, "", 0, errWorthless},
		{"shorter", alice, text[1:], 0, errWorthless},
		{"longer", alice, text + "A", 0, errWorthless},
		{"padded", alice, text[:ticketLen-1] + "=", 0, errWorthless},
		{"a line break", alice, text[:ticketLen-2] + "\r\n", 0, errWorthless},
		{"of no letters", alice, strings.Repeat("\n", ticketLen), 0, errWorthless},
	} {
		used := newTickets()
		due, err := used.redeem(noon.Add(c.after), c.client, c.text)
		if err != c.want || err != errWorthless && !due.Equal(noon) {
			t.Errorf("%s: %v, %v; want %v", c.story, due, err, c.want)
		}
		again := c.want
		if again == nil {
			again = errWorthless
		}
		if _, err := used.redeem(noon.Add(c.after), c.client, c.text); err != again {
			t.Errorf("%s, again: %v; want %v", c.story, err, again)
		}
		if _, err := used.redeem(noon, alice, text); (err == nil) != (c.want != nil) {
			t.Errorf("%s, then on time: %v", c.story, err)
		}
	}
}

// When no more can be remembered, what was used stays used, and the rest are not taken, until those are too old.
func TestFullMemoryIsSafe(t *testing.T) {
	used := newTickets()
	used.promises.resize(MinMaxClients)
	taken := map[string]bool{}
	for range 2 {
		for i := range 2 * MinMaxClients {
			text := used.text(alice, noon.Add(time.Duration(i)*time.Microsecond))
			if _, err := used.redeem(noon, alice, text); err == nil && taken[text] {
				t.Fatalf("ticket %d is taken twice", i)
			} else if err == nil {
				taken[text] = true
			}
		}
	}
	if len(taken) < MinMaxClients*9/10 || len(taken) > MinMaxClients {
		t.Errorf("%d tickets are taken", len(taken))
	}
	later := noon.Add(ticketGrace + 2*clockSkew)
	if _, err := used.redeem(later, alice, used.text(alice, later)); err != nil {
		t.Errorf("a minute later: %v", err)
	}
}

// Tickets that are used leave room for what others are promised.
func TestUsedTicketsTakeNoRoom(t *testing.T) {
	var a Appointments
	a.Resize(MinMaxClients)
	terms := termsOf(t, ResponseConfig{})
	terms.Secret, terms.Wall = ticketSecret, func(now time.Duration) time.Time { return noon.Add(now) }
	for i := range uint64(2 * MinMaxClients) {
		now, id := time.Duration(i)*time.Millisecond, fmt.Append(nil, i)
		c := Caller{Key: 1<<40 + i, ID: id, Ticket: ticketOf(ticketSecret, id, noon.Add(now))}
		a.Arrive(now, &c, terms, 100, false, new(Visit))
	}
	now, known := 2*MinMaxClients*time.Millisecond, 0
	for key := range uint64(MinMaxClients / 2) {
		a.Reject(now, &Caller{Key: 1 + key}, new(Visit), terms, Supply{Rate: 1000}, new(Told))
	}
	for key := range uint64(MinMaxClients / 2) {
		known += a.Client(now, 1+key).Promises
	}
	if known < MinMaxClients*9/20 {
		t.Errorf("%d of %d promises are remembered", known, MinMaxClients/2)
	}
}

// One ticket that is brought to many goroutines at once is taken once.
func TestConcurrentRedeem(t *testing.T) {
	used := newTickets()
	var accepted [200]atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range accepted {
				client, due := fmt.Appendf(nil, "client %d", i), noon.Add(time.Duration(i)*300*ms) // across a border
				if _, err := used.redeem(due, client, used.text(client, due)); err == nil {
					accepted[i].Add(1)
				}
			}
		})
	}
	wg.Wait()
	for i := range accepted {
		if n := accepted[i].Load(); n != 1 {
			t.Errorf("the ticket of client %d was taken %d times", i, n)
		}
	}
}

// FuzzRedeem brings any text: only what is made for the bearer is good.
func FuzzRedeem(f *testing.F) {
	for _, client := range []string{"", "192.0.2.7", "2001:db8::/64"} {
		text := newTickets().text([]byte(client), noon)
		for _, text := range []string{text, text[:ticketLen-1] + "A", text[:ticketLen-2] + "\r\n", text + "A"} {
			f.Add(text, client)
		}
	}
	f.Fuzz(func(t *testing.T, text, bearer string) {
		used := newTickets()
		if due, err := used.redeem(noon, []byte(bearer), text); err != errWorthless {
			if made := used.text([]byte(bearer), due); made != text {
				t.Fatalf("%q is good for %v; that is %q", text, due, made)
			}
		}
	})
}

const ticket = "AZaz09-_.~+/="

// A ticket is a cookie: browsers bring back nothing else, and logs leave cookies out. The
// parts of a page get none, which would replace the ticket of the page, but scripts that ask.
func TestTicketCookie(t *testing.T) {
	withTicket := overload
	withTicket.Ticket = ticket
	never := neverOverload
	never.Ticket = ticket

	const html = "Accept: text/html"
	encrypted := request("GET", html)
	encrypted.TLS = new(tls.ConnectionState)
	const cookie = "shield_retry=" + ticket + "; Path=/; Max-Age=66; HttpOnly; SameSite=Lax"
	for _, c := range []struct {
		story string
		r     *http.Request
		f     Rejection
		want  string // "": none
	}{
		{"a navigation", request("GET", html), withTicket, cookie},
		{"over TLS", encrypted, withTicket, cookie + "; Secure"},
		{"a form", request("POST", "Sec-Fetch-Mode: navigate"), withTicket, cookie},
		{"a program", request("GET"), withTicket, cookie},
		{"gRPC", request("POST", "Content-Type: application/grpc"), withTicket, cookie},
		{"a script that asks", request("GET", "Sec-Fetch-Mode: cors", "Shield-Retry: yes"), withTicket, cookie},
		{"fetch()", request("GET", "Sec-Fetch-Mode: cors", html), withTicket, ""},
		{"no ticket", request("GET", html, "Shield-Retry: yes"), overload, ""},
		{"never", request("GET", html), never, ""},
	} {
		t.Run(c.story, func(t *testing.T) {
			w := answer(mustNew(t, ResponseConfig{}), c.r, c.f)
			got := w.Header()["Set-Cookie"]
			if c.want == "" {
				if got != nil {
					t.Errorf("%q, want none", got)
				}
				return
			}
			if !slices.Equal(got, []string{c.want}) {
				t.Fatalf("%q, want %q", got, c.want)
			}
			parsed, err := http.ParseSetCookie(got[0])
			if err != nil {
				t.Fatal(err)
			}
			back := request("GET")
			back.AddCookie(parsed)
			if TicketOf(back) != ticket {
				t.Errorf("%q brings back %q", back.Header, TicketOf(back))
			}
		})
	}
}

// The cookies of others stay, and where error routes fall back on Write after
// SetHeader, there is still one ticket.
func TestTicketCookieAmongOthers(t *testing.T) {
	a, w, r, f := mustNew(t, ResponseConfig{}), httptest.NewRecorder(), request("GET", "Accept: text/html"), overload
	w.Header()["Set-Cookie"] = []string{"session=1", "shield_retry_not=2"}
	f.Ticket = "first"
	a.SetHeader(w, r, f)
	f.Ticket = "second"
	a.Write(w, r, f, time.Now())
	got := w.Header()["Set-Cookie"]
	if len(got) != 3 || got[0] != "session=1" || got[1] != "shield_retry_not=2" || !strings.HasPrefix(got[2], "shield_retry=second;") {
		t.Errorf("%q", got)
	}
}

func TestTicketOf(t *testing.T) {
	for _, c := range []struct {
		headers []string
		want    string
	}{
		{nil, ""},
		{[]string{"Shield-Retry: yes"}, ""},
		{[]string{"Cookie: " + strings.Repeat("name=value; ", 20)}, ""},
		{[]string{"Cookie: shield_retry=" + ticket}, ticket},
		{[]string{"Cookie: a=b; shield_retry=abc; c=d"}, "abc"},
		{[]string{"Cookie: a=b", "Cookie: shield_retry=abc;shield_retry=def"}, "abc"},
		{[]string{"Cookie: xshield_retry=abc; shield_retryx=abc"}, ""},
		{[]string{"Cookie: shield_retry=; shield_retry; =; ;;"}, ""},
	} {
		r := request("GET", c.headers...)
		if got := TicketOf(r); got != c.want {
			t.Errorf("%q: %q, want %q", c.headers, got, c.want)
		}
		if n := testing.AllocsPerRun(100, func() { TicketOf(r) }); n > 0 {
			t.Errorf("%q: %v allocations", c.headers, n)
		}
	}
}
