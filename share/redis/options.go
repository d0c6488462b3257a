package redis

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
)

// DefaultPrefix is the Prefix of Options that have none.
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

// Check returns what is wrong, all of it.
func (o Options) Check() error {
	var errs []error
	if len(o.Addresses) == 0 {
		errs = append(errs, errors.New("addresses of the store: none; want at least one host:port"))
	}
	for _, address := range o.Addresses {
		host, port, err := net.SplitHostPort(address)
		if n, bad := strconv.ParseUint(port, 10, 16); err != nil || host == "" || bad != nil || n == 0 {
			errs = append(errs, fmt.Errorf("address of the store is %q; want host:port, and a port of 1 to 65535",
				address[strings.LastIndexByte(address, '@')+1:])) // a password may be before it
		}
	}
	if o.Username != "" && o.Password == "" {
		errs = append(errs, fmt.Errorf("username of the store is %q and its password is empty; want both, or none", o.Username))
	}
	if o.Prefix != "" && !isPrefix.MatchString(o.Prefix) {
		errs = append(errs, fmt.Errorf("prefix of the store is %q; want 1 to 32 letters, digits, '-', '_' or '.'", o.Prefix))
	}
	return errors.Join(errs...)
}
