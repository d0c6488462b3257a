package commands

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
)

// printPage prints the address of the page for a person on call, and fails unless browsers are
// let in there.
func printPage(w io.Writer, address string) error {
	url, at, err := pageAt(address)
	if err != nil {
		return err
	}
	// Caddy asks where a browser comes from, and one that is given an address comes from nowhere.
	// Browsers say how they ask where no other machine can listen: at loopback addresses, over HTTP.
	headers := http.Header{"Accept": {"text/html"}, "Origin": nil}
	if Loopback(at) {
		headers.Set("Sec-Fetch-Mode", "navigate")
	}
	resp, err := caddycmd.AdminAPIRequest(address, http.MethodGet, "/shield/", headers, nil)
	switch {
	case err == nil:
		resp.Body.Close()
	case strings.Contains(err.Error(), "HTTP 403"):
		return fmt.Errorf("the admin endpoint lets no browser in; add this to the global options of the Caddyfile, with the quotes:\n"+
			"\tadmin %s {\n\t\torigins %[1]s \"\"\n\t}", at)
	default:
		return fmt.Errorf("asking for the page: %w; is shield running, and its admin endpoint at %s?", err, address)
	}
	_, err = fmt.Fprintln(w, url)
	return err
}

// pageAt returns the address of the page in a browser, and that of the admin endpoint.
func pageAt(address string) (url, at string, err error) {
	parsed, err := caddy.ParseNetworkAddress(address)
	if err != nil {
		return "", "", err
	}
	if parsed.IsUnixNetwork() {
		return "", "", fmt.Errorf("the admin endpoint is %s, where no browser gets; forward a port to it, or have it listen at one", address)
	}
	host := parsed.Host
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	at = net.JoinHostPort(host, fmt.Sprint(parsed.StartPort))
	return "http://" + at + "/shield/", at, nil
}

// Loopback reports whether an address with a port is one of this machine only.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}
