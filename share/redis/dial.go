package redis

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	redigo "github.com/gomodule/redigo/redis"

	"github.com/herdshield/shield/share"
)

// clientName is what CLIENT LIST says of our connections.
const clientName = "shield"

// A kind of server says how it is greeted.
type kind int

const (
	aServer   kind = iota
	aMaster        // a server that Sentinels call the master
	aSentinel      // which is given the password without the username
)

// dial connects to a server until ctx is done, TLS and its greeting included.
func (o Options) dial(ctx context.Context, address string, k kind) (redigo.Conn, error) {
	conn, err := redigo.DialContext(ctx, "tcp", address, redigo.DialContextFunc(o.reach), redigo.DialWriteTimeout(share.GiveUp))
	if err != nil {
		return nil, err
	}
	if err := o.greet(ctx, conn, k); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// reach opens the connection that commands are sent on.
func (o Options) reach(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{KeepAlive: share.GiveUp}
	if o.TLS != nil {
		return (&tls.Dialer{NetDialer: dialer, Config: o.TLS}).DialContext(ctx, network, address)
	}
	return dialer.DialContext(ctx, network, address)
}

// greet logs in, and names the connection. HELLO with a password is right also where none
// is set, but Redis before version 6 does not know it.
func (o Options) greet(ctx context.Context, conn redigo.Conn, k kind) error {
	user := o.Username
	if k == aSentinel {
		user = ""
	}
	args := []any{"2"}
	if o.Password != "" {
		args = append(args, "AUTH", cmp.Or(user, "default"), o.Password)
	}
	_, err := redigo.DoContext(conn, ctx, "HELLO", append(args, "SETNAME", clientName)...)
	if reply, ok := replied(err); ok && strings.HasPrefix(reply, "ERR unknown command") {
		err = o.greetOld(ctx, conn)
	}
	if err == nil && k == aMaster {
		err = checkRole(ctx, conn)
	}
	return err
}

// greetOld greets a server before version 6, which has passwords and no users.
func (o Options) greetOld(ctx context.Context, conn redigo.Conn) error {
	if o.Password != "" {
		args := []any{o.Password}
		if o.Username != "" {
			args = []any{o.Username, o.Password}
		}
		if _, err := redigo.DoContext(conn, ctx, "AUTH", args...); err != nil {
			return err
		}
	}
	_, err := redigo.DoContext(conn, ctx, "CLIENT", "SETNAME", clientName)
	if _, ok := replied(err); ok {
		return nil // the name is only for people
	}
	return err
}

// checkRole returns an error if a server is no master, as one that has just been replaced.
func checkRole(ctx context.Context, conn redigo.Conn) error {
	reply, err := redigo.Values(redigo.DoContext(conn, ctx, "ROLE"))
	if err != nil {
		return err
	}
	if len(reply) == 0 {
		return errors.New("the answer to ROLE is empty")
	}
	if role, err := redigo.String(reply[0], nil); err != nil || role != "master" {
		return fmt.Errorf("the server that the Sentinels name has the role %q; want master", role)
	}
	return nil
}

// replied returns the error that a server replied, if it is one.
func replied(err error) (text string, ok bool) {
	var reply redigo.Error
	ok = errors.As(err, &reply)
	return string(reply), ok
}

// code returns the first word of an error that a server replied, such as NOSCRIPT, or "".
func code(err error) string {
	text, _ := replied(err)
	word, _, _ := strings.Cut(text, " ")
	return word
}
