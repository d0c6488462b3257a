package caddymodule

import (
	"errors"
	"net"
	"reflect"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/socket"
)

// greetFor is how long a new connection is read before net/http sees it. Ours: clients that
// hammer send at once, and the goroutine of one that does not is better in net/http's care.
const greetFor = 10 * time.Second

// greets reports whether a connection is read here first, because its address has been refused
// lately. It costs net/http more to begin with a connection than to answer a request.
func (l *doorListener) greets(now time.Duration, c *doorConn) bool {
	if c.origin.serial != 0 || !l.memos.warm(c.origin.remote, now) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.greeted == nil {
		return false
	}
	l.greeted[c] = struct{}{}
	select {
	case l.next <- c:
	default:
		go l.greeter(c)
	}
	return true
}

// maxIdleGreeters is how many goroutines wait for connections to greet. A new one would have to
// grow its stack, which takes 7 % of what such a connection costs.
const maxIdleGreeters = 64

// greeter greets one connection after another.
func (l *doorListener) greeter(c *doorConn) {
	for on := true; on; {
		l.greet(c)
		if on = l.rest(1); !on {
			return
		}
		select {
		case c = <-l.next:
		case <-l.done:
			on = false
		}
		l.rest(-1)
	}
}

// rest counts greeters that have nothing to do. It reports false if there are enough of them.
func (l *doorListener) rest(n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > 0 && l.idle >= maxIdleGreeters {
		return false
	}
	l.idle += n
	return true
}

// greet answers what it knows, for as long as the connection says nothing else.
func (l *doorListener) greet(c *doorConn) {
	wait, last := greetFor, false
	if l.header > 0 && l.header <= greetFor { // then net/http would have ended it by then
		wait, last = l.header, true
	}
	_ = c.SetReadDeadline(shield.At(shield.Now() + wait))
	err := c.first()
	l.once.Store(c.once)
	l.mu.Lock()
	delete(l.greeted, c)
	l.mu.Unlock()
	if timeout, is := errors.AsType[net.Error](err); err != nil && (last || c.ended != nil || !is || !timeout.Timeout()) {
		_ = c.Close()
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	l.pass(accepted{conn: c})
}

// A flood is what the goroutine that accepts knows of new connections of refused addresses. While
// they come, connections are accepted with their first bytes: to be woken again for these is
// dearer than to answer them.
type flood struct {
	begun     bool             // at least once
	socket    *socket.Listener // the listener's socket; nil: there can be no such
	latest    time.Duration    // when a connection was last greeted
	deferring bool             // until warmth after it
}

// next returns where to accept the next connection from, after one that was greeted or not.
func (f *flood) next(now time.Duration, l *doorListener, greeted bool) net.Listener {
	if greeted {
		f.latest = now
		if !f.begun {
			f.begun, f.socket = true, l.open()
		}
	}
	if on := now-f.latest < warmth; f.socket != nil && on != f.deferring {
		if f.deferring = on; f.socket.Defer(on) != nil { // the kernel cannot
			f.socket = nil
		}
	}
	if f.socket != nil && f.deferring && l.once.Load() {
		return f.socket
	}
	return l.Listener
}

// open returns a listener of the same socket, or nil if there can be none: the listener is closed,
// or something stands between that sees all connections, such as the PROXY protocol's wrapper.
func (l *doorListener) open() *socket.Listener {
	tcp := tcpListener(l.Listener)
	l.mu.Lock()
	defer l.mu.Unlock()
	if tcp != nil && l.greeted != nil {
		l.socket = socket.Of(tcp, l.keepAlive)
	}
	return l.socket
}

var caddyPath = reflect.TypeFor[caddy.Context]().PkgPath()

// tcpListener returns the listener in what Caddy has made of it, or nil. Caddy's deleteListener
// counts listeners, and does nothing when one accepts.
func tcpListener(l net.Listener) *net.TCPListener {
	if outer := reflect.ValueOf(l); outer.Type().PkgPath() == caddyPath && outer.Type().Name() == "deleteListener" {
		if inner := outer.FieldByName("Listener"); inner.IsValid() {
			l, _ = inner.Interface().(net.Listener)
		}
	}
	tcp, _ := l.(*net.TCPListener)
	return tcp
}
