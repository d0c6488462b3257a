package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"text/template"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/caddymodule/commands"
	"github.com/herdshield/shield/caddymodule/operate"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/report"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "proxy",
		Usage: "--from <address> --to <address> {--rate <rate> [--burst <n>] | --capacity <rate> | --concurrency {<n> | adaptive}}... [flags]",
		Short: "Put shield in front of a backend, without a config file",
		Long:  proxyHelp,
		CobraFunc: func(cmd *cobra.Command) {
			cmd.Example = `  Let each client send 5 requests per second:
  $ shield proxy --from :8080 --to 127.0.0.1:9000 --rate 5/s

  Protect a backend that can serve 500 requests per second, 64 of them concurrently:
  $ shield proxy --from example.com --to app-1:80 --to app-2:80 --capacity 500/s --concurrency 64

  Let shield find out how much the backend can take:
  $ shield proxy --from :8080 --to 127.0.0.1:9000 --concurrency adaptive

  Share one limit between several replicas:
  $ SHIELD_SECRET=$(cat secret) shield proxy --from :8080 --to app:80 --capacity 500/s --store redis://redis:6379

  Observe first, enforce later:
  $ shield proxy --from :8080 --to 127.0.0.1:9000 --rate 5/s --burst 20 --observe`
			var p proxy
			f := cmd.Flags()
			f.StringVarP(&p.From, "from", "f", ":8080", "`address` to listen on")
			f.StringSliceVarP(&p.To, "to", "t", nil, "`address` of the backend; repeat for several")
			f.StringVar(&p.Rate, "rate", "", "per-client `rate` limit, such as 5/s, 100/m, or 1000/h")
			burst := f.Int("burst", 0, "requests a client can send in one burst (default: the number in the rate, such as 100 for 100/m)")
			f.StringVar(&p.Capacity, "capacity", "", "`rate` limit for all clients together, such as 500/s")
			f.StringVar(&p.Concurrency, "concurrency", "", "`number` of requests the backend can work on concurrently, or \"adaptive\" to find that limit automatically")
			f.StringVar(&p.Timeout, "timeout", "60s", "`time` to wait for the backend, or \"off\"")
			f.StringVar(&p.Store, "store", "", "`URL` of the Redis or Valkey server through which replicas share limits")
			f.BoolVar(&p.Observe, "observe", false, "reject nothing; only report what would have been rejected")
			f.BoolVar(&p.AccessLog, "access-log", false, "log every request; this turns off fast reject, so rejections cost more CPU")
			f.BoolVar(&p.ReusePort, "reuse-port", false, "start even if another process is listening on the same addresses")
			f.StringVar(&p.Admin, "admin", caddy.DefaultAdminListen, "`address` of the admin endpoint for \"shield status\" and metrics, or \"off\"")
			cmd.DisableFlagsInUseLine = true
			cmd.Args = commands.Args(0, 0, "flags only, like --to 127.0.0.1:9000")
			// cobra prints errors as text; Caddy's own wrapper would log them as JSON.
			cmd.RunE = func(*cobra.Command, []string) error {
				if f.Changed("burst") {
					p.Burst = burst
				}
				return p.run()
			}
		},
	})
}

const proxyHelp = `
Put shield in front of one backend without writing a config file. Requests that
arrive at --from go on to --to. If a request is over a limit, the client gets 429 or
503 instead, with a Retry-After computed for that client.

Set at least one limit:
  --rate         what each client can send, by address (429)
  --capacity     what all clients together can send (503)
  --concurrency  how many requests the backend works on concurrently (503)

To try out limits before enforcing them, add --observe. Nothing is rejected then, while
metrics, logs, and "shield status" show what would have been rejected.

If --from is an IP address, localhost, or only a port, shield serves plain HTTP
there. For a domain name, it serves HTTPS with a certificate that Caddy obtains. To
balance over several backends, repeat --to.

If the backend doesn't respond within --timeout, the client gets a 504, and the
request stops counting as in flight. The same happens if a response pauses for that
long, unless it is an event stream or gRPC. Time spent waiting for a slow client
doesn't count. With --observe, there is no timeout.

With --store, replicas share these limits through a Redis or Valkey server. Its URL is
redis://[user[:password]@]host[:port][,host...][/?prefix=...], or rediss:// for TLS.
Set these environment variables, too:
  SHIELD_SECRET          secret that client names are hashed with: at least 16 bytes,
                         and the same on all replicas
  SHIELD_STORE_PASSWORD  password of the store, if the URL has none
To check the store, run "shield status --store".

On a terminal, shield prints its limits, its address, and a command to try, and logs
only warnings. Elsewhere, it logs JSON.

If another process is already listening on --from or --admin, shield won't start.
Otherwise, the two would share the traffic, and each would admit up to the full limit.
To take over from a running instance, start the new one with --reuse-port.
`

// A proxy is the command line of "shield proxy".
type proxy struct {
	From, Admin        string
	To                 []string
	Rate, Capacity     string // "": not given, like the next two
	Concurrency, Store string
	Timeout            string // "off", or "": none
	Burst              *int   // nil: not given
	Observe, AccessLog bool
	ReusePort          bool
	Terminal           bool // its log is read by a person, who has been told what is up
}

func (p proxy) run() error {
	caddy.TrapSignals()
	p.Terminal = terminal(os.Stderr).terminal
	config, err := p.config()
	if err != nil {
		return err
	}
	if err := p.probe(); err != nil {
		return err
	}
	if err := caddy.Load(config, false); err != nil {
		return err
	}
	if p.Terminal {
		p.greet(os.Stderr)
	} else {
		caddy.Log().Info("shield is up", zap.String("from", p.From), zap.Strings("to", p.To), zap.String("admin", p.Admin))
	}
	select {} // caddy.TrapSignals ends the process
}

// probe returns an error if another process listens at --from or --admin. Caddy would listen
// beside it, for it sets SO_REUSEPORT, and the kernel would share the connections out.
func (p proxy) probe() error {
	if p.ReusePort {
		return nil
	}
	for _, flag := range []struct{ name, address string }{{"from", p.address().socket}, {"admin", p.Admin}} {
		if flag.address != "off" && operate.Listened(flag.address) {
			return fmt.Errorf("--%s is %s, where another process is listening, maybe another shield; use another address, stop that process, or share the address with --reuse-port",
				flag.name, flag.address)
		}
	}
	return nil
}

// greet says what is limited, where the proxy listens, and what to try next.
func (p proxy) greet(w io.Writer) {
	does, limits := "limits", []string{}
	if p.Observe {
		does = "observes, and would limit"
	}
	for _, limit := range [][2]string{
		{"each client to ", p.Rate + strings.ReplaceAll(p.burst(), "\n", " ")},
		{"all clients together to ", p.Capacity},
		{"requests in flight to ", strings.Replace(p.Concurrency, "adaptive", "what the backend handles best", 1)},
	} {
		if limit[1] != "" {
			limits = append(limits, limit[0]+limit[1])
		}
	}
	url, try := p.address().url, "shield status"
	switch p.Admin {
	case "off":
		try = "shield demo"
	case caddy.DefaultAdminListen:
	default:
		try += " --address " + p.Admin
	}
	fmt.Fprintf(w, "shield %s %s.\nIt listens on %s in front of %s.\nTry: curl -i %s, and %s in another terminal. Press Ctrl-C to stop.\n",
		does, strings.Join(limits, ", "), url, strings.Join(p.To, " and "), url, try)
}

var proxyCaddyfile = template.Must(template.New("proxy").Parse(`{
	admin off
{{- if ne .Admin "off"}}
	shield {
		page {{.Admin}}
	}{{end}}
	persist_config off
	log {
		exclude admin
{{- if and .Terminal (not .AccessLog)}}
		level WARN{{end}}
	}
{{- if or .Plain (not .AccessLog)}}
	servers {
{{- if .Plain}}
		protocols h1{{end}}
{{- if not .AccessLog}}
		listener_wrappers {
			shield
		}{{end}}
	}{{end}}
}
{{.Site}} {
{{- with .Bind}}
	bind {{.}}{{end}}
{{- if .AccessLog}}
	log{{end}}
	shield {
		name proxy
{{- if .Observe}}
		mode observe{{end}}
{{- if .Rate}}
		zone clients {
			rate {{.Rate}}
{{- with .Burst}}
			burst {{.}}{{end}}
		}{{end}}
{{- with .Capacity}}
		capacity {{.}}{{end}}
{{- with .Concurrency}}
		concurrency {{.}}{{end}}
{{- if and .Timeout (ne .Timeout "off")}}
		timeout {{.Timeout}}{{end}}
	}
	reverse_proxy{{range .To}} {{.}}{{end}} {
		transport http {
			keepalive_idle_conns_per_host {{.Idle}}
			compression off
		}
	}
}
`))

// idleConns is how many idle connections to one backend are kept. With Caddy's 32 it dials
// anew as soon as more requests than that are in flight, which takes 14% more of the CPU
// (110 against 94 us for each request).
const idleConns = 1024

// config returns the Caddy configuration of the command line. It goes through a
// Caddyfile, so that limits and addresses have the same meaning as there.
func (p proxy) config() ([]byte, error) {
	caddyfile, err := p.caddyfile()
	if err != nil {
		return nil, err
	}
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "command line"})
	if err != nil { // Caddy's own: the values of limits have been checked
		return nil, errors.New(strings.NewReplacer("parsing caddyfile tokens for 'reverse_proxy'", "--to", "parsing key", "--from").Replace(unseen.ReplaceAllString(err.Error(), "")))
	}
	if p.Store != "" {
		return p.share(config)
	}
	return config, nil
}

// The environment has what should not be on a command line.
const (
	secretVariable   = "SHIELD_SECRET"
	passwordVariable = "SHIELD_STORE_PASSWORD"
)

// share adds the store to a config. Placeholders stand for the password of --store and for the secret, so that
// the running config, which the admin endpoint shows, has neither.
func (p proxy) share(config []byte) ([]byte, error) {
	store, err := caddymodule.ParseStoreURL(p.Store)
	if err != nil {
		return nil, fmt.Errorf("--%w", err)
	}
	if os.Getenv(secretVariable) == "" {
		return nil, fmt.Errorf("%s is not set; use the secret of all replicas that share the store, such as the output of openssl rand -hex 16", secretVariable)
	}
	if n := len(os.Getenv(secretVariable)); n < limiter.MinSecret {
		return nil, fmt.Errorf("%s has %s; use at least %d, such as the output of openssl rand -hex 16", secretVariable, report.Plural(n, "byte", "bytes"), limiter.MinSecret)
	}
	store.Secret = "{env." + secretVariable + "}"
	if store.Password != "" {
		os.Setenv(passwordVariable, store.Password)
	}
	if os.Getenv(passwordVariable) != "" {
		store.Password = "{env." + passwordVariable + "}"
	}
	var whole caddy.Config
	if err := json.Unmarshal(config, &whole); err != nil {
		return nil, err
	}
	app := &caddymodule.App{Store: &store}
	if p.Admin != "off" {
		app.Page = p.Admin
	}
	whole.AppsRaw["shield"] = caddyconfig.JSON(app, nil)
	return json.Marshal(whole)
}

func (p proxy) caddyfile() (string, error) {
	if err := p.checkFlags(); err != nil {
		return "", err
	}
	at := p.address()
	var b strings.Builder
	err := proxyCaddyfile.Execute(&b, struct {
		proxy
		Site, Bind string
		Plain      bool // without TLS there is HTTP/1.1 only, and Caddy warns if others are wanted
		Idle       int
	}{p, at.site, at.bind, strings.HasPrefix(at.site, "http://"), idleConns})
	return b.String(), err
}

// An address is what --from means.
type address struct {
	site, bind string // the Caddyfile's site address, and the address to bind to
	socket     string // where it listens
	url        string // what a browser on this machine asks for
}

// address reads --from. Caddy would serve a site at an IP address or localhost by HTTPS, with its own
// authority, and listen on all interfaces. To protect a backend on one machine, neither is wanted; https://
// in front asks for it.
func (p proxy) address() (a address) {
	from, secure := strings.CutPrefix(p.From, "https://")
	from, plain := strings.CutPrefix(from, "http://")
	if isPort(from) {
		from = ":" + from
	}
	host, port, err := net.SplitHostPort(from)
	if err != nil {
		host, port = strings.Trim(from, "[]"), "" // without a port
	}
	ip, notIP := netip.ParseAddr(host)
	browser := from
	switch here := notIP == nil || host == "localhost" || host == ""; {
	case secure:
		a.site = p.From
	case here:
		plain, a.bind = true, host
		if browser = host; host == "" || ip.IsUnspecified() {
			browser = "localhost"
		} else if ip.Is6() {
			browser = "[" + host + "]"
		}
		if port != "" {
			a.site = ":" + port
			browser += strings.TrimSuffix(a.site, ":80")
		}
		a.site = "http://" + a.site
	case plain:
		a.site = "http://" + from
	default:
		a.site = from
	}
	scheme, usual := "https://", "443"
	if plain {
		scheme, usual = "http://", "80"
	}
	a.socket, a.url = net.JoinHostPort(a.bind, cmp.Or(port, usual)), scheme+browser+"/"
	return a
}
