// Package pushback prevents thundering herds: it gives each rejected client its own
// Retry-After (an appointment), and knows which clients keep theirs.
//
//	Calendar  when: slots in the rate that the backend can spare, and a queue
//	Ledger    what each client was promised, in 16 bytes
//	Tickets   the same, signed, for the client to carry
//	Herd      detection of clients that come together, and their period
//	Answers   the wording: HTTP, a page for browsers, gRPC
//
// [Appointments] composes all but the last.
//
// All but Answers are plain state and arithmetic: now is the time since an epoch
// that the caller keeps, and nothing here reads a clock.
//
// # What an answer says, and why
//
// Retry-After is always delay-seconds (RFC 9110, section 10.2.3): an integer
// from 1 to 59, rounded up. A fraction makes urllib3 raise and client-go give
// up; a date brings clients back up to a second early; 0 makes half of all
// clients retry at once; 60 or more makes the Azure SDKs give up. The exact
// wait goes into Retry-After-Ms, which the OpenAI, Anthropic and Azure SDKs
// read, and into grpc-retry-pushback-ms (gRPC proposal A6).
//
// RateLimit and RateLimit-Policy follow draft-ietf-httpapi-ratelimit-headers-10.
// Bodies are problem details (RFC 9457) with the problem types of that draft.
// Browsers obey neither header; they obey Refresh, so a navigation gets a small
// page that reloads itself in time. gRPC clients obey their pushback only in a
// Trailers-Only response, so that is what they get.
//
// A client that is told never to come back gets no time, X-Should-Retry: false, and a
// negative pushback.
//
// Clients that know this project ask for Shield-Retry, a Dictionary of RFC 9651 with
// milliseconds, windows and tickets: see [TicketOf]. Clients that are admitted while
// others wait can be warned: see [Answers.Warn].
//
// No answer may be stored (RFC 6585, section 4, for 429; the same holds for
// 503): every one says no-store.
package pushback
