package caddymodule

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// Rate is a token bucket: how much may come, and how much at once.
type Rate struct {
	// How many requests are allowed per `per`: more than 0. Required.
	Rate float64 `json:"rate,omitempty" caddyfile:"-"`

	// The period of the rate (default `1s`).
	Per *caddy.Duration `json:"per,omitempty" caddyfile:"-"`

	// How many requests may come at once after an idle time: at least 1. The default of a
	// zone is what `rate` says, such as 100 for 100 per minute. That of a capacity is what a
	// tenth of a second allows, and at least 10, but not more than one second allows.
	Burst *int `json:"burst,omitempty"`
}

// Zone is a quota for each client. A client over its quota is answered 429.
//
// Zones with one name count together, in whichever handlers they stand, and
// their counts survive a reload. They must be defined alike.
type Zone struct {
	// The name in metrics and in answers to clients: up to 64 letters, digits and
	// `_-./:`. One zone may have none. Its name is then that of the handler with
	// `/per_client`.
	Name string `json:"name,omitempty" caddyfile:"-"`

	// The requests that the zone counts (default: all). Several matcher sets are
	// alternatives.
	MatcherSetsRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// The template of the key that tells clients apart: text with placeholders
	// (default `{http.vars.client_ip}`). Each word has one. Requests with an empty
	// key share one bucket. A header, cookie or parameter that comes several times
	// counts as empty, and upper and lower case are the same. An unknown placeholder
	// is an error.
	Key string `json:"key,omitempty"`

	// How many bits of an address count, in `{http.vars.client_ip}` and
	// `{http.request.remote.host}`. IPv4: 1 to 32 (default 32). IPv6: 1 to 128
	// (default 64).
	IPv4Prefix *int `json:"ipv4_prefix,omitempty"`
	IPv6Prefix *int `json:"ipv6_prefix,omitempty"`

	ZoneRate `caddyfile:"rate"`

	// What the rate counts (default `requests`): `tokens`, say. It is for people, but for `seconds`, of
	// which parts count.
	Unit string `json:"unit,omitempty"`

	// How much of the burst one request takes: a number up to the burst (default 1), a placeholder, or `auto`:
	// the highest of the last eight costs of its key, or of the zone for a new key; what a key earns in a minute
	// before any is known. If the placeholder has no number, it is 1, and counted. `auto` needs `settle`.
	Cost Amount `json:"cost,omitempty"`

	// Where the response tells what the request has really cost (default: that is `cost`). The difference is
	// taken when it has ended, or given back. A key may owe a burst, or what it earns in an hour if that is more.
	//
	// - `usage`: the tokens that OpenAI's, Anthropic's, Gemini's and Ollama's APIs report, streaming or not
	// - `json <paths...>`: the sum of these fields of the body
	// - `header <name>`, `trailer <name>`
	// - `bytes` of the body, `time`: seconds until the response has ended
	// - `status <codes...>`: `cost` for these statuses, nothing for others
	Settle string `json:"settle,omitempty"`

	// Makes the quota whole again at midnight, or on the first of a month, in place of earning it all the time.
	Calendar *Calendar `json:"calendar,omitempty"`

	// Whether admitted responses tell what is left: `off` (default), `on`: `RateLimit` and `RateLimit-Policy`; or
	// `openai`: also `x-ratelimit-limit-tokens` and the like, with the zone's unit.
	Headers string `json:"headers,omitempty"`

	// How many clients are remembered at most: 10000 to 67108864 (default
	// 200000), at 18 to 32 bytes each. Set it to twice the clients that you
	// expect within the time that an empty bucket takes to refill. Clients over
	// their quota are never forgotten. In a full zone new clients share a bucket.
	MaxKeys *int `json:"max_keys,omitempty"`

	// Whether replicas share the quotas (default true with a store, see [App]). All of
	// them must define the zone alike.
	Shared *bool `json:"shared,omitempty"`
}

// ZoneRate is a rate that a request may carry.
type ZoneRate struct {
	Rate

	// The placeholder of the client's own rate, per `per`. It is at least `min_rate` and at most `rate`, and the
	// burst is the same part of the zone's. A value that is missing or wrong counts as `min_rate`, and is counted.
	From string `json:"rate_from,omitempty" caddyfile:"-"`

	// The lowest rate. Required with `rate_from`.
	Min float64 `json:"min_rate,omitempty" caddyfile:"-"`
}

// Calendar is when a quota is whole again. Clients that have used it up are told times that are spread over the first
// hundredth of the next period.
type Calendar struct {
	// `day` or `month`. The rate must be per the same. Required.
	Period string `json:"period" caddyfile:"-"`

	// The time zone, such as `Europe/Berlin` (default `UTC`).
	Timezone string `json:"timezone,omitempty" caddyfile:"-"`
}

// Concurrency limits how many requests may be in flight. A request over the limit
// waits in the queue or is answered 503. One of `limit`, `adaptive` and `target` is
// required.
type Concurrency struct {
	// A fixed limit: 1 to 1000000.
	Limit int `json:"limit,omitempty" caddyfile:"-"`

	// Find the limit at which the backend works best, from its latency.
	Adaptive bool `json:"adaptive,omitempty" caddyfile:"-"`

	// Find the highest limit at which 95 % of the requests are served within this
	// time.
	Target *caddy.Duration `json:"target,omitempty" caddyfile:"-"`

	// The range and the initial value of an adaptive limit: 1 to 100000 (defaults
	// 2, 1000 and 20). Not with `limit`.
	Min     *int `json:"min,omitempty"`
	Max     *int `json:"max,omitempty"`
	Initial *int `json:"initial,omitempty"`

	// Mean latency above which the backend is overloaded, even if it has never been
	// faster (default: none). With `adaptive` only.
	MaxLatency *caddy.Duration `json:"max_latency,omitempty"`

	// How many of the requests in flight one client may have. A client over this
	// limit is answered 429.
	Per *PerClient `json:"per,omitempty"`

	// How many permits a request takes, of `limit` and of `per`: 1 (default) to 1000000, or a placeholder that has
	// such a number, as `{http.vars.weight}`; without one it is 1. A request that weighs more than the limit takes all, and runs alone.
	Weight Amount `json:"weight,omitempty"`

	// How long a request keeps its permit after its client hangs up. `keep` (default): until
	// the backend, which is not told, responds, for 10 s at most. `free`: not at all, and the
	// backend is told.
	Disconnected string `json:"disconnected,omitempty"`

	// The responses that give back their permit when they begin to stream. `auto` (default):
	// upgrades such as WebSocket, extended CONNECT, and the events of an EventSource.
	// `free`: also all other streams of events that the request accepts. `hold`: none.
	Streams string `json:"streams,omitempty"`
}

// PerClient limits how many requests one client may have in flight.
type PerClient struct {
	// The template of the key that tells clients apart, as in a zone (default
	// `{http.vars.client_ip}`): an IPv4 address, or an IPv6 network of 64 bits.
	Key string `json:"key,omitempty"`

	// The limit: 1 to 1000000. Required.
	Limit int `json:"limit"`
}

// Queue is where requests over the limit in flight wait briefly. It needs concurrency; the default is a queue of 64.
type Queue struct {
	// No queue.
	Off bool `json:"off,omitempty"`

	// How many requests may wait at once: 1 to 10000. Required unless `off`.
	Size *int `json:"size,omitempty"`

	// How long a request may wait: up to `1m` (default: as long as 20 permits
	// take to become free, within `100ms` and `2s`).
	Timeout *caddy.Duration `json:"timeout,omitempty"`
}

// Class is a priority class: it says which requests are admitted first at the limit in
// flight. It needs concurrency. The first class that matches a request counts.
type Class struct {
	// The name: up to 64 letters, digits and `_-./:`. `critical`, `default` and
	// `sheddable` have a default share. Requests that no class matches belong to
	// `default`, whether that class is defined or not.
	Name string `json:"name" caddyfile:"-"`

	// The requests that belong to the class. Several matcher sets are alternatives. A
	// class with neither `match` nor `clients` has only the requests whose header
	// `X-Shield-Class` names it and comes from a trusted proxy.
	MatcherSetsRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// The share of the limit in flight that the class may use while requests of
	// classes with a higher share come: more than 0, to 1. The default is 1 for
	// `critical`, 0.9 for `default` and 0.7 for `sheddable`. Others need a share.
	Share *float64 `json:"share,omitempty"`

	// Only a random share of the clients, the same ones for an hour: more than 0,
	// to 1 (default: all). `retries` says what tells clients apart.
	Clients *float64 `json:"clients,omitempty"`
}

// Pushback says how rejections are answered.
type Pushback struct {
	// The lowest and highest Retry-After: whole seconds, `1s` to `59s` (defaults
	// `1s` and `30s`).
	Min *caddy.Duration `json:"min,omitempty"`
	Max *caddy.Duration `json:"max,omitempty"`

	// The status for a client over its quota (default 429).
	Status *int `json:"status,omitempty"`

	// The status when the backend is at its limit (default 503, and 429 for git, which obeys no other).
	OverloadStatus *int `json:"overload_status,omitempty" caddyfile:"-"`

	// Other statuses then, for the requests that match. The first that fits counts.
	OverloadStatuses matchedStatuses `json:"overload_statuses,omitempty" caddyfile:"overload_status"`

	// The origins whose pages may read rejections, like `https://example.com`, or `*` for all (default:
	// what the site's own headers say). Those that are listed may send cookies.
	CORS origins `json:"cors,omitempty"`

	// What becomes of the handshake of a WebSocket. `reject` (default): it is answered as any request, so
	// a script learns nothing. `close`: it is accepted, and closed with 1013 and the wait, for 1,000 at once.
	WebSocket string `json:"websocket,omitempty"`

	// The body: `problem` (problem+json, or a page for browsers' navigations), `html`,
	// `text` or `none`; `auto` (default) is `problem`, but over HTTP/2 and 3 only for
	// clients that ask for JSON, and for navigations. gRPC clients get gRPC.
	Body string `json:"body,omitempty"`

	// The writer of the body. `direct`: the handler. `auto` (default): the error
	// routes of the server, or the handler if none of them does. `error`: Caddy, which
	// gets an error as from other handlers, for gRPC, too.
	Respond string `json:"respond,omitempty"`

	// Whether a rejection may be held for up to a second, so that its whole seconds
	// end at the client's appointment (default true). Without it, clients that are
	// rejected together come back together, at the same moment of a second.
	Dither *bool `json:"dither,omitempty"`

	// Tell a client that would wait longer than this in all not to come back:
	// `1m` to `24h` (default: no client is told so). Clients that do not understand
	// this may retry at once.
	GiveUp *caddy.Duration `json:"give_up,omitempty"`

	// The longest wait that a client over its own quota is told, where the quota takes longer
	// than `max` to renew. It is in whole seconds, from `max` to `24h` (default `24h`).
	QuotaMax *caddy.Duration `json:"quota_max,omitempty"`
}

// MatchedStatus is a status for some requests.
type MatchedStatus struct {
	// 400 to 599. Required.
	Status int `json:"status" caddyfile:"-"`

	// The requests that it is for. Several matcher sets are alternatives. Required.
	MatcherSetsRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`
}

type (
	matchedStatuses []*MatchedStatus
	origins         []string
)

// Retries says how clients are held to their appointments. Handlers with one name must
// define it alike.
type Retries struct {
	// Whether a client that comes before its appointment, while others wait, is
	// rejected and told the same time again (default true).
	Enforce *bool `json:"enforce,omitempty"`

	// How many rejected clients are remembered at most: 1024 to 4194304 (default
	// 524288), at 16 bytes each.
	MaxClients *int `json:"max_clients,omitempty"`

	// The template of the key that tells clients apart, as in a zone (default
	// `{http.vars.client_ip}`).
	Key string `json:"key,omitempty"`

	// How many bits of a client's address count, as in a zone.
	IPv4Prefix *int `json:"ipv4_prefix,omitempty"`
	IPv6Prefix *int `json:"ipv6_prefix,omitempty"`

	// Whether clients get their appointments as signed tickets, so that other
	// replicas and a restarted server honour them (default false).
	Tickets bool `json:"tickets,omitempty"`

	// The key that signs tickets: at least 16 bytes, the same for all replicas.
	// It may have placeholders that are known when the config is loaded:
	// `{env.NAME}`, `{file./path}`. The default is the secret of the store. Without
	// a store each shield has its own, and no other process honours its tickets. Shields of other names never do.
	Secret string `json:"secret,omitempty"`
}

// The values of mode, respond and websocket.
const (
	modeEnforce = "enforce"
	modeObserve = "observe"

	respondAuto   = "auto"
	respondDirect = "direct"
	respondError  = "error"

	webSocketReject = "reject"
	webSocketClose  = "close"
)
