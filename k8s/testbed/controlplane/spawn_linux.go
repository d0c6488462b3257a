package controlplane

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// Spawn starts a command that is killed when this process ends, however it ends. The kernel kills it
// when the thread ends that has started it, so that all are started by one that never does.
func Spawn(command *exec.Cmd) error {
	if command.SysProcAttr == nil {
		command.SysProcAttr = new(syscall.SysProcAttr)
	}
	command.SysProcAttr.Pdeathsig = syscall.SIGKILL
	spawner()
	begun := make(chan error)
	commands <- func() { begun <- command.Start() }
	return <-begun
}

var (
	commands = make(chan func())
	spawner  = sync.OnceFunc(func() {
		go func() {
			runtime.LockOSThread()
			for start := range commands {
				start()
			}
		}()
	})
)
