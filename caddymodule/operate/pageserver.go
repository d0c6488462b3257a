package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// pagePort is the port of the page where its address has none. Ours: next to Caddy's admin endpoint.
const pagePort = 2020

// ServePage serves the endpoints of Admin at an address of their own, and the metrics of a registry and profiles beside
// them. A browser can open the page there: Caddy's admin endpoint rejects a request that comes from no
// page, as the first one does, or with an empty origin lets such requests reach all that it has, the
// config included. Nothing here changes the config.
func ServePage(address string, registry prometheus.Gatherer, logger *zap.Logger) (*http.Server, error) {
	addr, err := caddy.ParseNetworkAddressWithDefaults(address, "tcp", pagePort)
	if err == nil && addr.PortRangeSize() != 1 && !addr.IsUnixNetwork() {
		err = errors.New("it has several ports")
	}
	if err != nil {
		return nil, fmt.Errorf("page is %q: %w; use one address, like localhost:%d", address, err, pagePort)
	}
	mux := http.NewServeMux()
	for _, route := range new(Admin).Routes() {
		mux.HandleFunc(route.Pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := route.Handler.ServeHTTP(w, r); err != nil {
				writeError(w, err)
			}
		})
	}
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	s := &http.Server{ // the timeouts of Caddy's admin endpoint
		ReadTimeout: 10 * time.Second, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 1 << 16,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := check(r, addr.Host); err != nil {
				writeError(w, caddy.APIError{HTTPStatus: http.StatusForbidden, Err: err})
				return
			}
			mux.ServeHTTP(w, r)
		}),
	}
	listener, err := addr.Listen(context.Background(), 0, net.ListenConfig{})
	if err != nil {
		return nil, fmt.Errorf("page is %q: %w", address, err)
	}
	stream, is := listener.(net.Listener)
	if !is {
		return nil, fmt.Errorf("page is %q, which isn't an HTTP address; use one like localhost:%d", address, pagePort)
	}
	go func() { _ = s.Serve(stream) }()
	logger.Info("the page is served", zap.String("address", addr.String()))
	return s, nil
}

// knows reports whether the Host of a request may be that of a page here. A name of a new client's that leads to
// an address of this machine is none (DNS rebinding): no name counts but that of the config, and at a
// loopback address localhost. name is the host of its address; "": any.
func knows(r *http.Request, name string) bool {
	host := r.Host
	if of, _, err := net.SplitHostPort(host); err == nil {
		host = of
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	at, isTCP := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	switch {
	case !isTCP, name != "" && strings.EqualFold(host, name):
		return true
	case at.IP.IsLoopback():
		return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
	}
	return ip != nil
}

// check returns an error for requests that pages of other sites may have made a browser send. Where a
// browser says how it asks, the request must come from here, or from a person who has typed its address.
func check(r *http.Request, name string) error {
	if !knows(r, name) {
		return fmt.Errorf("host is %.100q; use an address, or the name in the option page", r.Host)
	}
	if origin, is := r.Header["Origin"]; is {
		if _, host, _ := strings.Cut(origin[0], "://"); !strings.EqualFold(host, r.Host) {
			return fmt.Errorf("origin is %.100q; use http://%s", origin[0], r.Host)
		}
	}
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "", "same-origin", "none":
		return nil
	default:
		return fmt.Errorf("the request comes from another site (%q); open http://%s/shield/ by typing its address", site, r.Host)
	}
}

// writeError answers as Caddy's admin endpoint does.
func writeError(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	if api, ok := errors.AsType[caddy.APIError](err); ok {
		status, err = api.HTTPStatus, api.Err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
}

// adminLooked is done with the first config: later ones find the sockets of this process.
var adminLooked sync.Once

// Provision implements caddy.Provisioner. Caddy calls it before it opens the admin endpoint. The error
// says that another process listens there. Caddy would listen beside it, for it sets SO_REUSEPORT, and
// status, block and reload would reach either process.
func (*Admin) Provision(ctx caddy.Context) (err error) {
	adminLooked.Do(func() {
		if address := adminAddress(ctx); Listened(address) {
			err = fmt.Errorf("the admin address is %s, where another process is listening, maybe another shield; "+
				"stop that process, or set another address in the global option admin or in CADDY_ADMIN", address)
		}
	})
	return err
}

// adminAddress returns where the admin endpoint of a config is to listen, "" if it is off. Caddy shows
// its config to no module, so this reads a field that Caddy keeps to itself; of a Caddy without it, it
// returns "".
func adminAddress(ctx caddy.Context) string {
	field := reflect.ValueOf(ctx).FieldByName("cfg")
	if !field.IsValid() || field.Type() != reflect.TypeFor[*caddy.Config]() {
		return ""
	}
	admin := cmp.Or((*caddy.Config)(field.UnsafePointer()).Admin, new(caddy.AdminConfig))
	if admin.Disabled {
		return ""
	}
	return cmp.Or(caddy.NewReplacer().ReplaceKnown(admin.Listen, ""), caddy.DefaultAdminListen)
}

// Listened reports whether a process listens at a TCP address, as Caddy writes it; false for what is none.
func Listened(address string) bool {
	addr, err := caddy.ParseNetworkAddress(address)
	if err != nil || !strings.HasPrefix(addr.Network, "tcp") || addr.StartPort == 0 {
		return false
	}
	l, err := net.Listen(addr.Network, addr.JoinHostPort(0))
	if err == nil {
		l.Close()
	}
	return errors.Is(err, syscall.EADDRINUSE)
}
