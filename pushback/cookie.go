package pushback

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ticketCookie is the cookie with a client's ticket.
const ticketCookie = "shield_retry"

// keepsTicket reports whether r gets a ticket. A browser fetches the parts of a page after
// it, and their tickets would replace the page's. A script may ask for its own.
func keepsTicket(r *http.Request) bool {
	mode := r.Header["Sec-Fetch-Mode"]
	return len(mode) == 0 || mode[0] == "navigate" || len(r.Header["Shield-Retry"]) > 0
}

// setTicketCookie gives a client its ticket. It replaces an earlier ticket, and leaves
// other cookies alone. With SameSite=Lax the ticket is sent when a person follows a link
// to the site, and no other cross-site request needs it.
func setTicketCookie(h http.Header, r *http.Request, f Rejection) {
	age := f.Hint.Seconds + int(ticketGrace/time.Second)
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
