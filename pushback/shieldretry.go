package pushback

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Shield-Retry is a Dictionary of RFC 9651 for clients that know this project. It says
// more than Retry-After can:
//
//	after=6.42, grace=5.0, mode=slot    come in 6.42 s
//	mode=never                          do not come back
//
// A request asks for the field by having one, with any content. Tickets are not in it:
// they are cookies, which servers keep out of their access logs.

const (
	// slotGrace says how late a client should come at most. Ours: more than a round trip and
	// timers delay it, and less than its promise lasts.
	slotGrace = ", grace=5.0, mode=slot"

	// cookieGrace is how long after its time a client keeps its ticket. Ours: as long as it
	// is worth anything.
	cookieGrace = time.Minute
)

// ReadsShieldRetry reports whether the client knows Shield-Retry. It then reads
// milliseconds.
func ReadsShieldRetry(r *http.Request) bool { return len(r.Header["Shield-Retry"]) > 0 }

// shieldRetry returns the field's value, as RFC 9651, section 4.1, serialises it.
func shieldRetry(f Rejection) string {
	if f.Hint.Never {
		return "mode=never"
	}
	var buf [64]byte
	b := strconv.AppendFloat(append(buf[:0], "after="...), float64(f.Hint.Ms)/1000, 'f', -1, 64)
	if f.Hint.Ms%1000 == 0 { // a Decimal has a fraction
		b = append(b, ".0"...)
	}
	return string(append(b, slotGrace...))
}

// ticketCookie is the cookie with a client's ticket.
const ticketCookie = "shield_retry"

// keepsTicket reports whether r gets a ticket. A browser fetches the parts of a page after
// it, and their tickets would replace the page's. A script may ask for its own.
func keepsTicket(r *http.Request) bool {
	mode := r.Header["Sec-Fetch-Mode"]
	return len(mode) == 0 || mode[0] == "navigate" || ReadsShieldRetry(r)
}

// setTicketCookie gives a client its ticket. It replaces an earlier ticket, and leaves
// other cookies alone. With SameSite=Lax the ticket is sent when a person follows a link
// to the site, and no other cross-site request needs it.
func setTicketCookie(h http.Header, r *http.Request, f Rejection) {
	age := f.Hint.Seconds + int(cookieGrace/time.Second)
	cookie := ticketCookie + "=" + f.Ticket + "; Path=/; Max-Age=" + strconv.Itoa(age) + "; HttpOnly; SameSite=Lax"
	if r.TLS != nil {
		cookie += "; Secure"
	}
	cookies := h["Set-Cookie"]
	for i, c := range cookies {
		if strings.HasPrefix(c, ticketCookie+"=") {
			cookies[i] = cookie
			return
		}
	}
	h["Set-Cookie"] = append(cookies, cookie)
}

// TicketOf returns the ticket in a request's cookies, or "": of several the first, which is
// that of the longest path (RFC 6265, section 5.4). Any text may be there: Appointments finds out
// whether it is a ticket. It does not allocate.
func TicketOf(r *http.Request) string {
	for _, field := range r.Header["Cookie"] {
		if !strings.Contains(field, ticketCookie) {
			continue // the usual case
		}
		for pair := range strings.SplitSeq(field, ";") {
			if name, value, _ := strings.Cut(strings.Trim(pair, " \t"), "="); name == ticketCookie && value != "" {
				return value
			}
		}
	}
	return ""
}
