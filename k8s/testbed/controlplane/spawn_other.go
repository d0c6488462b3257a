//go:build !linux

package controlplane

import "os/exec"

// Spawn starts a command. Only Linux can kill it when this process is killed.
func Spawn(command *exec.Cmd) error { return command.Start() }
