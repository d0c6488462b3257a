package caddymodule

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// Rate is a token bucket: a steady rate, and a burst on top of it after a rest.
type Rate struct {
	// How many requests are allowed per `per`: more than 0. Required.
	Rate float64 `json:"rate,omitempty" caddyfile:"-"`

	// The period of the rate (default `1s`).
	Per *caddy.Duration `json:"per,omitempty" caddyfile:"-"`

	// How many requests can arrive in one burst after a rest: at least 1. A zone defaults to the number in its
	// rate, such as 100 for 100 per minute. A capacity defaults to a tenth of a second's worth, but at least 10,
	// and at most one second's worth.
	Burst *int `json:"burst,omitempty"`
}

// Zone is a quota that each client has for itself. A client over its quota gets a 429.
//
// Zones with the same name count together, whichever handlers they are in, and keep their counts across reloads.
// They must be identical.
type Zone struct {
	// The name in metrics and in rejections: up to 64 letters, digits and `_-./:`. One zone can do without; it
	// is then named after the handler, with `/clients` appended.
	Name string `json:"name,omitempty" caddyfile:"-"`

	// Which requests count (default: all). Several matcher sets are alternatives.
	MatcherSetsRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// How to identify clients: text with placeholders (default `{http.vars.client_ip}`), at least one in each
	// word. Requests with an empty key share one bucket. Headers, cookies and parameters that are repeated count
	// as empty, and case doesn't matter. Unknown placeholders are an error.
	Key string `json:"key,omitempty"`

	// How many bits of an address identify a client, in `{http.vars.client_ip}` and `{http.request.remote.host}`.
	// IPv4: 1 to 32 (default 32). IPv6: 1 to 128 (default 64, because providers hand out whole /64 networks).
	IPv4Prefix *int `json:"ipv4_prefix,omitempty"`
	IPv6Prefix *int `json:"ipv6_prefix,omitempty"`

	ZoneRate `caddyfile:"rate"`

	// What the rate counts, such as `tokens` (default `requests`). It is only shown to people, except that
	// `seconds` can be fractions.
	Unit string `json:"unit,omitempty"`

	// What a request takes from the quota: a number up to the burst (default 1), a placeholder, or `auto`, which
	// needs `settle`. With `auto`, it is the highest of the key's last eight costs. A new key starts with the
	// zone's last eight, or before any are known, with what a key earns in a minute. A placeholder without a
	// number counts as 1, and metrics count how often that happens.
	Cost Amount `json:"cost,omitempty"`

	// Where to find the real cost in the response (default: `cost` is final). The difference is charged or
	// refunded when the response ends. A key can go into debt by a burst, or by what it earns in an hour if that
	// is more.
	//
	// - `usage`: the tokens that OpenAI's, Anthropic's, Gemini's and Ollama's APIs report, streaming or not
	// - `json <paths...>`: the sum of these fields of the body
	// - `header <name>`, `trailer <name>`
	// - `bytes` of the body, `time`: seconds until the response ends
	// - `status <codes...>`: `cost` for these statuses, nothing for others
	Settle string `json:"settle,omitempty"`

	// Renew the whole quota at midnight or on the first of the month, instead of continuously: `day` or `month`, and
	// a time zone (default `UTC`), such as `month Europe/Berlin`. The rate must be per the same. Clients that have
	// used up the quota get appointments within the first hundredth of the next period, so that they don't all
	// return at midnight.
	Calendar string `json:"calendar,omitempty"`

	// Which headers tell admitted clients what is left: `off` (default), `on` for `RateLimit` and
	// `RateLimit-Policy`, or `openai`, which adds `x-ratelimit-limit-tokens` and the like, with the zone's unit.
	Headers string `json:"headers,omitempty"`

	// How many clients to keep in memory: 10000 to 67108864 (default 200000), at 18 to 32 bytes each. Choose
	// twice the number of clients you expect within the time an empty bucket takes to refill. Clients over their
	// quota are never dropped; if that leaves no room, new clients share a bucket.
	MaxKeys *int `json:"max_keys,omitempty"`

	// Share the quotas with other replicas (default true with a store, see [App]). The zone must be identical on
	// all of them.
	Shared *bool `json:"shared,omitempty"`
}

// ZoneRate is a rate that the request itself can carry, for example in a claim of its JWT.
type ZoneRate struct {
	Rate

	// The placeholder of the client's own rate, per `per`. It is raised to `min_rate` and capped at `rate`, and
	// scales the burst by the same factor. A missing or malformed value counts as `min_rate`, and metrics count
	// how often that happens.
	From string `json:"rate_from,omitempty" caddyfile:"-"`

	// The lowest rate. Required with `rate_from`.
	Min float64 `json:"min_rate,omitempty" caddyfile:"-"`
}

// Concurrency limits how many requests can be in flight. Requests over the limit wait in the queue or get a 503.
// One of `limit`, `adaptive` and `target` is required.
type Concurrency struct {
	// A fixed limit: 1 to 1000000.
	Limit int `json:"limit,omitempty" caddyfile:"-"`

	// Find the limit at which the backend works best, by watching its latency.
	Adaptive bool `json:"adaptive,omitempty" caddyfile:"-"`

	// Find the highest limit at which 95% of the requests are served within this time.
	Target *caddy.Duration `json:"target,omitempty" caddyfile:"-"`

	// The range and the initial value of an adaptive limit: 1 to 100000 (defaults 2, 1000 and 20). Not with
	// `limit`.
	Min     *int `json:"min,omitempty"`
	Max     *int `json:"max,omitempty"`
	Initial *int `json:"initial,omitempty"`

	// How many requests each client can have in flight. Clients over this limit get a 429.
	Per *PerClient `json:"per,omitempty"`

	// How many permits a request takes, of `limit` and of `per`: 1 (default) to 1000000, or a placeholder for such a
	// number, like `{http.vars.weight}`, which counts as 1 if it is missing. One that weighs more than the limit takes
	// all permits and runs alone.
	//
	// Instead, a zone and how many of its units are a permit, such as `tokens 1000`: a request takes one for each
	// 1000 tokens that it costs there, rounded up. With `cost auto`, that is the median of the last eight costs of
	// its key. A request takes one permit if none is known, or if the zone doesn't count it. A zone that settles
	// `time` can't be used.
	Weight Amount `json:"weight,omitempty"`

	// What happens to the permit when a client disconnects. `keep` (default): the request keeps it until the
	// backend responds, for at most 10 s, and the backend isn't told, because it may keep working anyway.
	// `free`: the permit is returned immediately, and the backend is told.
	Disconnected string `json:"disconnected,omitempty"`

	// Which responses return their permit once they start to stream. `auto` (default): upgrades such as
	// WebSocket, extended CONNECT, and the events of an EventSource. `free`: also any other event stream the
	// request accepts. `hold`: none.
	Streams string `json:"streams,omitempty"`
}

// PerClient limits how many requests one client can have in flight.
type PerClient struct {
	// How to identify clients, as in a zone (default `{http.vars.client_ip}`): by IPv4 address, or by IPv6
	// network of 64 bits.
	Key string `json:"key,omitempty"`

	// The limit: 1 to 1000000. Required.
	Limit int `json:"limit"`
}

// Queue is where requests over the in-flight limit wait briefly. It needs concurrency, which has a queue of 64 by
// default.
type Queue struct {
	// No queue.
	Off bool `json:"off,omitempty"`

	// How many requests can wait: 1 to 10000. Required unless `off`.
	Size *int `json:"size,omitempty"`

	// How long a request can wait: up to `1m` (default: as long as it takes for 20 permits to be returned, but
	// at least `100ms`; if fewer than ten are returned per second, less: `200ms` at one per second).
	Timeout *caddy.Duration `json:"timeout,omitempty"`
}

// Class is a priority class. It decides which requests go first at the in-flight limit, so it needs concurrency. A
// request belongs to the first class that matches it.
type Class struct {
	// The name: up to 64 letters, digits and `_-./:`. `critical`, `default` and `sheddable` have a default
	// share. Requests that match no class belong to `default`, which you can define, too.
	Name string `json:"name" caddyfile:"-"`

	// Which requests belong to the class. Several matcher sets are alternatives. A class without `match`
	// only gets requests that name it in the header `X-Shield-Class`, from a trusted proxy.
	MatcherSetsRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// The part of the in-flight limit that the class can use while classes with a higher share send requests:
	// more than 0, up to 1. The default is 1 for `critical`, 0.9 for `default` and 0.7 for `sheddable`. Others
	// need a share.
	Share *float64 `json:"share,omitempty"`
}

// Pushback says what a rejection looks like.
type Pushback struct {
	// The lowest and highest Retry-After: whole seconds, `1s` to `59s` (defaults `1s` and `30s`).
	Min *caddy.Duration `json:"min,omitempty"`
	Max *caddy.Duration `json:"max,omitempty"`

	// The status for a client over its quota (default 429).
	Status *int `json:"status,omitempty"`

	// The status when the backend is full (default 503, or 429 for git, which obeys nothing else).
	OverloadStatus *int `json:"overload_status,omitempty"`

	// The origins whose pages can read rejections, like `https://example.com`, or `*` for all (default: left to
	// the headers the site sets). Listed origins can also send cookies.
	CORS []string `json:"cors,omitempty"`

	// What happens to a rejected WebSocket handshake. `reject` (default): it is rejected like any request, which
	// tells the script nothing. `close`: it is accepted and closed with code 1013 and the wait, for up to 1,000
	// connections concurrently.
	WebSocket string `json:"websocket,omitempty"`

	// The body: `problem` (problem+json, or a page for browser navigations), `html`, `text` or `none`. `auto`
	// (default) is `problem`, but over HTTP/2 and 3 only for clients that ask for JSON, and for navigations.
	// gRPC clients get gRPC.
	Body string `json:"body,omitempty"`

	// Delay rejections by up to a second, so that their whole seconds end at the client's appointment (default
	// true). Without it, clients that are rejected together return together, at the same moment of a second.
	Dither *bool `json:"dither,omitempty"`

	// Tell a client that would wait longer than this in total not to return: `1m` to `24h` (default: never).
	// Clients that don't understand this may retry immediately.
	GiveUp *caddy.Duration `json:"give_up,omitempty"`

	// The longest wait for a client over a quota that takes longer than `max` to renew: whole seconds, from
	// `max` to `24h` (default `24h`).
	QuotaMax *caddy.Duration `json:"quota_max,omitempty"`
}

// Retries says how appointments are enforced. It must be identical in handlers with the same name.
type Retries struct {
	// Reject a client that retries before its appointment while others wait, and repeat its time (default true).
	Enforce *bool `json:"enforce,omitempty"`

	// How many rejected clients to keep on record: 1024 to 4194304 (default 524288), at 16 bytes each.
	MaxClients *int `json:"max_clients,omitempty"`

	// How to identify clients, as in a zone (default `{http.vars.client_ip}`).
	Key string `json:"key,omitempty"`

	// How many bits of an address identify a client, as in a zone.
	IPv4Prefix *int `json:"ipv4_prefix,omitempty"`
	IPv6Prefix *int `json:"ipv6_prefix,omitempty"`

	// Give clients their appointments as signed tickets, so that other replicas and a restarted server honor
	// them (default false).
	Tickets bool `json:"tickets,omitempty"`

	// The key that signs tickets: at least 16 bytes, the same on all replicas. It can use placeholders known at
	// load, such as `{env.NAME}` and `{file./path}`. It defaults to the secret of the store. Without a store,
	// each shield has its own, so other processes don't honor its tickets. Shields with other names never do.
	Secret string `json:"secret,omitempty"`
}

// The values of mode and websocket.
const (
	modeEnforce = "enforce"
	modeObserve = "observe"

	webSocketReject = "reject"
	webSocketClose  = "close"
)
