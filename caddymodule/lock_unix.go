//go:build unix && !solaris && !aix

package caddymodule

import (
	"fmt"
	"os"
	"syscall"
)

// lock takes the lock of a file until it is closed, or the process ends.
func lock(f *os.File) error {
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != syscall.EWOULDBLOCK {
		return err
	}
	return fmt.Errorf("%s is locked by another process", f.Name())
}
