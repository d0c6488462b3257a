package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "proxy",
		Usage: "--from <addr> --to <addr> [--rate <n>/<s|m|h>] [--burst <n>] [--capacity <n>/<s|m|h>] [--concurrency <n>|adaptive]",
		Short: "Puts the shield before one backend, without a config file",
		Long: `
Passes requests from the --from address to the --to address, and refuses requests
over the limits with 429 or 503 and a computed Retry-After.

An IP address, localhost or a port alone in --from is served as HTTP; a domain
name is served as HTTPS with a certificate, as Caddy does. Repeat --to for
several backends.

At least one limit is needed:
  --rate         the rate limit of each client, by address (429)
  --burst        how many requests a client may send at once
  --capacity     the rate that the backend can serve, of all clients (503)
  --concurrency  how many requests the backend can work on at once (503), or
                 "adaptive" for a limit that is found automatically

With --observe no request is refused; metrics, logs and "shield status" show
which would have been.
`,
		CobraFunc: func(cmd *cobra.Command) {
			cmd.Example = `  Each client may send 5 requests per second:
  $ shield proxy --from :8080 --to 127.0.0.1:9000 --rate 5/s

  The backend takes 500 requests per second, and 64 at once, from all clients:
  $ shield proxy --from example.com --to app-1:80 --to app-2:80 --capacity 500/s --concurrency 64

  The limit of the backend is not known:
  $ shield proxy --from :8080 --to 127.0.0.1:9000 --concurrency adaptive

  Observe first, enforce later:
  $ shield proxy --from :8080 --to 127.0.0.1:9000 --rate 5/s --burst 20 --observe`
			f := cmd.Flags()
			f.StringP("from", "f", ":8080", "address on which to receive requests")
			f.StringSliceP("to", "t", nil, "address of the backend")
			f.String("rate", "", "rate limit of each client, like 5/s, 100/m or 1000/h")
			f.Int("burst", 0, "how many requests a client may send at once (default: what one second allows)")
			f.String("capacity", "", "rate limit of all clients together, like 500/s")
			f.String("concurrency", "", `how many requests the backend can work on at once, or "adaptive"`)
			f.Bool("observe", false, "refuse no request, only report")
			f.Bool("access-log", false, "log every request")
			f.String("admin", caddy.DefaultAdminListen, `address for "shield status" and metrics, or "off"`)
			cmd.Args = cobra.NoArgs
			// Errors go to cobra, which prints them as text; Caddy's own wrapper
			// would log them as JSON.
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return runProxy(caddycmd.Flags{FlagSet: cmd.Flags()}) }
		},
	})
}

func runProxy(flags caddycmd.Flags) error {
	caddy.TrapSignals()
	to, err := flags.GetStringSlice("to")
	if err != nil {
		return err
	}
	p := proxy{
		from: flags.String("from"), to: to, admin: flags.String("admin"),
		rate: flags.String("rate"), capacity: flags.String("capacity"), concurrency: flags.String("concurrency"),
		observe: flags.Bool("observe"), accessLog: flags.Bool("access-log"),
	}
	if flags.Changed("burst") {
		p.burst = new(flags.Int("burst"))
	}
	config, err := p.config()
	if err != nil {
		return err
	}
	if err := caddy.Load(config, false); err != nil {
		return err
	}
	caddy.Log().Info("shield is up", zap.String("from", p.from), zap.Strings("to", p.to), zap.String("admin", p.admin))
	select {} // until a signal
}

// proxy is the command line of "shield proxy".
type proxy struct {
	from, admin        string
	to                 []string
	rate, capacity     string // "": not given, like the next
	concurrency        string
	burst              *int // nil: not given
	observe, accessLog bool
}

// config returns the Caddy configuration of the command line. It goes through a
// Caddyfile, so that limits and addresses have the same meaning as there.
func (p proxy) config() ([]byte, error) {
	caddyfile, err := p.caddyfile()
	if err != nil {
		return nil, err
	}
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "command line"})
	return config, err
}

func (p proxy) caddyfile() (string, error) {
	if len(p.to) == 0 {
		return "", fmt.Errorf("--to is missing; want the backend's address, like 127.0.0.1:9000")
	}
	for _, flag := range []struct{ name, value string }{
		{"from", p.from}, {"to", strings.Join(p.to, "")}, {"rate", p.rate}, {"capacity", p.capacity}, {"concurrency", p.concurrency}, {"admin", p.admin},
	} {
		if strings.ContainsAny(flag.value, " \t\r\n{}\"`#\\,") {
			return "", fmt.Errorf("--%s is %q; want neither spaces nor quotes nor braces in it", flag.name, flag.value)
		}
	}
	if strings.HasPrefix(p.from, "unix/") {
		return "", fmt.Errorf("--from is %q; want a host and port: a Unix socket needs a Caddyfile, with bind", p.from)
	}
	if p.burst != nil && p.rate == "" {
		return "", fmt.Errorf("--burst is %d without --rate; want both", *p.burst)
	}
	if p.rate == "" && p.capacity == "" && p.concurrency == "" {
		return "", fmt.Errorf("there is no limit; want --rate, --capacity or --concurrency")
	}

	site, bind := siteAddress(p.from)
	var b bytes.Buffer
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("{")
	line("	admin %s", p.admin)
	line("	persist_config off")
	line("}")
	line("%s {", site)
	if bind != "" {
		line("	bind %s", bind)
	}
	if p.accessLog {
		line("	log")
	}
	line("	shield {")
	line("		name proxy")
	if p.observe {
		line("		mode observe")
	}
	if p.rate != "" {
		line("		zone per_client {")
		line("			rate %s", p.rate)
		if p.burst != nil {
			line("			burst %d", *p.burst)
		}
		line("		}")
	}
	if p.capacity != "" {
		line("		capacity %s", p.capacity)
	}
	if p.concurrency != "" {
		line("		concurrency %s", p.concurrency)
	}
	line("	}")
	line("	reverse_proxy %s", strings.Join(p.to, " "))
	line("}")
	return b.String(), nil
}

// siteAddress returns the Caddyfile's site address for --from, and the address to bind
// to. Caddy would serve a site at an IP address or localhost by HTTPS, with its own
// authority, and listen on all interfaces. To protect a backend on one machine, neither
// is wanted; https:// in front asks for it.
func siteAddress(from string) (site, bind string) {
	if strings.HasPrefix(from, "https://") {
		return from, ""
	}
	from, plain := strings.CutPrefix(from, "http://")
	host, port := from, ""
	if _, err := netip.ParseAddr(from); err == nil {
		// no port to cut off: 192.0.2.1 or ::1
	} else if _, err := strconv.ParseUint(from, 10, 16); err == nil {
		host, port = "", ":"+from
	} else if i := strings.LastIndex(from, ":"); i >= 0 && !strings.HasSuffix(from, "]") {
		host, port = from[:i], from[i:]
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	switch {
	case err == nil:
		return "http://" + port, ip.String()
	case host == "localhost":
		return "http://" + port, host
	case host == "":
		return "http://" + port, ""
	case plain:
		return "http://" + from, ""
	}
	return from, ""
}
