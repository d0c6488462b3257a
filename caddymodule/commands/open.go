package commands

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/herdshield/shield/caddymodule/adminapi"
)

// printPage prints the address of the page for a person on call, and fails unless browsers are
// let in there. Caddy's own endpoint refuses a browser that comes from no page.
func printPage(w io.Writer, address string) error {
	var status adminapi.Status
	if resp, err := caddycmd.AdminAPIRequest(address, http.MethodGet, "/shield/", http.Header{"Accept": {"application/json"}}, nil); err == nil {
		err = json.NewDecoder(resp.Body).Decode(&status)
		resp.Body.Close()
		if err != nil {
			return fmt.Errorf("reading the answer: %w", err)
		}
	}
	url, at, err := pageAt(cmp.Or(status.Page, address))
	if err != nil || status.Page != "" {
		return cmp.Or(err, printLine(w, url))
	}
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
		return errors.New("the admin endpoint lets no browser in; add this to the global options of the Caddyfile,:\n" +
			"\tshield {\n\t\tpage localhost:2020\n\t}")
	default:
		return fmt.Errorf("asking for the page: %w; is shield running, and its admin endpoint at %s?", err, address)
	}
	return printLine(w, url)
}

func printLine(w io.Writer, url string) error {
	_, err := fmt.Fprintln(w, url)
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
