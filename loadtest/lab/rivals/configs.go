package main

// The configs are text/template's, of a configData. {{.Capacity}} is 100 requests
// per second in the table, {{.Burst}} 10.

// configData is what a config can name.
type configData struct {
	scenario
	Address string // to listen at
	Backend string // host:port
	Folder  string // for temporary files
}

// caddyConf is of shield and of caddy-ratelimit, which are modules of the same
// Caddy: the directive is the only difference.
const caddyConf = `{
	admin off
	persist_config off
	auto_https off
	log {
		level ERROR # caddy-ratelimit writes a line for each rejection
	}
	servers {
		trusted_proxies static 127.0.0.0/8 # the clients' addresses are in X-Forwarded-For
		trusted_proxies_strict
	}
}
http://{{.Address}} {
	{{template "limit" .}}
	reverse_proxy {{.Backend}}
}
`

// shieldLimit is the README's, with the pace of the backend.
const shieldLimit = `shield {
		capacity {{.Capacity}}/s burst {{.Burst}}
		pushback {
			max 30s
		}
	}`

// caddyRatelimit has one key for all, because it is the backend that is protected,
// and the window that lets least through at once: events per window cannot be paced.
// Its Retry-After is when the next request fits, rounded up.
const caddyRatelimit = `rate_limit {
		zone backend {
			key    static
			window 1s
			events {{.Capacity}}
		}
	}`

// caddyRatelimitJitter adds up to a fifth to each Retry-After, as its documentation
// has it.
const caddyRatelimitJitter = `rate_limit {
		zone backend {
			key    static
			window 1s
			events {{.Capacity}}
		}
		jitter 0.2
	}`

// nginxConf is Debian's nginx.conf, where it matters, for one site. The key of the
// zone is the same for all, because it is the backend that is protected.
const nginxConf = `daemon off;
worker_processes auto;
pid {{.Folder}}/nginx.pid;
error_log stderr crit; # at Debian's level there is a line for each rejection
events {
	worker_connections 4096; # Debian's 768 are fewer than come
}
http {
	access_log off;
	client_body_temp_path {{.Folder}}/body;
	proxy_temp_path       {{.Folder}}/proxy;
	fastcgi_temp_path     {{.Folder}}/fastcgi;
	uwsgi_temp_path       {{.Folder}}/uwsgi;
	scgi_temp_path        {{.Folder}}/scgi;

	limit_req_zone all zone=backend:1m rate={{.Capacity}}r/s;
	limit_req_status 429;
	{{template "http" .}}

	upstream backend {
		server {{.Backend}};
		keepalive 64;
	}
	server {
		listen {{.Address}} backlog=4096; # the default of 511 loses connections of the herd
		location / {
			{{template "limit" .}}
			proxy_http_version 1.1;
			proxy_set_header Connection "";
			proxy_read_timeout 60s;
			proxy_pass http://backend;
		}
	}
}
`

// nginx and requests that come too soon: nodelay rejects all beyond the burst,
// without it they are held back, and let through at the rate.
const (
	nginxBurst  = `limit_req zone=backend burst={{.Burst}} nodelay;`
	nginxSecond = `limit_req zone=backend burst={{.Capacity}} nodelay;`
	nginxDelay  = `limit_req zone=backend burst={{.Clients}};`
)

// nginxRetryAfter is for the http block, nginxAnswer for the location: nginx has no
// directive for it, but a header whose value is empty is not sent.
const (
	nginxRetryAfter = `map $status $retry_after { 429 1; }`
	nginxAnswer     = `
			add_header Retry-After $retry_after always;`
)

// nginxSpread tells each a random number of seconds: as many as this herd, which
// no operator knows in advance, takes to be served.
const nginxSpread = `split_clients $request_id $seconds {
{{- range $i := .Seconds}}
		{{if lt $i $.Spread}}{{$.Percent}}%{{else}}*{{end}} {{$i}};
{{- end}}
	}
	map $status $retry_after { 429 $seconds; }`

// Seconds and Percent are for nginxSpread: 1 to Spread, each as likely.
func (c configData) Seconds() (all []int) {
	for i := range c.Spread() {
		all = append(all, i+1)
	}
	return all
}

// Percent has two decimals, as nginx does.
func (c configData) Percent() float64 { return float64(10_000/c.Spread()) / 100 }

// haproxyConf is Debian's haproxy.cfg, where it matters, for one site.
const haproxyConf = `global
	maxconn 4000
defaults
	mode http
	timeout connect 5s
	timeout client 60s
	timeout server 60s
	timeout queue 60s
	timeout http-request 60s # the herd opens its connections before it comes
frontend site
	bind {{.Address}}
	{{template "limit" .}}
	default_backend site
backend site
	option abortonclose # who has gone leaves the queue
	server backend {{.Backend}} {{template "server" .}}
backend limit
	stick-table type integer size 100 expire 10s store http_req_rate(1s),gpc0,gpc0_rate(1s)
`

// The limits of HAProxy. The first is what its documentation and most examples have,
// and counts rejected requests too: while more comes than fits, next to nothing is let
// through. The second counts only what is let through.
const (
	haproxyAll = `http-request track-sc0 int(1) table limit
	http-request deny deny_status 429 hdr Retry-After 1 if { sc_http_req_rate(0) gt {{.Capacity}} }`

	haproxyAdmitted = `http-request track-sc0 int(1) table limit
	http-request deny deny_status 429 hdr Retry-After 1 if { sc_gpc0_rate(0) ge {{.Capacity}} }
	http-request sc-inc-gpc0(0)`

	// haproxyQueue limits no rate, but what is at the backend at one time, to what it
	// can work on. The others wait in HAProxy.
	haproxyQueue = `maxconn {{.Workers}}`
)

// Workers is for haproxyQueue.
func (configData) Workers() int { return Workers }
