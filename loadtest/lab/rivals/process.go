package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"text/template"
	"time"
)

// caddyVar in the environment makes this program Caddy, with shield and
// caddy-ratelimit.
const caddyVar = "RIVALS_BECOME_CADDY"

// unprivileged is the id of Debian's user with the fewest rights. nginx and HAProxy run
// as it if we are root.
const unprivileged = 65534

// A program is one that serves until it is stopped.
type program struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// startProgram runs r's program with its config, and returns when it can be reached.
// It has 10 s for that. It runs until it is stopped, whether or not ctx ends.
func startProgram(ctx context.Context, r rival, c configData) (*program, error) {
	path := filepath.Join(c.Folder, "config")
	if err := writeConfig(path, r, c); err != nil {
		return nil, err
	}
	name, args, err := commandLine(r.program, path)
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(c.Folder, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close() // the program has its own
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.Folder, log, log
	// A group of its own: Ctrl-C is for us, and we end all of it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if r.program == "caddy" {
		cmd.Env = append(os.Environ(), caddyVar+"=1", "HOME="+c.Folder, "XDG_CONFIG_HOME="+c.Folder, "XDG_DATA_HOME="+c.Folder)
	} else if os.Geteuid() == 0 {
		if err := errors.Join(os.Chown(c.Folder, unprivileged, unprivileged), os.Chown(log.Name(), unprivileged, unprivileged)); err != nil {
			return nil, err
		}
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: unprivileged, Gid: unprivileged}
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &program{cmd, make(chan struct{})}
	go func() {
		defer close(p.ended)
		cmd.Wait() // it fails if we end it, and reach sees that nothing listens
	}()
	if err := p.reach(ctx, c.Address); err != nil {
		p.stop()
		said, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("%s %w; it said:\n%s", r.program, err, said)
	}
	return p, nil
}

// reach returns when something listens at the address.
func (p *program) reach(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-p.ended:
			return fmt.Errorf("has ended: %v", p.cmd.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("cannot be reached at %s: %w", address, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stop ends the program and what it has started, by force after 5 s, and returns
// when it has ended.
func (p *program) stop() {
	p.cmd.Process.Signal(syscall.SIGTERM) // nginx's master ends its workers
	select {
	case <-p.ended:
	case <-time.After(5 * time.Second):
		syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.ended
	}
}

// writeConfig writes r's config.
func writeConfig(path string, r rival, c configData) error {
	root := map[string]string{"caddy": caddyConf, "nginx": nginxConf, "haproxy": haproxyConf}[r.program]
	t := template.New("config")
	for _, name := range []string{"http", "limit", "server"} {
		template.Must(t.New(name).Parse(r.parts[name])) // the tests write all configs
	}
	template.Must(t.Parse(root))
	var b strings.Builder
	if err := t.Execute(&b, c); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// commandLine returns what runs a program with the config at path.
func commandLine(program, path string) (name string, args []string, err error) {
	switch program {
	case "caddy":
		name, err = os.Executable()
		return name, []string{"run", "--config", path, "--adapter", "caddyfile"}, err
	case "nginx":
		name, err = find("nginx")
		return name, []string{"-e", "stderr", "-p", filepath.Dir(path), "-c", path}, err
	case "haproxy":
		name, err = find("haproxy")
		return name, []string{"-db", "-f", path}, err // -db: in the foreground
	}
	return "", nil, fmt.Errorf("no program is called %q", program)
}

// find returns the path of one of Debian's servers, which are not in every PATH.
func find(name string) (string, error) {
	for _, path := range []string{name, "/usr/sbin/" + name} {
		if found, err := exec.LookPath(path); err == nil {
			return found, nil
		}
	}
	return "", fmt.Errorf("%s is not installed; loadtest/lab/rivals/run does that", name)
}
