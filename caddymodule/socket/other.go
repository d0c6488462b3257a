//go:build !linux

package socket

import "net"

// A Listener is for Linux only.
type Listener struct{ net.Listener }

// Of returns nil.
func Of(*net.TCPListener, net.KeepAliveConfig) *Listener { return nil }

// Defer is not called.
func (*Listener) Defer(bool) error { return nil }
