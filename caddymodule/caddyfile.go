package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadshed"
)

func init() {
	httpcaddyfile.RegisterHandlerDirective("shield", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		var handler Handler
		if err := handler.UnmarshalCaddyfile(h.Dispenser); err != nil {
			return nil, err
		}
		return &handler, checkLines(h)
	})
	// Before authentication: checking passwords and tokens is a load to protect from, too.
	httpcaddyfile.RegisterDirectiveOrder("shield", httpcaddyfile.Before, "basic_auth")
	httpcaddyfile.RegisterGlobalOption("shield", func(d *caddyfile.Dispenser, existing any) (any, error) {
		if existing != nil {
			return nil, d.Err("global option shield is set twice; set it once")
		}
		var app App
		if err := app.UnmarshalCaddyfile(d); err != nil {
			return nil, err
		}
		return httpcaddyfile.App{Name: "shield", Value: caddyconfig.JSON(&app, nil)}, nil
	})
}

// checkLines makes the checks of Provision while the Caddyfile is still there, so that the
// errors have lines. Provision alone judges matchers and values of placeholders, which another
// machine may have. The shields of one Caddyfile are compared with each other.
func checkLines(helper httpcaddyfile.Helper) error {
	app, ok := helper.State["shield"].(*App)
	if !ok {
		app = &App{adapts: true}
		if global, ok := helper.Option("shield").(httpcaddyfile.App); ok {
			if err := json.Unmarshal(global.Value, app); err != nil {
				return err
			}
		}
		helper.State["shield"] = app
	}
	helper.Reset()
	one := new(Handler) // another one, because checks write defaults out
	if err := one.UnmarshalCaddyfile(helper.Dispenser); err != nil {
		return err
	}
	if one.Retries != nil && strings.Contains(one.Retries.Secret, "{") {
		one.Retries.Secret = "stands for a secret that is known later"
	}
	c, err := app.Check(one, "-nameless-") // before its server is known
	if err == nil {
		_, err = shield.New(c, nil)
	}
	return blame(helper.Dispenser, err, fmt.Sprintf("shield %q: ", one.Name), fmt.Sprintf("zone %q: ", one.Name+"/clients"))
}

// blame returns err with the lines of the options that are wrong. Every line of err's text is an error that begins with the
// words that lead to the option, as all of the project's do: `zone "a": burst is 0; ...`. The prefixes, which say less than the
// line, are taken off.
func blame(d *caddyfile.Dispenser, err error, prefixes ...string) error {
	if err == nil {
		return nil
	}
	var tokens []caddyfile.Token
	for d.Reset(); d.Next(); {
		tokens = append(tokens, d.Token())
	}
	var errs []error
	for text := range strings.Lines(err.Error()) {
		text = strings.TrimSpace(text)
		for _, prefix := range prefixes {
			text = strings.TrimPrefix(text, prefix)
		}
		at := 0 // the directive
		for word := range strings.FieldsSeq(text) {
			next := slices.IndexFunc(tokens[at+1:], func(t caddyfile.Token) bool { return t.Text == strings.Trim(word, `":`) })
			if next < 0 {
				break
			}
			at += 1 + next
		}
		d := caddyfile.NewDispenser(tokens[at : at+1])
		d.Next()
		errs = append(errs, d.Err(text))
	}
	return errors.Join(errs...)
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens: a rate for each client's address in the first line, and a block of
// options. docs/reference/configuration.md has their syntax.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume the directive's name
	if args := d.RemainingArgs(); len(args) > 0 {
		z := new(Zone)
		h.Zones = append(h.Zones, z)
		if err := z.Rate.read(d, "rate", args); err != nil {
			return err
		}
	}
	return parseBlock(d, h)
}

// UnmarshalCaddyfile sets up the app from the global option.
func (a *App) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume the option's name
	return parseBlock(d, a)
}

func (r *Rate) parse(d *caddyfile.Dispenser) error {
	return r.read(d, d.Val(), d.RemainingArgs())
}

// read reads "<n>/<s|m|h> [burst <n>]", the value of an option.
func (r *Rate) read(d *caddyfile.Dispenser, option string, args []string) error {
	if len(args) != 1 && (len(args) != 3 || args[1] != "burst") {
		return d.Errf("%s is %q; use a rate like 50/s, or 50/s burst 100", option, strings.Join(args, " "))
	}
	number, unit, _ := strings.Cut(args[0], "/")
	units := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "day": 24 * time.Hour, "month": shield.Month}
	n, ok := asFloat(number)
	if !ok || units[unit] == 0 {
		return d.Errf("%s is %q; use a number per s, m, h, day or month, like 50/s or 1M/day", option, args[0])
	}
	r.Rate, r.Per = n, new(caddy.Duration(units[unit]))
	if len(args) == 3 {
		return parseArg(d, "burst", args[2], &r.Burst)
	}
	return nil
}

func (r *ZoneRate) parse(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) == 0 || !strings.HasPrefix(args[0], "{") {
		if len(args) != 1 {
			return d.Errf("rate is %q; use a rate like 50/s, and put burst on its own line", strings.Join(args, " "))
		}
		return r.read(d, "rate", args)
	}
	if len(args) != 5 || args[1] != "min" || args[3] != "max" {
		return d.Errf("rate is %q; use {placeholder} min 10/m max 600/m", strings.Join(args, " "))
	}
	var low Rate
	if err := errors.Join(low.read(d, "min", args[2:3]), r.read(d, "max", args[4:])); err != nil {
		return err
	}
	r.From, r.Min = args[0], low.Rate*float64(*r.Per)/float64(*low.Per)
	return nil
}

func (c *Concurrency) parse(d *caddyfile.Dispenser) error {
	const want = "a whole number, adaptive, or slo and a duration"
	args := d.RemainingArgs()
	switch {
	case len(args) == 2 && args[0] == "slo":
		if err := parseArg(d, "slo", args[1], &c.Target); err != nil {
			return err
		}
	case len(args) != 1:
		return d.Errf("concurrency is %q; use %s", strings.Join(args, " "), want)
	case args[0] == "adaptive":
		c.Adaptive = true
	default:
		limit, ok := asNumber(args[0])
		if !ok {
			return d.Errf("concurrency is %q; use %s", args[0], want)
		}
		if c.Limit = *limit; c.Limit == 0 { // in JSON that means none
			return d.Errf("concurrency is 0; use 1 to %d", loadshed.MaxConcurrency)
		}
	}
	return parseBlock(d, c)
}

func (p *PerClient) parse(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	last := len(args) - 1
	noKey := func(arg string) bool { return !strings.Contains(arg, "{") }
	if last < 1 || slices.ContainsFunc(args[:last], noKey) {
		return d.Errf("per is %q; use a key and a whole number, like {client_ip} 10", strings.Join(args, " "))
	}
	n, ok := asNumber(args[last])
	if !ok {
		return d.Errf("per ends with %q; use a whole number", args[last])
	}
	p.Key, p.Limit = strings.Join(args[:last], " "), *n
	return nil
}

func (q *Queue) parse(d *caddyfile.Dispenser) error {
	args, ok := d.RemainingArgs(), false
	if len(args) == 1 && args[0] == "off" {
		q.Off = true
		return nil
	}
	if len(args) == 1 || len(args) == 3 && args[1] == "timeout" {
		q.Size, ok = asNumber(args[0])
	}
	if !ok {
		return d.Errf("queue is %q; use off alone, or how many requests can wait, like 32 or 32 timeout 100ms", strings.Join(args, " "))
	}
	if len(args) == 3 {
		return parseArg(d, "timeout", args[2], &q.Timeout)
	}
	return nil
}
