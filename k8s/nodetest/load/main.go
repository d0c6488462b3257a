// Command load sends requests to the system under test on a node, and prints their outcomes
// as JSON: see result.
//
//	load steady -url http://192.0.2.1/ -host shop.test -clients 16
//	load rate   -url http://192.0.2.1/ -host shop.test -rate 400
//	load herd   -url http://192.0.2.1/ -host shop.test -clients 1000 -within 100ms
//
// A steady load is a closed loop: each client has one keep-alive connection, and sends the
// next request after the response. The requests are POSTs whose body net/http cannot rewind,
// so that it never retries, and every broken connection shows as an error.
//
// A rate is an open loop: requests come independently of responses, each on a new connection, and do not retry.
//
// A herd wants one answer for each client. A client opens a connection for each attempt and,
// when it is rejected, obeys Retry-After to the second, like clients.Exact. The herd ends
// when all clients have been served or have given up.
//
// With -from, each client has its own address, which must be local to the network namespace:
// testbed/node-up sets up 10.1.0.0/16. steady and rate end after -duration, or at SIGINT or SIGTERM.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// A config is what the flags say.
type config struct {
	url      string
	host     string
	method   string
	clients  int
	from     netip.Addr
	body     int
	timeout  time.Duration
	duration time.Duration

	pause    time.Duration // steady
	rate     float64       // rate
	within   time.Duration // herd
	patience time.Duration // herd
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	modes := map[string]func(context.Context, *load){"steady": steady, "rate": rate, "herd": herd}
	if len(args) == 0 || modes[args[0]] == nil {
		return fmt.Errorf("arguments are %q; use a mode first: steady, rate or herd", args)
	}
	c, err := parse(args[0], args[1:])
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if c.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.duration)
		defer cancel()
	}
	l := newLoad(c)
	modes[args[0]](ctx, l)
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(l.end())
}

// parse reads the flags of a mode.
func parse(mode string, args []string) (c config, err error) {
	f := flag.NewFlagSet("load "+mode, flag.ExitOnError)
	f.StringVar(&c.url, "url", "", "`URL` to ask for; http only")
	f.StringVar(&c.host, "host", "", "`name` to ask it for (default: that in the URL)")
	f.StringVar(&c.method, "method", map[string]string{"steady": "POST"}[mode], "HTTP `method` (default GET)")
	f.IntVar(&c.body, "body", map[string]int{"steady": 1024}[mode], "`bytes` to send with each request")
	f.IntVar(&c.clients, "clients", 16, "`number` of clients; of a rate: of addresses that they have between them")
	f.TextVar(&c.from, "from", netip.Addr{}, "`address` of the first client; the others count on from there")
	f.DurationVar(&c.timeout, "timeout", 10*time.Second, "for one attempt")
	f.DurationVar(&c.duration, "duration", 0, "0: until it is told to end")
	switch mode {
	case "steady":
		f.DurationVar(&c.pause, "pause", 0, "of a client, after each response")
	case "rate":
		f.Float64Var(&c.rate, "rate", 100, "requests per second")
	case "herd":
		f.DurationVar(&c.within, "within", 100*time.Millisecond, "time in which all of them come")
		f.DurationVar(&c.patience, "patience", 5*time.Minute, "how long a client tries")
	}
	if err := f.Parse(args); err != nil {
		return config{}, err
	}
	return c, c.check(mode)
}

// check returns an error that names every flag that is out of range.
func (c config) check(mode string) error {
	var errs []error
	if u, err := url.Parse(c.url); err != nil || u.Scheme != "http" || u.Host == "" {
		errs = append(errs, fmt.Errorf("-url is %q; use http://host:port/", c.url))
	}
	if c.clients < 1 || c.clients > 10_000 {
		errs = append(errs, fmt.Errorf("-clients is %d; use 1 to 10000", c.clients))
	}
	if c.body < 0 || c.body > 1<<20 {
		errs = append(errs, fmt.Errorf("-body is %d; use 0 to 1 MiB", c.body))
	}
	if c.timeout <= 0 {
		errs = append(errs, fmt.Errorf("-timeout is %v; use more than 0", c.timeout))
	}
	if mode == "rate" && !(c.rate > 0 && c.rate <= 10_000) {
		errs = append(errs, fmt.Errorf("-rate is %v; use more than 0, at most 10000", c.rate))
	}
	if c.duration < 0 || c.pause < 0 || c.within < 0 || c.patience < 0 {
		errs = append(errs, errors.New("-duration, -pause, -within or -patience is negative; use 0 or more"))
	}
	return errors.Join(errs...)
}
