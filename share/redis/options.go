package redis

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"

	redigo "github.com/gomodule/redigo/redis"
)

// DefaultPrefix is the Prefix of Options without one.
const DefaultPrefix = "shield"

// Options say where the store is.
type Options struct {
	Addresses []string // host:port of the server, of some nodes of a Cluster, or of Sentinels
	Sentinel  string   // name of the master whose Sentinels the Addresses are; "": they are servers
	Username  string   // of the ACL; "": the default user
	Password  string   // "": none. Sentinels are given it without the Username
	TLS       *tls.Config
	Prefix    string // of all keys, 1 to 32 letters, digits, '-', '_' or '.'; "": DefaultPrefix
}

var isPrefix = regexp.MustCompile(`^[A-Za-z0-9._-]{1,32}$`)

// Check returns everything that is wrong with the Options.
func (o Options) Check() error {
	var errs []error
	if len(o.Addresses) == 0 {
		errs = append(errs, errors.New("addresses are missing; add at least one host:port"))
	}
	for _, address := range o.Addresses {
		host, port, err := net.SplitHostPort(address)
		if n, bad := strconv.ParseUint(port, 10, 16); err != nil || host == "" || bad != nil || n == 0 {
			errs = append(errs, fmt.Errorf("address is %q; use host:port, and a port of 1 to 65535",
				address[strings.LastIndexByte(address, '@')+1:])) // a password may be before it
		}
	}
	if o.Username != "" && o.Password == "" {
		errs = append(errs, fmt.Errorf("username is %q, but password is empty; use both, or neither", o.Username))
	}
	if o.Prefix != "" && !isPrefix.MatchString(o.Prefix) {
		errs = append(errs, fmt.Errorf("prefix is %q; use 1 to 32 letters, digits, '-', '_' or '.'", o.Prefix))
	}
	return errors.Join(errs...)
}

// Rights returns what the store's user must be allowed to do, as an ACL rule: to run scripts, which do the
// rest, and only on keys with the prefix.
func Rights(prefix string) string {
	return fmt.Sprintf("resetkeys resetchannels -@all ~shield:{%s:* +evalsha +eval +time"+
		" +pexpire +hset +hdel +hgetall +llen +lrange +ltrim +rpush +cluster|slots", prefix)
}

// explain adds to an error what an operator can do about it, where it does not say so.
func (o *Options) explain(err error) error {
	switch text := err.Error(); {
	case code(err) == "NOPERM", strings.Contains(text, "can't run this command"): // the same, from within a script
		return fmt.Errorf("%w; grant them with ACL SETUSER %s %s", err, o.Username, Rights(o.Prefix))
	case code(err) == "NOAUTH":
		return errors.New("NOAUTH: the store needs a password; set one in store")
	case strings.Contains(text, "cluster support disabled"):
		return fmt.Errorf("%w; use one address of a server, several of a Cluster, or those of Sentinels with the name of their master", err)
	}
	return err
}

// code returns the first word of an error that a server replied, such as NOSCRIPT, or "".
func code(err error) string {
	reply, _ := errors.AsType[redigo.Error](err)
	word, _, _ := strings.Cut(string(reply), " ")
	return word
}
