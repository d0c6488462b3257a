package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
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
		trusted_proxies_strict
	}
}

http://%s {
	%s
	%s
}
`

// Shield runs shield's program with one line for shield, which may be empty, and
// one that leads to the backend.
func Shield(ctx context.Context, program, folder, shield, backend string) (url string, stop func(), err error) {
	address, err := FreeAddress(ctx)
	if err != nil {
		return "", nil, err
	}
	config := filepath.Join(folder, "Caddyfile")
	if err := os.WriteFile(config, fmt.Appendf(nil, caddyfile, address, shield, backend), 0o644); err != nil {
		return "", nil, err
	}
	cmd := exec.Command(program, "run", "--config", config, "--adapter", "caddyfile")
	stop, err = Start(ctx, cmd, filepath.Join(folder, "shield.log"), "tcp", address)
	return "http://" + address + "/", stop, err
}
