package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/herdshield/shield/loadtest/lab/process"
	"github.com/herdshield/shield/loadtest/live"
	"github.com/herdshield/shield/loadtest/plant"
)

// The backends have so many workers, which take so long: 160 requests per second,
// about, so that three times as much is little work for two processors, which play
// clients, proxy and backend.
const (
	workers = 8
	service = 50 * time.Millisecond
)

// A backend is what the proxy stands before.
type backend struct {
	name string

	// start serves until stop is called, in a folder of its own, and returns the
	// line of a Caddyfile that leads to it. Requests that waited in it are gone then.
	start func(ctx context.Context, folder string) (directive string, stop func(), err error)
}

// phpScript waits for something else most of its time, as the scripts of most
// sites do for their database. The rest is a little work.
const phpScript = `<?php
for ($sum = '', $i = 0; $i < 100; $i++) $sum = hash('sha256', $sum);
usleep(%d);
echo "served\n";
`

// phpConfig has the pool that is usual where memory is short: workers that are all
// there from the start. The backlog is what PHP-FPM's own queue is. The user is for
// root, as which PHP-FPM does not start workers.
const phpConfig = `[global]
error_log = %[1]s/error.log
daemonize = no
[www]
user = www-data
listen = %[1]s/php.sock
listen.backlog = 4096
pm = static
pm.max_children = %[2]d
`

// phpFPM is PHP-FPM: a first-in first-out queue in the kernel, and workers that do
// not notice that a client has gone.
func phpFPM(program string) backend {
	return backend{"PHP-FPM", func(ctx context.Context, folder string) (string, func(), error) {
		for name, content := range map[string]string{
			"index.php": fmt.Sprintf(phpScript, service.Microseconds()),
			"php.conf":  fmt.Sprintf(phpConfig, folder, workers),
		} {
			if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644); err != nil {
				return "", nil, err
			}
		}
		socket := filepath.Join(folder, "php.sock")
		// -n: no php.ini, so that no extension of this machine counts.
		cmd := exec.Command(program, "-n", "-F", "-y", filepath.Join(folder, "php.conf"), "-p", folder)
		stop, err := process.Start(ctx, cmd, filepath.Join(folder, "php.log"), "unix", socket)
		return fmt.Sprintf("root %s\n\tphp_fastcgi unix/%s", folder, socket), stop, err
	}}
}

// pool is this project's own fragile backend, without contention, so that nothing
// but its queue makes it slow.
var pool = backend{"worker pool", func(ctx context.Context, _ string) (string, func(), error) {
	b := live.NewBackend(live.BackendConfig{Config: plant.Config{Workers: workers, Queue: 1e5}, Service: service})
	address, stop, err := process.Serve(ctx, b)
	if err != nil {
		b.Close()
		return "", nil, err
	}
	return "reverse_proxy " + address, func() { stop(); b.Close() }, nil
}}
