package pushback

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Shield-Retry is a Dictionary of RFC 9651 for clients that know this project.
// It says what Retry-After has no room for:
//
//	after=6.42, grace=5.0, mode=slot           come in 6.42 s
//	after=15.0, mode=window, window=14.5       come at any time from 15 s on, for 14.5 s
//	mode=never                                 do not come back
//
// The first two may end in ticket="...", to be sent back in the request's own
// Shield-Retry. A request asks for the field by having one, whatever is in it.

const (
	// onTime is how late a client should come at most, as the member grace says
	// it. Ours: what delays a client that means to be on time is a round trip
	// and its own timers. A Ledger is more patient.
	onTime = 5 * time.Second

	// cookieKept is how long after its time a browser keeps its ticket. Ours:
	// as long as a Ledger is patient. An old ticket is worth nothing anyway.
	cookieKept = time.Minute
)

// ReadsShieldRetry reports whether the client knows Shield-Retry. It then reads
// milliseconds.
func ReadsShieldRetry(r *http.Request) bool { return len(r.Header["Shield-Retry"]) > 0 }

// shieldRetry returns the field's value, as RFC 9651, section 4.1, serialises
// it.
func shieldRetry(f Refusal) string {
	if f.Hint.Never {
		return "mode=never"
	}
	var room [64 + len(`, ticket=""`) + maxTicket]byte
	b := appendSeconds(append(room[:0], "after="...), int64(f.Hint.Ms))
	if f.Window > 0 {
		b = appendSeconds(append(b, ", mode=window, window="...), f.Window.Milliseconds())
	} else {
		b = append(appendSeconds(append(b, ", grace="...), onTime.Milliseconds()), ", mode=slot"...)
	}
	if f.Ticket != "" {
		b = append(append(append(b, `, ticket="`...), f.Ticket...), '"')
	}
	return string(b)
}

// appendSeconds appends ms milliseconds as the seconds of a Decimal: one digit
// of fraction at least, and no more zeros at its end (RFC 9651, section 4.1.5).
func appendSeconds(b []byte, ms int64) []byte {
	b = strconv.AppendInt(b, ms/1000, 10)
	b = append(b, '.', '0'+byte(ms/100%10))
	if ms%100 != 0 {
		b = append(b, '0'+byte(ms/10%10))
	}
	if ms%10 != 0 {
		b = append(b, '0'+byte(ms%10))
	}
	return b
}

// ticketCookie is where a browser keeps its ticket.
const ticketCookie = "shield_retry"

// setTicketCookie gives a browser its ticket. It replaces one that is there
// already, and leaves the cookies of others alone. Lax: the ticket comes along
// when a person follows a link to the site, and nothing else from elsewhere
// needs it.
func setTicketCookie(h http.Header, r *http.Request, f Refusal) {
	age := f.Hint.Seconds + int((f.Window+cookieKept+time.Second-1)/time.Second)
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

// maxTicket bounds what is read as a ticket, in bytes.
const maxTicket = 128

// TicketOf returns the ticket that a request brings back in its Shield-Retry
// field or else in its cookie, or "". Whether the ticket is worth anything, it
// does not say: only that it looks like one. It does not allocate.
func TicketOf(r *http.Request) string {
	ticket := ""
	for _, field := range r.Header["Shield-Retry"] {
		if t, found := ticketInField(field); found {
			ticket = t // of several the last: RFC 9651, section 3.2
		}
	}
	if ticket != "" {
		return ticket
	}
	for _, field := range r.Header["Cookie"] {
		if t := ticketInCookies(field); t != "" {
			return t
		}
	}
	return ""
}

// ticketInField returns the String ticket of a Dictionary, and whether it has a
// member of that name. It reads every Dictionary right; of what is none it may
// read a part.
func ticketInField(field string) (ticket string, found bool) {
	for field != "" {
		var member string
		member, field = cutMember(field)
		member = strings.Trim(member, " \t")
		key := member
		if end := strings.IndexAny(member, "=;"); end >= 0 {
			key = member[:end]
		}
		if key == "ticket" {
			ticket, found = ticketInItem(member[len(key):]), true
		}
	}
	return ticket, found
}

// cutMember cuts a Dictionary or its rest at the first comma that is not in a
// String or Display String. Only in the former does a backslash hide the next
// byte.
func cutMember(field string) (member, rest string) {
	for i := 0; i < len(field); i++ {
		switch field[i] {
		case ',':
			return field[:i], field[i+1:]
		case '"':
			display := i > 0 && field[i-1] == '%'
			for i++; i < len(field) && field[i] != '"'; i++ {
				if field[i] == '\\' && !display {
					i++
				}
			}
		}
	}
	return field, ""
}

// ticketInItem returns the ticket in what follows the key of a member: = and a
// String, perhaps with parameters.
func ticketInItem(item string) string {
	s, isString := strings.CutPrefix(item, `="`)
	ticket, parameters, closed := strings.Cut(s, `"`)
	if !isString || !closed || parameters != "" && parameters[0] != ';' || !looksLikeTicket(ticket) {
		return ""
	}
	return ticket
}

// ticketInCookies returns the first ticket in a Cookie field (RFC 6265, section
// 5.4): the one of the longest path.
func ticketInCookies(field string) string {
	const space = " \t\r\n"
	if !strings.Contains(field, ticketCookie) {
		return "" // as a rule
	}
	for field != "" {
		var pair string
		pair, field, _ = strings.Cut(field, ";")
		name, value, _ := strings.Cut(strings.Trim(pair, space), "=")
		if strings.Trim(name, space) != ticketCookie {
			continue
		}
		if n := len(value); n > 1 && value[0] == '"' && value[n-1] == '"' {
			value = value[1 : n-1]
		}
		if looksLikeTicket(value) {
			return value
		}
	}
	return ""
}

// looksLikeTicket reports whether s is of 1 to maxTicket bytes that a token68 may
// have (RFC 9110, section 11.2): they can stand in a String and in a cookie alike.
func looksLikeTicket(s string) bool {
	if s == "" || len(s) > maxTicket {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("-._~+/=", c) >= 0:
		default:
			return false
		}
	}
	return true
}
