package main

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/pflag"

	"github.com/herdshield/shield/k8s/ingress"
	"github.com/herdshield/shield/k8s/policy"
)

// A command is the parsed command line.
type command struct {
	options     ingress.Options
	version     bool
	printConfig bool
	store       string // a URL
	flags       *pflag.FlagSet
}

// parse reads the arguments. env gives environment variables: POD_NAMESPACE and
// POD_NAME are the pod's own, SHIELD_SECRET and SHIELD_STORE_PASSWORD the store's.
func parse(args []string, env func(string) string) (command, error) {
	c := command{options: ingress.DefaultOptions()}
	f := pflag.NewFlagSet("shield-ingress", pflag.ContinueOnError)
	f.SortFlags = false
	f.Usage = func() {}
	c.flags = f
	app := c.options.App
	app.Namespace, app.Pod = env("POD_NAMESPACE"), env("POD_NAME")
	app.Controller = "herdshield.io/ingress"
	app.Replicas = "divided"
	if app.Namespace != "" {
		app.Service = app.Namespace + "/shield-ingress"
	}
	c.define()
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if f.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q; use flags only", f.Arg(0))
	}
	if err := c.share(env); err != nil {
		return c, err
	}
	if app.PublishService != "" && len(app.PublishAddresses) > 0 {
		return c, errors.New("--publish-service and --publish-address are both set; use one of them")
	}
	if app.Pod == "" && !f.Changed("service") {
		app.Service = "" // the default is useless: a replica must find itself there
	}
	if app.Pod == "" && app.Service != "" && app.Replicas != "local" {
		return c, errors.New("--service divides limits, but the environment variable POD_NAME is not set; set it to the pod's name, or use --replicas local")
	}
	return c, nil
}

// share sets the store, of which the environment has what flags must not show.
func (c *command) share(env func(string) string) (err error) {
	if shared := c.options.App.Replicas == "shared"; shared != (c.store != "") {
		return errors.New("--replicas shared and --store belong together; use both or neither")
	}
	if c.store != "" {
		c.options.Store, err = ingress.ParseStore(c.store, env)
	}
	return err
}

// define defines the flags, in the order of --help.
func (c *command) define() {
	f, o, app := c.flags, &c.options, c.options.App

	// The cluster.
	f.StringVar(&app.Kubeconfig, "kubeconfig", "", "`file` with the API server's address and credentials (default: the pod's service account)")
	f.Var(text(&app.Controller, controller), "controller-class", "serve IngressClasses with this `controller`")
	f.Var(text(&app.IngressClass, object), "ingress-class", "`name` of the IngressClass with --namespaces, when IngressClasses can't be read (default shield)")
	f.BoolVar(&app.WatchWithoutClass, "watch-ingress-without-class", false, "also serve Ingresses without a class")
	f.Var(texts(&app.Namespaces, label), "namespaces", "watch only these `namespaces` (default: all)")
	f.Var(text(&app.PublishService, pair), "publish-service", "`namespace/name` of the Service whose addresses go into the status of Ingresses")
	f.Var(texts(&app.PublishAddresses, address), "publish-address", "`addresses` or host names to use for that status instead")
	f.Var(text(&app.DefaultCertificate, pair), "default-certificate", "`namespace/name` of the Secret for hosts without a certificate (default: self-signed)")
	f.BoolVar(&app.ShareHosts, "share-hosts", false, "let Ingresses in several namespaces have paths on one host")
	f.Var(texts(&app.AuthHosts, authHost), "auth-hosts", "`hosts` allowed in auth-url, like auth.example.com or *.auth.svc.cluster.local (default: any)")
	f.BoolVar(&app.PreferIPv6, "prefer-ipv6", false, "use the IPv6 addresses of dual-stack pods")
	f.Var((*size)(&app.BodySize), "body-size", "largest `size` of a request body, like 100m, or off; with --nginx-annotations, the default is 1m (default 100m)")
	f.Var((*timeout)(&app.RequestTimeout), "request-timeout", "longest `time` for a whole request, like 5m, or off (default off)")
	f.Var((*timeout)(&app.BackendTimeout), "backend-timeout", "longest `time` for one attempt at a backend, or off (default off)")
	f.Var((*timeout)(&app.ResponseTimeout), "response-timeout", "longest `time` to wait for a backend, until its response starts and then for each further part, or off (default 60s)")
	f.BoolVar(&app.NginxAnnotations, "nginx-annotations", false, "read ingress-nginx annotations")

	// The replicas.
	f.Var(text(&app.Replicas, replicas), "replicas", "what limits mean with several replicas: the `mode` \"divided\" gives each an equal part, \"shared\" shares them through a store, \"local\" applies them in each replica")
	f.StringVar(&c.store, "store", "", "`URL` of the Redis or Valkey server for --replicas=shared, like rediss://redis:6379")
	f.Var(text(&app.Service, pair), "service", "`namespace/name` of the Service whose endpoints are the replicas (default: shield-ingress in POD_NAMESPACE)")

	// Ports, and trusted peers.
	f.Var((*port)(&o.HTTPPort), "http-port", "`port` for HTTP")
	f.Var((*port)(&o.HTTPSPort), "https-port", "`port` for HTTPS")
	f.Var((*port)(&o.StatusPort), "status-port", "`port` for /livez, /readyz and /metrics")
	f.Var((*prefixes)(&o.TrustedProxies), "trusted-proxies", "`CIDRs` of proxies whose X-Forwarded-* headers you trust")
	f.Var((*prefixes)(&o.ProxyProtocolFrom), "proxy-protocol-from", "`CIDRs` of load balancers that speak the PROXY protocol")

	// Shutdown, and logs.
	f.DurationVar(&o.ShutdownDelay, "shutdown-delay", o.ShutdownDelay, "`time` to keep serving after SIGTERM, so that load balancers notice")
	f.DurationVar(&o.GracePeriod, "grace-period", o.GracePeriod, "`time` in-flight requests can take after that")
	f.Var((*level)(&o.LogLevel), "log-level", "log `level`: debug, info, warn or error")
	f.BoolVar(&o.AccessLog, "access-log", false, "log each request as JSON to standard output")

	f.BoolVar(&c.printConfig, "print-config", false, "print the Caddy config for these flags, then exit")
	f.BoolVar(&c.version, "version", false, "print the version, then exit")
}

// usage returns the text of --help.
func usage(f *pflag.FlagSet) string {
	return `shield-ingress is a Kubernetes ingress controller with rate limiting and load
shedding. It limits each client and the load of each Service, and tells every
rejected client when to retry.

Usage: shield-ingress [flags]
       shield-ingress migrate [--help]

` + f.FlagUsagesWrapped(96) + `
Separate list items by commas, or repeat the flag.

Environment variables:
  POD_NAMESPACE, POD_NAME  namespace and name of the pod
  SHIELD_SECRET            with --store: secret for hashing client names, the same in all replicas
  SHIELD_STORE_PASSWORD    with --store: its password
`
}

// A form is a condition on texts, and its description for errors.
type form struct {
	is   func(string) bool
	want string
}

// The forms of texts. Names in Kubernetes are those of RFC 1123.
var (
	labels    = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

	label    = form{labels.MatchString, "a name of lower-case letters, digits and hyphens, up to 63 of them"}
	object   = form{isName, "a name of lower-case letters, digits, hyphens and dots"}
	replicas = form{func(s string) bool { return s == "divided" || s == "shared" || s == "local" }, "divided, shared or local"}
	pair     = form{func(s string) bool {
		namespace, name, ok := strings.Cut(s, "/")
		return s == "" || ok && labels.MatchString(namespace) && isName(name)
	}, "namespace/name"}
	controller = form{func(s string) bool {
		domain, path, ok := strings.Cut(s, "/")
		return ok && isName(domain) && path != "" && len(s) <= 250
	}, "a domain and a path, like herdshield.io/ingress"}
	address = form{func(s string) bool {
		_, err := netip.ParseAddr(s)
		return err == nil || isName(s) && !numeric(s)
	}, "an IP address or a host name"}
	authHost = form{func(s string) bool {
		name, wild := strings.CutPrefix(s, "*.")
		return wild && isName(name) && !numeric(name) || !wild && address.is(s)
	}, "an address, or a host like auth.example.com or *.example.com"}
)

func isName(s string) bool { return len(s) <= 253 && subdomain.MatchString(s) }

// numeric reports whether the last label of a host name is a number: then it is a misspelt address.
func numeric(s string) bool {
	_, err := strconv.Atoi(s[strings.LastIndexByte(s, '.')+1:])
	return err == nil
}

// textValue is a flag of some form.
type textValue struct {
	to   *string
	form form
}

func text(to *string, f form) pflag.Value { return textValue{to, f} }

func (v textValue) String() string { return *v.to }
func (v textValue) Type() string   { return "string" }
func (v textValue) Set(s string) error {
	if !v.form.is(s) {
		return fmt.Errorf("use %s", v.form.want)
	}
	*v.to = s
	return nil
}

// listValue is a flag that is a list of texts of some form.
type listValue struct {
	to   *[]string
	form form
}

func texts(to *[]string, f form) pflag.Value { return listValue{to, f} }

func (v listValue) String() string { return strings.Join(*v.to, ",") }
func (v listValue) Type() string   { return "strings" }
func (v listValue) Set(s string) error {
	for one := range strings.SplitSeq(s, ",") {
		one = strings.TrimSpace(one)
		if !v.form.is(one) {
			return fmt.Errorf("%q is not %s", one, v.form.want)
		}
		if !slices.Contains(*v.to, one) {
			*v.to = append(*v.to, one)
		}
	}
	return nil
}

// port is a flag that is a TCP port.
type port int

func (p *port) String() string { return strconv.Itoa(int(*p)) }
func (p *port) Type() string   { return "int" }
func (p *port) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return errors.New("use a port, 1 to 65535")
	}
	*p = port(n)
	return nil
}

// size is a flag that is a size of bodies.
type size int64

func (s *size) String() string { return "" }
func (s *size) Type() string   { return "size" }
func (s *size) Set(text string) error {
	n, ok := policy.ParseSize(text)
	if !ok {
		return errors.New("use a size like 100m, or off")
	}
	*s = size(n)
	return nil
}

// timeout is a flag that is a timeout; negative: off.
type timeout caddy.Duration

func (t *timeout) String() string { return "" }
func (t *timeout) Type() string   { return "duration" }
func (t *timeout) Set(text string) error {
	d, err := policy.ParseTimeout(text)
	*t = timeout(d)
	return err
}

// prefixes is a flag that is a list of CIDRs or single addresses.
type prefixes []netip.Prefix

func (p *prefixes) String() string {
	all := make([]string, len(*p))
	for i, one := range *p {
		all[i] = one.String()
	}
	return strings.Join(all, ",")
}
func (p *prefixes) Type() string { return "CIDRs" }
func (p *prefixes) Set(s string) error {
	for one := range strings.SplitSeq(s, ",") {
		one = strings.TrimSpace(one)
		prefix, err := netip.ParsePrefix(one)
		if err != nil {
			var a netip.Addr
			if a, err = netip.ParseAddr(one); err == nil && a.Zone() == "" {
				prefix = netip.PrefixFrom(a, a.BitLen())
			}
		}
		if !prefix.IsValid() {
			return fmt.Errorf("%q is not an address or a CIDR like 10.0.0.0/8", one)
		}
		if prefix != prefix.Masked() {
			return fmt.Errorf("%q has bits set beyond its prefix; use %s or %s/%d", one, prefix.Masked(), prefix.Addr(), prefix.Addr().BitLen())
		}
		if !slices.Contains(*p, prefix) {
			*p = append(*p, prefix)
		}
	}
	return nil
}

// level is a flag that is a log level, in any case.
type level string

func (l *level) String() string { return strings.ToLower(string(*l)) }
func (l *level) Type() string   { return "level" }
func (l *level) Set(s string) error {
	is := strings.ToUpper(s)
	if !slices.Contains(ingress.LogLevels, is) {
		return fmt.Errorf("use one of %s", strings.ToLower(strings.Join(ingress.LogLevels, ", ")))
	}
	*l = level(is)
	return nil
}
