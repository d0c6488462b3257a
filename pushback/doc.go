// Package pushback prevents thundering herds: it gives each rejected client its own
// Retry-After (an appointment), and knows which clients keep theirs. It does not decide
// whether a request is admitted, and reads no clock: now is the time since an epoch that the
// caller keeps.
//
//	Line      when: seconds with room for as many clients as the backend can spare
//	promises  what each client was told, in 16 bytes
//	groups    the same for many clients behind one key, by the quarter of a second
//	tickets   the same, signed, for the client to carry
//	herds     detection of clients that come together, and their period
//	Responses   the wording: HTTP, a page for browsers, gRPC
//
// [Appointments] composes all but the last.
//
// # The laws
//
//  1. Line. A rejected client gets the first second with room, from a second ahead on, since
//     none can be back sooner. A second has room for 0.98 of the rate, less the base load: new
//     clients that come anyway, as far as such clients come back, and known ones.
//  2. Kept. A slot counts as the share of promises that is kept, measured for new clients and
//     for proven ones, so that a flood that never returns takes little room. More new clients
//     than usual are not judged by those before.
//  3. Tail. A client for which there is no second within the longest wait has a number, and
//     asks again after equal times, so that it asks no more often than it must.
//  4. Due. A client whose slot has come takes the next token, and waits for it if that is earned
//     within 150 ms, or is the very next one, within a second. If it is rejected all the same, it
//     gets the next second with room.
//  5. Early. While the line is longer than two seconds, a client that comes before its time
//     hears the same time, so hammering gains nothing.
//  6. Key. A key is a short list of times. One that comes before it can have heard is one more
//     client behind the key; from nine on they are a group.
//  7. Group. An arrival has the earliest time that has come; all groups together have at most
//     half of the slots, and leave half of the burst, so that a few addresses leave the other half to the rest.
//  8. Known. A client that was admitted while others wait goes before new ones, and after those that
//     are due: it waits for its token two thirds as long. So do four requests in quick succession,
//     the calls of a task, which go in the queue like one that is due, then one every four seconds,
//     the pages of a visit, for a minute after the last.
//
// For example, a backend does 100/s with a burst of 10, and 40 clients come at once. Ten are
// admitted. Seconds have room for 98, so the n-th that is rejected is told 1 s + (n-1)/98 s:
// the tenth 1.09 s. Its response is held back for 0.09 s and says 1.
//
// # What a response says, and why
//
// Retry-After is always delay-seconds (RFC 9110, section 10.2.3): an integer
// from 1 to 59, rounded up. A fraction makes urllib3 raise and client-go give
// up; a date brings clients back up to a second early; 0 makes half of all
// clients retry at once; 60 or more makes the Azure SDKs give up. The exact
// wait goes into Retry-After-Ms, which the OpenAI, Anthropic and Azure SDKs
// read, and into grpc-retry-pushback-ms (gRPC proposal A6).
//
// RateLimit and RateLimit-Policy follow draft-ietf-httpapi-ratelimit-headers-11.
// Bodies are problem details (RFC 9457) with the problem types of that draft.
// Browsers obey neither header; they obey Refresh, so a navigation gets a small
// page that reloads itself in time. gRPC clients obey their pushback only in a
// Trailers-Only response, so that is what they get.
//
// A client that is told never to come back gets no time, X-Should-Retry: false, and a
// negative pushback.
//
// Clients that keep cookies may carry tickets: see [TicketOf]. Clients that are admitted while
// others wait can be warned: see [Responses.Warn].
//
// No response may be stored (RFC 6585, section 4, for 429; the same holds for
// 503): every one says no-store.
package pushback
