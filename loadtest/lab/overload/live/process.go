package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// A process is a program that serves at an address until it is stopped.
type process struct {
	cmd *exec.Cmd
	end func()
}

// start runs a program until ctx ends or it is stopped, and returns when it can be
// reached. It has 10 s for that.
func start(ctx context.Context, log, network, address, name string, args ...string) (*process, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close() // the program has its own
	running, end := context.WithCancel(ctx)
	cmd := exec.CommandContext(running, name, args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		end()
		return nil, err
	}
	p := &process{cmd, end}
	for range 200 {
		conn, err := net.Dial(network, address)
		if err == nil {
			conn.Close()
			return p, nil
		}
		if time.Sleep(50 * time.Millisecond); ctx.Err() != nil {
			break
		}
	}
	p.stop()
	said, _ := os.ReadFile(log)
	return nil, fmt.Errorf("%s cannot be reached at %s; it said:\n%s", name, address, said)
}

// stop ends the program and returns when it has ended, by force after 5 s.
func (p *process) stop() {
	p.end()
	p.cmd.Wait() // it fails, because we have ended it
}
