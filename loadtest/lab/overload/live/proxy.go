package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// caddyfile serves one site. Clients are told apart by X-Forwarded-For, since all of
// them come from this machine.
const caddyfile = `{
	admin off
	persist_config off
	auto_https off
	log {
		level ERROR
	}
	servers {
		protocols h1
		trusted_proxies static 127.0.0.1/32
	}
}

http://%s {
	%s
	%s
}
`

// startProxy runs shield's program with one line for shield, which may be empty, and
// one that leads to the backend.
func startProxy(ctx context.Context, program, folder, shield, backend string) (url string, stop func(), err error) {
	address, err := freeAddress(ctx)
	if err != nil {
		return "", nil, err
	}
	config := filepath.Join(folder, "Caddyfile")
	if err := os.WriteFile(config, fmt.Appendf(nil, caddyfile, address, shield, backend), 0o644); err != nil {
		return "", nil, err
	}
	p, err := start(ctx, filepath.Join(folder, "shield.log"), "tcp", address, program, "run", "--config", config, "--adapter", "caddyfile")
	if err != nil {
		return "", nil, err
	}
	return "http://" + address + "/", p.stop, nil
}

// freeAddress returns one at which nothing listened a moment ago.
func freeAddress(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
