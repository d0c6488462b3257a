//go:build !unix || solaris || aix

package caddymodule

import (
	"errors"
	"os"
)

func lock(*os.File) error { return errors.ErrUnsupported }
