package pushback

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
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
