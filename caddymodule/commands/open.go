package commands

import (
	"errors"
	"fmt"
	"net"

	"github.com/caddyserver/caddy/v2"
)

// pageAt returns the address of the page in a browser. page is where the config has it; "": nowhere.
func pageAt(page string) (string, error) {
	if page == "" {
		return "", errors.New("the config has no page for browsers; add this to the global options of the Caddyfile:\n" +
			"\tshield {\n\t\tpage localhost:2020\n\t}")
	}
	at, err := caddy.ParseNetworkAddressWithDefaults(page, "tcp", 2020)
	if err != nil {
		return "", err
	}
	if at.IsUnixNetwork() {
		return "", fmt.Errorf("the page is at %s, where no browser gets; forward a port to it, or have it listen at one", page)
	}
	if ip := net.ParseIP(at.Host); at.Host == "" || ip != nil && ip.IsUnspecified() {
		at.Host = "localhost"
	}
	return "http://" + at.JoinHostPort(0) + "/shield/", nil
}
