package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield/internal/configfile"
	"github.com/herdshield/shield/loadshed"
)

// checkFlags returns everything that is wrong with the flags. The values of limits are checked as
// in a Caddyfile.
func (p proxy) checkFlags() error {
	if len(p.To) == 0 {
		return errors.New("--to is missing; use the backend's address, like 127.0.0.1:9000")
	}
	for _, flag := range []struct{ name, value string }{
		{"from", p.From}, {"to", strings.Join(p.To, "")}, {"rate", p.Rate}, {"capacity", p.Capacity},
		{"concurrency", p.Concurrency}, {"timeout", p.Timeout}, {"admin", p.Admin},
	} {
		if strings.ContainsAny(flag.value, " \t\r\n{}\"`#\\,") {
			return fmt.Errorf("--%s is %q; remove its spaces, quotes, braces and commas", flag.name, flag.value)
		}
	}
	var wrong problems
	if strings.HasPrefix(p.From, "unix/") {
		wrong.addf("--from is %q; use a host and port: a Unix socket needs a Caddyfile, with bind", p.From)
	} else if !isPort(p.From) && !addressable(p.From, "http", "https") {
		wrong.addf("--from is %q; use an address to listen on, like :8080 or 127.0.0.1:8080, or a domain name", p.From)
	}
	for _, to := range p.To {
		if !strings.HasPrefix(to, "unix") && !addressable(to, "http", "https", "h2c") {
			wrong.addf("--to is %q; use the backend's address, like 127.0.0.1:9000, app:80 or https://app.example, without a path", to)
		} else if len(wrong) == 0 && p.isItself(to) {
			wrong.addf("--to is %q, where this proxy itself listens (--from %s); use the backend's address", to, p.From)
		}
	}
	if _, err := caddy.ParseNetworkAddress(p.Admin); p.Admin != "off" && !strings.HasPrefix(p.Admin, "unix") &&
		(err != nil || strings.Contains(p.Admin, "://") || !addressable(p.Admin, "http") || !strings.Contains(p.Admin, ":")) {
		wrong.addf("--admin is %q; use a host and port, like localhost:2019, or off", p.Admin)
	}
	if n, err := strconv.Atoi(p.Concurrency); p.Concurrency != "" && p.Concurrency != "adaptive" && (err != nil || n < 1 || n > loadshed.MaxConcurrency) {
		wrong.addf("--concurrency is %q; use 1 to %d, or adaptive", p.Concurrency, loadshed.MaxConcurrency)
	}
	if p.Burst != nil && p.Rate == "" {
		wrong.addf("--burst is %d without --rate; use both", *p.Burst)
	}
	if p.Rate == "" && p.Capacity == "" && p.Concurrency == "" {
		wrong.addf("no limit is set; use --rate, --capacity or --concurrency")
	}
	for _, limit := range []struct{ flag, value, text string }{
		{"--rate", p.Rate, "zone clients {\nrate " + p.Rate + p.burst() + "\n}"},
		{"--capacity", p.Capacity, "capacity " + p.Capacity},
		{"--timeout", strings.TrimSuffix(p.Timeout, "off"), "capacity 1/s\ntimeout " + p.Timeout},
	} {
		if limit.value == "" {
			continue
		}
		_, err := configfile.Read("command line", []byte("shield {\n"+limit.text+"\n}"))
		switch {
		case err != nil && limit.flag == "--timeout": // which can be off, unlike the option timeout
			wrong.addf("--timeout is %q; use a duration like 60s, 1ms to 24h, or off", p.Timeout)
		case err != nil:
			wrong.addf("%s: %s", limit.flag, unseen.ReplaceAllString(err.Error(), ""))
		}
	}
	return errors.Join(wrong...)
}

// isItself reports whether a backend's address is certainly that of --from: it has its port, and its
// host or one of this machine that a --from without a host has, too.
func (p proxy) isItself(to string) bool {
	host, port, err := net.SplitHostPort(to)
	if _, rest, found := strings.Cut(to, "://"); found {
		host, port, err = net.SplitHostPort(rest)
	}
	bind, listens, wrong := net.SplitHostPort(p.address().socket)
	if err != nil || wrong != nil || port != listens {
		return false
	}
	loopback := func(host string) bool {
		ip, err := netip.ParseAddr(host)
		return host == "" || host == "localhost" || err == nil && (ip.IsLoopback() || ip.IsUnspecified())
	}
	every := bind == "" || bind == "0.0.0.0" || bind == "::"
	return host == bind || loopback(host) && (every || bind == "localhost" && host == "127.0.0.1")
}

// unseen is what errors say of a Caddyfile that users do not see.
var unseen = regexp.MustCompile(`, at command line:\d+|parsing caddyfile tokens for 'shield': |zone "clients": |capacity: `)

func (p proxy) burst() string {
	if p.Burst == nil {
		return ""
	}
	return fmt.Sprintf("\nburst %d", *p.Burst)
}

// addressable reports whether a text is a host, with a port or without, or a colon and a port. It may
// have one of these schemes.
func addressable(text string, schemes ...string) bool {
	if !strings.Contains(text, "://") {
		text = schemes[0] + "://" + text
	}
	u, err := url.Parse(text)
	if err != nil || !slices.Contains(schemes, u.Scheme) || u.Host == "" || u.Path+u.RawQuery != "" || u.User != nil {
		return false
	}
	host := u.Hostname()
	if _, err := netip.ParseAddr(host); err != nil && host != "" && (strings.Contains(host, ":") || strings.Trim(host, "0123456789.") == "") {
		return false // a host of digits and dots alone is a wrong IP address
	}
	return u.Port() == "" || isPort(u.Port())
}

func isPort(text string) bool {
	_, err := strconv.ParseUint(text, 10, 16)
	return err == nil
}
