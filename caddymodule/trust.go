package caddymodule

import (
	"net/http"
	"reflect"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/herdshield/shield/caddymodule/clientkey"
)

// warnOfAddresses warns, once for each server, if its clients can choose the address by
// which h tells them apart.
func (a *App) warnOfAddresses(h *Handler, server *caddyhttp.Server) {
	if server == nil {
		return
	}
	for _, k := range h.keyers() {
		warning := k.choosable(server)
		if is := [2]string{server.Name(), warning}; warning != "" && !a.warned[is] {
			a.warned[is] = true
			a.logger.Warn(warning, zap.String("server", server.Name()), zap.String("shield", h.Name), zap.String("key", k.template))
		}
	}
}

// choosable says how a client of the server can choose the address in its key: "" if it
// cannot, as far as is known.
func (k *keyer) choosable(server *caddyhttp.Server) string {
	for _, p := range k.parts {
		if p.Text == clientkey.ClientIP && server.TrustedProxiesStrict <= 0 && trusts(server) {
			// Most proxies append to what a client has sent, and the first address is taken.
			return "clients may choose the address by which they are counted; want trusted_proxies_strict beside trusted_proxies"
		}
		for _, header := range server.ClientIPHeaders {
			if p.Text == clientkey.HeaderPrefix+http.CanonicalHeaderKey(header) {
				return "clients may choose the header by which they are counted; want {client_ip}, and proxies in trusted_proxies"
			}
		}
	}
	return ""
}

// trusts reports whether the server believes any proxy.
func trusts(server *caddyhttp.Server) bool {
	return server.TrustedProxiesUnix || trustedSource(server) != nil
}

// trustedSource returns the type of the list of a server's proxies, or nil. Caddy shows it
// nowhere once the option has been loaded, and reflection may look at fields that are not exported.
func trustedSource(server *caddyhttp.Server) reflect.Type {
	source := reflect.ValueOf(server).Elem().FieldByName("trustedProxies")
	if source.Kind() != reflect.Interface || source.IsNil() {
		return nil
	}
	return source.Elem().Type()
}
