package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield/loadshed"
)

// checkFlags returns everything that is wrong with the flags, but for the values of limits, which
// the adapter of Caddyfiles checks.
func (p proxy) checkFlags() error {
	if len(p.To) == 0 {
		return errors.New("--to is missing; want the backend's address, like 127.0.0.1:9000")
	}
	for _, flag := range []struct{ name, value string }{
		{"from", p.From}, {"to", strings.Join(p.To, "")}, {"rate", p.Rate}, {"capacity", p.Capacity},
		{"concurrency", p.Concurrency}, {"timeout", p.Timeout}, {"admin", p.Admin},
	} {
		if strings.ContainsAny(flag.value, " \t\r\n{}\"`#\\,") {
			return fmt.Errorf("--%s is %q; want neither spaces nor quotes nor braces in it", flag.name, flag.value)
		}
	}
	var wrong problems
	if strings.HasPrefix(p.From, "unix/") {
		wrong.addf("--from is %q; want a host and port: a Unix socket needs a Caddyfile, with bind", p.From)
	} else if !addressable(p.From, true, "http", "https") {
		wrong.addf("--from is %q; want an address to listen on, like :8080 or 127.0.0.1:8080, or a domain name", p.From)
	}
	for _, to := range p.To {
		if !strings.HasPrefix(to, "unix") && !addressable(to, false, "http", "https", "h2c") {
			wrong.addf("--to is %q; want the backend's address, like 127.0.0.1:9000, app:80 or https://app.example, without a path", to)
		}
	}
	if _, err := caddy.ParseNetworkAddress(p.Admin); p.Admin != "off" && !strings.HasPrefix(p.Admin, "unix") && (err != nil || !addressable(p.Admin, false) || !strings.Contains(p.Admin, ":")) {
		wrong.addf("--admin is %q; want a host and port, like localhost:2019, or off", p.Admin)
	}
	if n, err := strconv.Atoi(p.Concurrency); p.Concurrency != "" && p.Concurrency != "adaptive" && (err != nil || n < 1 || n > loadshed.MaxConcurrency) {
		wrong.addf("--concurrency is %q; want 1 to %d, or adaptive", p.Concurrency, loadshed.MaxConcurrency)
	}
	if p.Burst != nil && p.Rate == "" {
		wrong.addf("--burst is %d without --rate; want both", *p.Burst)
	}
	if p.Rate == "" && p.Capacity == "" && p.Concurrency == "" {
		wrong.addf("the limit is missing; want --rate, --capacity or --concurrency")
	}
	wrong.add(p.loops())
	return errors.Join(wrong...)
}

// addressable reports whether a text is a host, a port or both, maybe with one of these schemes.
// Only some may be a port without a colon.
func addressable(text string, port bool, schemes ...string) bool {
	if scheme, rest, ok := strings.Cut(text, "://"); ok {
		if !slices.Contains(schemes, scheme) {
			return false
		}
		text = rest
	}
	if isPort(text) {
		return port
	}
	host, number, err := net.SplitHostPort(text)
	if err != nil {
		host, number = text, ""
		if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
			host = text[1 : len(text)-1]
		}
		if host == "" {
			return false
		}
	} else if first, last, isRange := strings.Cut(number, "-"); !isPort(first) || isRange && !isPort(last) {
		return false
	}
	if _, err := netip.ParseAddr(host); err == nil || host == "" {
		return true
	}
	// A host of digits and dots alone is a wrong IP address.
	return !strings.ContainsAny(host, ":/@?[]") && strings.Trim(host, "0123456789.") != ""
}

func isPort(text string) bool {
	_, err := strconv.ParseUint(text, 10, 16)
	return err == nil
}

// limitFlags are the flags whose values stand in the Caddyfile of the command line after these words.
var limitFlags = map[string]string{
	"rate": "rate", "zone": "rate", "burst": "burst", "capacity": "capacity", "concurrency": "concurrency", "timeout": "timeout",
}

// atLine is where errors say that the Caddyfile of the command line is wrong. Users do not see it.
var atLine = regexp.MustCompile(`, at command line:(\d+)`)

// sayOnlyWhat are errors that say what the option is and what is wanted, and no more.
var sayOnlyWhat = regexp.MustCompile(`^(zone "per_client": )?(capacity: )?[a-z ]+ is (\S+|missing or 0)( per \S+)?; want `)

// blame returns the errors of the Caddyfile with the flags in place of its lines.
func (p proxy) blame(caddyfile string, err error) error {
	lines := strings.Split(caddyfile, "\n")
	var wrong problems
	for text := range strings.Lines(strings.TrimPrefix(err.Error(), "parsing caddyfile tokens for 'shield': ")) {
		text = strings.TrimSpace(text)
		flag := ""
		if at := atLine.FindStringSubmatch(text); at != nil {
			text = atLine.ReplaceAllString(text, "")
			if n, _ := strconv.Atoi(at[1]); n >= 1 && n <= len(lines) {
				word, _, _ := strings.Cut(strings.TrimSpace(lines[n-1]), " ")
				flag = limitFlags[word]
			}
		}
		value := map[string]string{"rate": p.Rate, "capacity": p.Capacity, "concurrency": p.Concurrency, "timeout": p.Timeout}[flag]
		if flag == "burst" {
			value = strconv.Itoa(*p.Burst)
		}
		if flag == "timeout" {
			text += ", or off"
		}
		switch said := sayOnlyWhat.FindString(text); {
		case flag == "": // Caddy's own
			wrong.addf("%s", strings.NewReplacer("parsing caddyfile tokens for 'reverse_proxy'", "--to", "parsing key", "--from").Replace(text))
		case said != "":
			wrong.addf("--%s is %q; want %s", flag, value, text[len(said):])
		default:
			wrong.addf("--%s is %q: %s", flag, value, text)
		}
	}
	return errors.Join(wrong...)
}
