package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
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

// A proxy is shield's program before a backend.
type proxy struct {
	*process
	url  string
	http *http.Client
}

// startProxy runs the program with one line for shield, which may be empty, and
// one that leads to the backend.
func startProxy(ctx context.Context, program, folder, shield, backend string) (*proxy, error) {
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(folder, "Caddyfile")
	if err := os.WriteFile(config, fmt.Appendf(nil, caddyfile, address, shield, backend), 0o644); err != nil {
		return nil, err
	}
	p, err := start(ctx, filepath.Join(folder, "shield.log"), "tcp", address, program, "run", "--config", config, "--adapter", "caddyfile")
	if err != nil {
		return nil, err
	}
	// Connections are kept, for as many as may wait at once: one per request would
	// use up this machine's ports. No Proxy: the environment must not send the
	// load elsewhere.
	return &proxy{p, "http://" + address + "/", &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 10_000, DisableCompression: true},
	}}, nil
}

func (p *proxy) stop() {
	p.http.CloseIdleConnections()
	p.process.stop()
}

// send asks for one page, as a client of its own.
func (p *proxy) send(ctx context.Context, client int) outcome {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return failed // cannot be: the URL is ours
	}
	r.Header.Set("X-Forwarded-For", netip.AddrFrom4([4]byte{10, byte(client >> 16), byte(client >> 8), byte(client)}).String())
	answer, err := p.http.Do(r)
	if err == nil {
		_, err = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
	}
	switch {
	case ctx.Err() != nil:
		return timedOut
	case err != nil:
		return failed
	case answer.StatusCode == http.StatusOK:
		return served
	case answer.Header.Get("Retry-After") != "": // no backend here says so
		return refused
	default:
		return failed
	}
}

// freeAddress returns one that nobody has listened at a moment ago.
func freeAddress(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
