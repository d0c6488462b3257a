// Package pushback prevents thundering herds. If a thousand clients are rejected together and all get the
// same Retry-After, they return together and are rejected again. Instead, pushback gives each of them its own
// time, an appointment, and notices who keeps it. The caller decides which requests are admitted, and passes
// the time in: now is the time since an epoch of its choice, so tests and simulations need no clock.
//
//	Line       seconds with room for as many clients as the backend can spare
//	promises   the time each client got, in 16 bytes
//	groups     the same for many clients behind one key, by the quarter of a second
//	tickets    the same, signed, for the client to carry
//	herds      finds clients arriving together, and their period
//	Responses  writes rejections: HTTP, a page for browsers, gRPC
//
// [Appointments] combines all but the last.
//
// # The laws
//
//  1. Line. A rejected client gets the first second with room, starting one second ahead, because nobody
//     can be back sooner. Each second has room for 0.98 of the rate, minus the base load: known clients,
//     and new ones arriving anyway, as far as such clients return.
//  2. Kept. An appointment takes only as much room as clients tend to keep theirs, measured for new and for
//     proven clients, so a flood that never returns takes little. If more new clients arrive than usual,
//     earlier ones don't count as evidence about them.
//  3. Tail. If there's no room within the longest wait, the client gets a number instead, and asks again
//     after equal times, no more often than necessary. If those with numbers stop coming, further numbers
//     are served. As long as there are more numbers before it than the whole backend serves within half
//     of the longest wait, it's hopeless: new clients go first, and it leaves half of the burst to them.
//  4. Due. A client whose time has come takes the next token. It waits for the token if that's earned
//     within 150 ms, or within a second if it's the very next one. If it's rejected all the same, it gets
//     the next second with room.
//  5. Early. While the line is longer than two seconds, a client returning before its time gets the same
//     time again, so hammering gains nothing.
//  6. Key. Under each key there is a short list of times. A request arriving sooner than its client can have
//     received its time must be from another client behind the same key. From nine clients on, they're a group.
//  7. Group. An arrival uses the group's earliest time that has come. All groups together have at most half of
//     the appointments and leave half of the burst, so a few shared addresses can't take everything.
//  8. Known. A client admitted while others wait goes after those that are due and before new ones: it waits
//     for its token two thirds as long. For a minute after its last request, this also covers four requests
//     in quick succession, such as the calls of a task, which are queued like one that's due,
//     and then one every four seconds, such as the pages of a visit.
//
// For example, a backend can do 100/s with a burst of 10, and 40 clients arrive together. Ten are
// admitted. Each second has room for 98, so the n-th rejected client gets 1 s + (n-1)/98 s, and the tenth
// gets 1.09 s. shield delays its response for 0.09 s and then says 1.
//
// # What a response says, and why
//
// Retry-After is always a whole number from 1 to 59, rounded up (delay-seconds of RFC 9110, section 10.2.3).
// With a fraction, urllib3 raises and client-go gives up. A date brings clients back up to a second early,
// 0 makes half of all clients retry immediately, and from 60 on the Azure SDKs give up. The exact wait is in
// Retry-After-Ms, which the OpenAI, Anthropic and Azure SDKs read, and in grpc-retry-pushback-ms (gRPC
// proposal A6).
//
// RateLimit and RateLimit-Policy follow draft-ietf-httpapi-ratelimit-headers-11, and bodies are problem
// details (RFC 9457) with that draft's problem types. Browsers obey neither header but do obey Refresh, so a
// navigation gets a small page that reloads itself on time. gRPC clients look for pushback only in a
// Trailers-Only response, so that's what they get.
//
// A client that should never return gets no time, X-Should-Retry: false, and a negative pushback.
//
// Clients that keep cookies can carry tickets: see [TicketOf]. Clients admitted while others wait can be
// warned: see [Responses.Warn].
//
// Every response says no-store, as RFC 6585, section 4, requires for 429 and as makes sense for 503.
package pushback
