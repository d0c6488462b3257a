package caddymodule

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var isStoreURL = regexp.MustCompile(`^redis(s?)://(?:([^:@/?]*)(?::([^@/?]*))?@)?([^@/?]+)(?:/0?)?(?:\?([^@]*))?$`)

// ParseStoreURL reads a Store from one line:
//
//	redis://[<username>[:<password>]@]<host>[:<port>][,<host>[:<port>]...][/][?<option>=<value>&...]
//
// rediss connects by TLS. The options are prefix, sentinel, replicas, ca, cert and key, the
// last two of the certificate that the store is shown. Names and values are percent-encoded.
// No error shows the username or the password.
func ParseStoreURL(text string) (s Store, err error) {
	of := isStoreURL.FindStringSubmatch(text)
	if of == nil {
		return s, errors.New("store is no URL of redis:// or rediss://; want one like redis://127.0.0.1:6379 or rediss://me:password@a,b/?prefix=shop: no database but 0, " +
			"and %2F for a / in a name or value, %3F for a ?, %40 for an @, %25 for a %")
	}
	s.Type, s.Address = "redis", strings.Split(of[4], ",")
	if slices.Contains(s.Address, "") {
		return s, errors.New("store has an empty address in its URL; want host:port, and commas between several")
	}
	var bad error
	s.Username, err = url.PathUnescape(of[2])
	if s.Password, bad = url.PathUnescape(of[3]); err != nil || bad != nil {
		return Store{}, errors.New("store has a username or password in its URL that is not percent-encoded; want %25 for a %")
	}
	options, err := url.ParseQuery(of[5])
	if err != nil {
		return s, fmt.Errorf("store has options that cannot be read in its URL: %w", err)
	}
	var ca StoreTLS
	var own StoreCertificate
	var replicas string
	known := map[string]*string{"prefix": &s.Prefix, "sentinel": &s.Sentinel, "replicas": &replicas, "ca": &ca.CA, "cert": &own.Certificate, "key": &own.Key}
	for name, values := range options {
		switch to := known[name]; {
		case to == nil:
			return s, fmt.Errorf("store has the option %q; want prefix, sentinel, replicas, ca, cert or key", name)
		case len(values) > 1 || values[0] == "":
			return s, fmt.Errorf("store: %s is empty or set twice; want one value", name)
		default:
			*to = values[0]
		}
	}
	if of[1] != "" || ca.CA != "" {
		s.TLS = &ca
	}
	if own != (StoreCertificate{}) {
		s.TLSClient = &own
	}
	if replicas != "" {
		n, err := strconv.Atoi(replicas)
		if err != nil {
			return s, fmt.Errorf("store: replicas is %q; want a whole number", replicas)
		}
		s.Replicas = &n
	}
	return s, nil
}
