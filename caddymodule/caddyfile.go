package caddymodule

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
)

func init() {
	httpcaddyfile.RegisterHandlerDirective("shield", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		var handler Handler
		return &handler, handler.UnmarshalCaddyfile(h.Dispenser)
	})
	// Before authentication: checking passwords and asking authentication
	// servers are loads to be protected, too.
	httpcaddyfile.RegisterDirectiveOrder("shield", httpcaddyfile.Before, "basic_auth")
	httpcaddyfile.RegisterGlobalOption("shield", func(d *caddyfile.Dispenser, existing any) (any, error) {
		if existing != nil {
			return nil, d.Err("the global option shield is there twice; want it once")
		}
		var app App
		if err := app.UnmarshalCaddyfile(d); err != nil {
			return nil, err
		}
		return httpcaddyfile.App{Name: "shield", Value: caddyconfig.JSON(app, nil)}, nil
	})
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens. Syntax:
//
//	shield [<matcher>] [<n>/<s|m|h>] [burst <n>] {
//		name <name>
//		mode enforce|observe
//		zone <name> {
//			match       <matchers...>
//			key         <template...>
//			ipv4_prefix <bits>
//			ipv6_prefix <bits>
//			rate        <n>/<s|m|h>
//			burst       <n>
//			cost        <n>
//			max_keys    <n>
//		}
//		capacity <n>/<s|m|h> [burst <n>]
//		concurrency <n> | adaptive | slo <duration> {
//			min         <n>
//			max         <n>
//			initial     <n>
//			max_latency <duration>
//			probe       on|off
//			per         <key...> <n>
//		}
//		queue off | <n> [timeout <duration>]
//		class <name> {
//			match   <matchers...>
//			share   <n>%
//			clients <n>%
//		}
//		pushback {
//			min             <duration>
//			max             <duration>
//			status          <code>
//			overload_status <code>
//			body            problem|html|text|none
//			respond         auto|direct|error
//			dither          on|off
//			give_up         <duration>
//			backoff         on|off
//		}
//		retries {
//			enforce     on|off
//			max_clients <n>
//			key         <template...>
//			ipv4_prefix <bits>
//			ipv6_prefix <bits>
//			tickets     on|off
//			secret      <text>
//		}
//		herd {
//			detect on|off
//		}
//	}
//
// The rate in the first line is a zone per client address. match may be given
// several times, as alternatives. Of the classes the first that fits counts.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume the directive's name
	if args := d.RemainingArgs(); len(args) > 0 {
		rate, err := parseRateArgs(d, args)
		if err != nil {
			return err
		}
		h.Zones = append(h.Zones, &Zone{Rate: *rate})
	}
	return eachOption(d, []string{"zone", "class"}, func(word string) (err error) {
		switch word {
		case "name":
			h.Name, err = oneArg(d)
		case "mode":
			h.Mode, err = oneArg(d)
		case "zone":
			err = h.parseZone(d)
		case "capacity":
			h.Capacity, err = parseRateArgs(d, d.RemainingArgs())
		case "concurrency":
			err = h.parseConcurrency(d)
		case "queue":
			err = h.parseQueue(d)
		case "class":
			err = h.parseClass(d)
		case "pushback":
			err = h.parsePushback(d)
		case "retries":
			err = h.parseRetries(d)
		case "herd":
			err = h.parseHerd(d)
		default:
			err = unknown(d, "name, mode, zone, capacity, concurrency, queue, class, pushback, retries or herd")
		}
		return err
	})
}

func (h *Handler) parseZone(d *caddyfile.Dispenser) error {
	name, err := oneArg(d)
	if err != nil {
		return err
	}
	z := &Zone{Name: name}
	h.Zones = append(h.Zones, z)
	return eachOption(d, []string{"match"}, func(word string) (err error) {
		switch word {
		case "match":
			err = matchArgs(d, &z.MatcherSetsRaw)
		case "key":
			z.Key, err = keyArgs(d)
		case "ipv4_prefix":
			err = pointer(d, &z.IPv4Prefix)
		case "ipv6_prefix":
			err = pointer(d, &z.IPv6Prefix)
		case "rate":
			var rate string
			if rate, err = oneArg(d); err == nil {
				z.Rate.Rate, z.Per, err = parseRate(d, rate)
			}
		case "burst":
			err = pointer(d, &z.Burst)
		case "cost":
			err = pointer(d, &z.Cost)
		case "max_keys":
			err = pointer(d, &z.MaxKeys)
		default:
			err = unknown(d, "match, key, ipv4_prefix, ipv6_prefix, rate, burst, cost or max_keys")
		}
		return err
	})
}

func (h *Handler) parseConcurrency(d *caddyfile.Dispenser) error {
	c := new(Concurrency)
	h.Concurrency = c
	args := d.RemainingArgs()
	switch {
	case len(args) == 0 || len(args) > 2 || len(args) == 2 && args[0] != "slo":
		return d.Errf("arguments are %q; want a whole number, adaptive, or slo and a duration", strings.Join(args, " "))
	case len(args) == 2:
		target, err := caddy.ParseDuration(args[1])
		if err != nil {
			return d.Errf("slo is %q; want a duration like 200ms", args[1])
		}
		c.Target = new(caddy.Duration(target))
	case args[0] == "adaptive":
		c.Adaptive = true
	default:
		var err error
		if c.Limit, err = strconv.Atoi(args[0]); err != nil {
			return d.Errf("concurrency is %q; want a whole number, adaptive, or slo and a duration", args[0])
		}
		if c.Limit == 0 { // in JSON that is none
			return d.Errf("concurrency is 0; want 1 to %d", shield.MaxConcurrency)
		}
	}
	return eachOption(d, nil, func(word string) (err error) {
		switch word {
		case "min":
			err = pointer(d, &c.Min)
		case "max":
			err = pointer(d, &c.Max)
		case "initial":
			err = pointer(d, &c.Initial)
		case "max_latency":
			err = durationPointer(d, &c.MaxLatency)
		case "probe":
			c.Probe, err = switchArg(d)
		case "per":
			args := d.RemainingArgs()
			last := len(args) - 1
			noKey := func(arg string) bool { return !strings.Contains(arg, "{") }
			if last < 1 || slices.ContainsFunc(args[:last], noKey) {
				return d.Errf("per is %q; want a key and a whole number, like {client_ip} 10", strings.Join(args, " "))
			}
			n, err := strconv.Atoi(args[last])
			if err != nil {
				return d.Errf("per ends with %q; want a whole number", args[last])
			}
			c.Per = &PerClient{Key: strings.Join(args[:last], " "), Limit: n}
		default:
			err = unknown(d, "min, max, initial, max_latency, probe or per")
		}
		return err
	})
}

func (h *Handler) parseQueue(d *caddyfile.Dispenser) error {
	h.Queue = new(Queue)
	args := d.RemainingArgs()
	if len(args) == 1 && args[0] == "off" {
		h.Queue.Off = true
		return nil
	}
	if len(args) > 1 && args[0] == "off" {
		return d.Errf("queue is %q; want off alone: there is nothing to set of a queue that is off", strings.Join(args, " "))
	}
	if len(args) != 1 && (len(args) != 3 || args[1] != "timeout") {
		return d.Errf("arguments are %q; want off, or how many may wait, like 32, or 32 timeout 100ms", strings.Join(args, " "))
	}
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return d.Errf("queue is %q; want a whole number, or off", args[0])
	}
	h.Queue.Size = &n
	if len(args) == 3 {
		timeout, err := caddy.ParseDuration(args[2])
		if err != nil {
			return d.Errf("timeout is %q; want a duration like 100ms", args[2])
		}
		h.Queue.Timeout = new(caddy.Duration(timeout))
	}
	return nil
}

func (h *Handler) parseClass(d *caddyfile.Dispenser) error {
	name, err := oneArg(d)
	if err != nil {
		return err
	}
	c := &Class{Name: name}
	h.Classes = append(h.Classes, c)
	return eachOption(d, []string{"match"}, func(word string) (err error) {
		switch word {
		case "match":
			err = matchArgs(d, &c.MatcherSetsRaw)
		case "share":
			c.Share, err = percentArg(d)
		case "clients":
			c.Clients, err = percentArg(d)
		default:
			err = unknown(d, "match, share or clients")
		}
		return err
	})
}

func (h *Handler) parsePushback(d *caddyfile.Dispenser) error {
	p := new(Pushback)
	h.Pushback = p
	return eachOption(d, nil, func(word string) (err error) {
		switch word {
		case "min":
			err = durationPointer(d, &p.Min)
		case "max":
			err = durationPointer(d, &p.Max)
		case "status":
			err = pointer(d, &p.Status)
		case "overload_status":
			err = pointer(d, &p.OverloadStatus)
		case "body":
			p.Body, err = oneArg(d)
		case "respond":
			p.Respond, err = oneArg(d)
		case "dither":
			p.Dither, err = switchArg(d)
		case "give_up":
			err = durationPointer(d, &p.GiveUp)
		case "backoff":
			var on *bool
			if on, err = switchArg(d); err == nil {
				p.Backoff = *on
			}
		default:
			err = unknown(d, "min, max, status, overload_status, body, respond, dither, give_up or backoff")
		}
		return err
	})
}

func (h *Handler) parseRetries(d *caddyfile.Dispenser) error {
	r := new(Retries)
	h.Retries = r
	return eachOption(d, nil, func(word string) (err error) {
		switch word {
		case "enforce":
			r.Enforce, err = switchArg(d)
		case "max_clients":
			err = pointer(d, &r.MaxClients)
		case "key":
			r.Key, err = keyArgs(d)
		case "ipv4_prefix":
			err = pointer(d, &r.IPv4Prefix)
		case "ipv6_prefix":
			err = pointer(d, &r.IPv6Prefix)
		case "tickets":
			var on *bool
			if on, err = switchArg(d); err == nil {
				r.Tickets = *on
			}
		case "secret":
			args := d.RemainingArgs()
			if len(args) != 1 || args[0] == "" {
				return d.Err("secret is empty or in several words; want one, in quotes if it has spaces") // without showing it
			}
			r.Secret = args[0]
		default:
			err = unknown(d, "enforce, max_clients, key, ipv4_prefix, ipv6_prefix, tickets or secret")
		}
		return err
	})
}

func (h *Handler) parseHerd(d *caddyfile.Dispenser) error {
	h.Herd = new(Herd)
	return eachOption(d, nil, func(word string) (err error) {
		switch word {
		case "detect":
			h.Herd.Detect, err = switchArg(d)
		default:
			err = unknown(d, "detect")
		}
		return err
	})
}

// UnmarshalCaddyfile sets up the app from the global option. Syntax:
//
//	shield {
//		mode enforce|observe
//	}
func (a *App) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume the option's name
	return eachOption(d, nil, func(word string) (err error) {
		switch word {
		case "mode":
			a.Mode, err = oneArg(d)
		default:
			err = unknown(d, "mode")
		}
		return err
	})
}

// eachOption parses the block that follows the present word, if there is one, by
// calling parse with each option's word. No argument may be left before it. No
// option may be there twice, but for those in many.
func eachOption(d *caddyfile.Dispenser, many []string, parse func(word string) error) error {
	if d.NextArg() {
		return d.ArgErr()
	}
	seen := map[string]bool{}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		word := d.Val()
		if seen[word] && !slices.Contains(many, word) {
			return d.Errf("%s is there twice; want it once", word)
		}
		seen[word] = true
		if err := parse(word); err != nil {
			return err
		}
	}
	return nil
}

func unknown(d *caddyfile.Dispenser, want string) error {
	return d.Errf("unrecognized subdirective %q; want %s", d.Val(), want)
}

// oneArg returns the only argument of the present word.
func oneArg(d *caddyfile.Dispenser) (string, error) {
	args := d.RemainingArgs()
	if len(args) != 1 {
		return "", d.ArgErr()
	}
	return args[0], nil
}

// keyArgs returns the template of a key.
func keyArgs(d *caddyfile.Dispenser) (string, error) {
	args := d.RemainingArgs()
	if len(args) == 0 {
		return "", d.ArgErr()
	}
	return strings.Join(args, " "), nil
}

// switchArg returns what is on or off.
func switchArg(d *caddyfile.Dispenser) (*bool, error) {
	word := d.Val()
	arg, err := oneArg(d)
	if err != nil {
		return nil, err
	}
	if arg != "on" && arg != "off" {
		return nil, d.Errf("%s is %q; want on or off", word, arg)
	}
	return new(arg == "on"), nil
}

// matchArgs adds one set of matchers.
func matchArgs(d *caddyfile.Dispenser, to *caddyhttp.RawMatcherSets) error {
	if d.NextArg() {
		if strings.HasPrefix(d.Val(), "@") {
			return d.Errf("match is %s, a named matcher; want its matchers written out here", d.Val())
		}
		d.Prev()
	}
	set, err := caddyhttp.ParseCaddyfileNestedMatcherSet(d)
	if err != nil {
		return err
	}
	*to = append(*to, set)
	return nil
}

// percentArg returns a percentage as a part of 1.
func percentArg(d *caddyfile.Dispenser) (*float64, error) {
	word := d.Val()
	arg, err := oneArg(d)
	if err != nil {
		return nil, err
	}
	number, found := strings.CutSuffix(arg, "%")
	n, err := strconv.ParseFloat(number, 64)
	if !found || err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		return nil, d.Errf("%s is %q; want a percentage like 70%%", word, arg)
	}
	return new(n / 100), nil
}

func intArg(d *caddyfile.Dispenser) (int, error) {
	word := d.Val()
	arg, err := oneArg(d)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(arg)
	if err != nil {
		return 0, d.Errf("%s is %q; want a whole number", word, arg)
	}
	return n, nil
}

func pointer(d *caddyfile.Dispenser, to **int) error {
	n, err := intArg(d)
	*to = &n
	return err
}

func durationPointer(d *caddyfile.Dispenser, to **caddy.Duration) error {
	word := d.Val()
	arg, err := oneArg(d)
	if err != nil {
		return err
	}
	v, err := caddy.ParseDuration(arg)
	if err != nil {
		return d.Errf("%s is %q; want a duration like 5s", word, arg)
	}
	*to = new(caddy.Duration(v))
	return nil
}

// parseRateArgs parses "<n>/<unit> [burst <n>]".
func parseRateArgs(d *caddyfile.Dispenser, args []string) (*Rate, error) {
	if len(args) != 1 && (len(args) != 3 || args[1] != "burst") {
		return nil, d.Errf("arguments are %q; want a rate like 50/s, or 50/s burst 100", strings.Join(args, " "))
	}
	var r Rate
	var err error
	if r.Rate, r.Per, err = parseRate(d, args[0]); err != nil {
		return nil, err
	}
	if len(args) == 3 {
		burst, err := strconv.Atoi(args[2])
		if err != nil {
			return nil, d.Errf("burst is %q; want a whole number", args[2])
		}
		r.Burst = &burst
	}
	return &r, nil
}

// parseRate parses "<n>/<s|m|h>".
func parseRate(d *caddyfile.Dispenser, s string) (n float64, per *caddy.Duration, err error) {
	number, unit, _ := strings.Cut(s, "/")
	units := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}
	n, err = strconv.ParseFloat(number, 64)
	if err != nil || units[unit] == 0 || math.IsNaN(n) || math.IsInf(n, 0) {
		return 0, nil, d.Errf("rate is %q; want a number per s, m or h, like 50/s", s)
	}
	return n, new(caddy.Duration(units[unit])), nil
}

var (
	_ caddyfile.Unmarshaler = (*Handler)(nil)
	_ caddyfile.Unmarshaler = (*App)(nil)
)
