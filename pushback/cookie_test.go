package pushback

import (
	"crypto/tls"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

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

// The client of docs/answers.md begins here. TestGoInDocs of caddymodule compares them.

// Do sends r, which has no body, until it is admitted, is told never to come
// back, or its context ends. The cookie jar of c keeps the ticket, if there is one.
func Do(c *http.Client, r *http.Request) (*http.Response, error) {
	r.Header.Set("Shield-Retry", "yes") // it reads milliseconds
	for {
		resp, err := c.Do(r.Clone(r.Context())) // the jar adds to the header
		if err != nil {
			return nil, err
		}
		wait, err := time.ParseDuration(resp.Header.Get("Retry-After-Ms") + "ms")
		if err != nil {
			return resp, nil // admitted, or never to come back
		}
		resp.Body.Close()
		select {
		case <-time.After(wait):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

// roundTripper answers requests without a network.
type roundTripper func(*http.Request) *http.Response

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r), nil }

// The client of the documentation comes in its slot, to the millisecond, with its ticket.
func TestClientComesWhenTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		a := mustNew(t, ResponseConfig{})
		var came []time.Duration
		var brought []string
		answers := []Rejection{
			{Policy: -1, Hint: hintOf(7, 6420), Ticket: "first"},
			{Policy: -1, Hint: hintOf(15, 15_000), Ticket: "second"},
			{Policy: 0, Hint: Hint{Never: true}},
		}
		jar, err := cookiejar.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		c := &http.Client{Jar: jar, Transport: roundTripper(func(r *http.Request) *http.Response {
			came, brought = append(came, time.Since(start)), append(brought, TicketOf(r))
			if !Precise(r) {
				t.Error("the client does not say that it reads milliseconds")
			}
			w := answer(a, r, answers[len(came)-1])
			return w.Result()
		})}
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://shielded.test/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := Do(c, r)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != 429 || len(came) != 3 {
			t.Fatalf("status %d after %v, want 429 at the third time", resp.StatusCode, came)
		}
		if late := came[1] - 6420*ms; late < -time.Microsecond || late > time.Microsecond { // floating point
			t.Errorf("it came at %v, want 6.42s", came[1])
		}
		if late := came[2] - came[1] - 15*time.Second; late < -time.Microsecond || late > time.Microsecond {
			t.Errorf("it came %v later, want 15s", came[2]-came[1])
		}
		if !slices.Equal(brought, []string{"", "first", "second"}) {
			t.Errorf("it brought %q", brought)
		}
	})
}
