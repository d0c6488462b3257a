package main

import (
	"net/http"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/httprate"
	"golang.org/x/time/rate"
)

// A rival is what stands in front of the backend: middleware around it in this
// process, or a program with a config.
type rival struct {
	name  string // in the table
	tells string // what its rejections say in Retry-After; "": it rejects no request

	middleware func(scenario, http.Handler) http.Handler
	program    string            // "caddy", "nginx" or "haproxy"
	parts      map[string]string // templates of its config, by name

	// most is how many may reach the backend in one second: what the config says,
	// with what it says about bursts. 0 if nothing does.
	most func(scenario) int
}

// shieldName is the rival that has to serve all.
const shieldName = "shield"

// Bounds for rival.most.
var (
	burst   = func(s scenario) int { return s.Capacity + s.Burst }
	second  = func(s scenario) int { return s.Capacity }
	seconds = func(s scenario) int { return 2 * s.Capacity } // a window's worth at the end of one, and at the beginning of the next
	backend = func(s scenario) int { return int(s.backend().Capacity()) + Workers }
)

// rivals are all, in the order of the table.
var rivals = []rival{
	{
		name: "nothing",
		middleware: func(_ scenario, b http.Handler) http.Handler {
			return b
		},
	},
	{
		name: "fixed Retry-After (our own handler)", tells: "1",
		middleware: fixedRetryAfter, most: burst,
	},
	{
		name: "httprate, in a chi router", tells: "1",
		middleware: chiRouter, most: seconds,
	},
	{
		name: "caddy-ratelimit", tells: "1 or 2, when one fits",
		program: "caddy", parts: map[string]string{"limit": caddyRatelimit}, most: second,
	},
	{
		name: "caddy-ratelimit, jitter 0.2", tells: "1 or 2, with jitter",
		program: "caddy", parts: map[string]string{"limit": caddyRatelimitJitter}, most: second,
	},
	{
		name: "nginx limit_req, burst of 0.1 s", tells: "nothing",
		program: "nginx", parts: map[string]string{"limit": nginxBurst}, most: burst,
	},
	{
		name: "nginx limit_req, burst of 1 s", tells: "nothing",
		program: "nginx", parts: map[string]string{"limit": nginxSecond}, most: seconds,
	},
	{
		name: "nginx limit_req, burst of 1 s, Retry-After", tells: "1",
		program: "nginx", parts: map[string]string{"http": nginxRetryAfter, "limit": nginxSecond + nginxAnswer}, most: seconds,
	},
	{
		name: "HAProxy stick table, all requests", tells: "1",
		program: "haproxy", parts: map[string]string{"limit": haproxyAll}, most: seconds,
	},
	{
		name: "HAProxy stick table, admitted requests", tells: "1",
		program: "haproxy", parts: map[string]string{"limit": haproxyAdmitted}, most: seconds,
	},
	{
		name: "nginx limit_req, random Retry-After fitted to this herd", tells: "random, over the time of the drain",
		program: "nginx", parts: map[string]string{"http": nginxSpread, "limit": nginxSecond + nginxAnswer}, most: seconds,
	},
	{
		name:    "nginx limit_req, which delays",
		program: "nginx", parts: map[string]string{"limit": nginxDelay}, most: second,
	},
	{
		name:    "HAProxy maxconn, which queues",
		program: "haproxy", parts: map[string]string{"server": haproxyQueue}, most: backend,
	},
	{
		name: shieldName, tells: "each its own",
		program: "caddy", parts: map[string]string{"limit": shieldLimit}, most: burst,
	},
}

// fixedRetryAfter has shield's bucket and tells all clients the same: what is left of
// shield without its appointments.
func fixedRetryAfter(s scenario, next http.Handler) http.Handler {
	bucket := rate.NewLimiter(rate.Limit(s.Capacity), s.Burst)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !bucket.Allow() {
			w.Header().Set("Retry-After", strconv.Itoa(1))
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// chiRouter is as httprate's documentation has it.
func chiRouter(s scenario, next http.Handler) http.Handler {
	r := chi.NewRouter()
	r.Use(httprate.LimitBy(s.Capacity, time.Second, httprate.Key("*")))
	r.Handle("/", next)
	return r
}
