package caddymodule

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// ParseStoreURL reads a Store from one line:
//
//	redis://[<username>[:<password>]@]<host>[:<port>][,<host>[:<port>]...][/][?<option>=<value>&...]
//
// rediss connects by TLS. The options are prefix, sentinel, replicas, ca, cert and key, the
// last two of the certificate that the store is shown. Names and values are percent-encoded.
// No error shows the username or the password.
func ParseStoreURL(text string) (s Store, err error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || scheme != "redis" && scheme != "rediss" {
		return s, errors.New("store is no URL of redis:// or rediss://; want one like redis://127.0.0.1:6379")
	}
	if s.Type = "redis"; scheme == "rediss" {
		s.TLS = new(StoreTLS)
	}
	// The last @ ends the password, whatever is in it: what is shown after that is no part of it.
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		name, password, _ := strings.Cut(rest[:i], ":")
		s.Username, err = url.PathUnescape(name)
		var bad error
		if s.Password, bad = url.PathUnescape(password); err != nil || bad != nil || strings.ContainsAny(rest[:i], "/?") {
			return Store{}, errors.New("store has a username or password in its URL that is not percent-encoded; want %2F for a /, %3F for a ? and %25 for a %, and %40 for an @ in an option")
		}
		rest = rest[i+1:]
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	if path != "" && path != "0" {
		return s, errors.New("store has a path in its URL; want none: replicas share database 0")
	}
	s.Address = strings.Split(authority, ",")
	if slices.Contains(s.Address, "") {
		return s, errors.New("store has an empty address in its URL; want host:port, and commas between several")
	}
	options, err := url.ParseQuery(query)
	if err != nil {
		return s, fmt.Errorf("store has options that cannot be read in its URL: %w", err)
	}
	return s, s.set(options)
}

// set sets the options of a URL.
func (s *Store) set(options url.Values) error {
	for name, values := range options {
		value := values[0]
		if len(values) > 1 || value == "" {
			return fmt.Errorf("store: %s is empty or set twice; want one value", name)
		}
		switch name {
		case "prefix":
			s.Prefix = value
		case "sentinel":
			s.Sentinel = value
		case "replicas":
			n, err := strconv.Atoi(value)
			if err != nil {
				return fmt.Errorf("store: replicas is %q; want a whole number", value)
			}
			s.Replicas = &n
		case "ca":
			s.TLS = &StoreTLS{CA: value}
		case "cert":
			s.clientCertificate().Certificate = value
		case "key":
			s.clientCertificate().Key = value
		default:
			return fmt.Errorf("store has the option %q; want prefix, sentinel, replicas, ca, cert or key", name)
		}
	}
	return nil
}

func (s *Store) clientCertificate() *StoreCertificate {
	if s.TLSClient == nil {
		s.TLSClient = new(StoreCertificate)
	}
	return s.TLSClient
}
