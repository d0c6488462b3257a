package main

// A row is a load, and what stands in front.
type row struct {
	name   string
	load   load
	fronts []front
	tls    bool
	limit  limit  // of each client
	shield string // in the shield's directive, instead of a zone with the limit
	status int    // of shield's responses; 0: that of the others
	want   int    // the status of all others' answers
	bounds []bound
	live   bool // it is measured what comes back, not what a request costs
}

// A limit is so many requests of a client per second, "s", or per hour, "h".
type limit struct {
	Count int
	Per   string
}

var (
	none = limit{1, "h"} // next to none: what clients send is rejected
	ten  = limit{10, "s"}
	free = limit{1_000_000, "s"}
)

// A bound is how much time the front end may take, in times of what another one takes, or in ms.
type bound struct {
	of    string // "": ms
	times float64
}

// honest is what clients beside a hammer may wait.
var honest = []bound{{times: 15}, {nginx.name, 1.5}}

func toNginx(times float64) []bound { return []bound{{nginx.name, times}} }

var (
	everyone = []front{nginx, haproxy, static, today, without, with}
	limiters = []front{nginx, haproxy, today, without, with}
)

// zone is the directive's own quota, by address.
const zone = `zone clients {
			rate  {{.Limit.Count}}/{{.Limit.Per}}
			burst {{.Limit.Count}}
		}`

// zoneOfHeader is a quota by something that the address does not tell.
const zoneOfHeader = `zone clients {
			key   {header.X-Account}
			rate  {{.Limit.Count}}/{{.Limit.Per}}
			burst {{.Limit.Count}}
		}`

// rows are those of the table in loadtest/lab/README.md. The bounds are promises of shield.
var rows = []row{
	{name: "the same again, HTTP/1.1", load: again(64), fronts: everyone, limit: none, want: 429, bounds: toNginx(1.35)},
	{name: "the same again, HTTP/1.1 and TLS", load: again(64), fronts: everyone, tls: true, limit: none, want: 429, bounds: toNginx(1.1)},
	{name: "the same again, HTTP/2, 16 × 4 streams", load: streams(16, 4), fronts: everyone, tls: true, limit: none, want: 429, bounds: toNginx(1)},
	{name: "the same again, HTTP/2, 32 × 1 stream", load: streams(32, 1), fronts: everyone, tls: true, limit: none, want: 429, bounds: toNginx(1)},
	{name: "a new connection for each", load: anew(16), fronts: []front{nginx, haproxy, static, today, without}, limit: none, want: 429}, // a door does nothing

	// With three per minute the first is admitted and the next two have appointments; measure
	// for no longer than 15 s. With one per hour no client has one.
	{name: "before the appointment", load: impatient(64), fronts: limiters, limit: none, want: 429, status: 503,
		shield: "capacity 3/m", bounds: toNginx(1.25)},
	{name: "over the capacity", load: again(64), fronts: limiters, limit: none, want: 429, status: 503,
		shield: "capacity 1/h", bounds: toNginx(1.25)},

	{name: "all different", load: different(64), fronts: limiters, limit: none, want: 429,
		shield: zoneOfHeader, bounds: []bound{{today.name, 1.05}}},

	{name: "admitted", load: again(64), fronts: limiters, limit: free, want: 200, bounds: []bound{{without.name, 1.03}}},
	{name: "admitted, as started", load: again(64), fronts: []front{nginx, haproxy, proxyToday, proxy}, limit: free, want: 200,
		bounds: []bound{{proxyToday.name, 0.8}}},
	{name: "admitted, as started, 256 connections", load: again(256), fronts: []front{nginx, haproxy, proxyToday, proxy}, limit: free, want: 200,
		bounds: []bound{{proxyToday.name, 0.8}}},

	{name: "50,000/s of 10 addresses", load: hammer(false), fronts: limiters, limit: ten, want: 429, live: true, bounds: honest},
	{name: "50,000/s of 10 addresses, all different", load: hammer(true), fronts: limiters, limit: ten, want: 429, live: true, bounds: honest},
}
