package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"text/template"

	"github.com/herdshield/shield/loadtest/lab/process"
)

// caddyVar in the environment makes this program Caddy, with shield and
// caddy-ratelimit.
const caddyVar = "RIVALS_BECOME_CADDY"

// unprivileged is the id of Debian's user with the fewest rights. nginx and HAProxy run
// as it if we are root.
const unprivileged = 65534

// startProgram runs a program with a config in a folder: see process.Start.
func startProgram(ctx context.Context, program, config, folder, address string) (stop func(), err error) {
	path := filepath.Join(folder, "config")
	if err := os.WriteFile(path, []byte(config), 0o644); err != nil {
		return nil, err
	}
	name, args, err := commandLine(program, path)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Args[0] = folder, program // the name in errors
	if program == "caddy" {
		cmd.Env = append(os.Environ(), caddyVar+"=1", "HOME="+folder, "XDG_CONFIG_HOME="+folder, "XDG_DATA_HOME="+folder)
	} else if os.Geteuid() == 0 {
		if err := os.Chown(folder, unprivileged, unprivileged); err != nil {
			return nil, err
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: unprivileged, Gid: unprivileged}}
	}
	return process.Start(ctx, cmd, filepath.Join(folder, "log"), "tcp", address)
}

// config returns the config of r's program.
func (r rival) config(c configData) (string, error) {
	root := map[string]string{"caddy": caddyConf, "nginx": nginxConf, "haproxy": haproxyConf}[r.program]
	t := template.New("config")
	for _, name := range []string{"http", "limit", "server"} {
		template.Must(t.New(name).Parse(r.parts[name]))
	}
	template.Must(t.Parse(root))
	var b strings.Builder
	err := t.Execute(&b, c)
	return b.String(), err
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
	return "", nil, fmt.Errorf("program %q is unknown; use one of the rivals", program)
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
