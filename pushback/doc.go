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
// The rules are in docs/reference/rules.md, with an example in numbers: 3 to 5 and 12 to 14 say who is let in, and 19 to 26
// when the others return. CONTRIBUTING.md lists their tests.
//
// # What a response says, and why
//
// Retry-After is a whole number, rounded up, from 1 to 59 unless it is for a quota or a block (delay-seconds of RFC 9110, section 10.2.3).
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
