//go:build unix && !solaris && !aix

package caddymodule

import (
	"os"
	"syscall"
)

// lock takes the lock of a file until it is closed, or returns an error if another process, or another opening of it, has it.
func lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
