package caddymodule

import (
	"bytes"
	"strings"
)

// A strictHead is what the door reads itself of a request. Its parts are those of the bytes that were
// read, and nil if there are none.
type strictHead struct {
	method, path, host   []byte
	agent, accept, fetch []byte // User-Agent, Accept and Sec-Fetch-Mode
}

// The places where a byte may be, so that there can be no two opinions about it.
const (
	inName = 1 << iota
	inHost
	inPath
	inQuery
	inValue
)

var strictBytes = func() (of [256]uint8) {
	for c := byte(' '); c <= '~'; c++ {
		of[c] |= inValue
		if c != ' ' && c != '#' {
			of[c] |= inQuery
		}
		letter := 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || c == '-'
		if letter {
			of[c] |= inName
		}
		if letter || c == '.' || c == ':' {
			of[c] |= inHost
		}
		if letter || strings.IndexByte("/._~!$&'()*+,;=:@", c) >= 0 {
			of[c] |= inPath
		}
	}
	return of
}()

// are reports whether all bytes of b may be in a place.
func are(b []byte, place uint8) bool {
	for _, c := range b {
		if strictBytes[c]&place == 0 {
			return false
		}
	}
	return true
}

// parseStrict reads a request. ok reports that all of b is one, without a body, which every server
// reads in this way, and about which shields and their answers know no more than that. It accepts much less than
// net/http does: what is left out goes the usual way.
func parseStrict(b []byte) (s strictHead, ok bool) {
	line, b, ok := strictLine(b)
	target, ok1 := bytes.CutSuffix(line, []byte(" HTTP/1.1"))
	method, target, ok2 := bytes.Cut(target, []byte(" "))
	switch string(method) { // those without a body
	case "GET", "HEAD", "OPTIONS":
	default:
		return s, false
	}
	path, query, _ := bytes.Cut(target, []byte("?"))
	s.method, s.path = method, path
	if !ok || !ok1 || !ok2 || len(path) == 0 || path[0] != '/' || !are(path, inPath) || !are(query, inQuery) ||
		bytes.HasPrefix(path, []byte("//")) || bytes.HasPrefix(path, []byte("/.")) { // Caddy answers some of /.well-known itself
		return s, false
	}
	for {
		if line, b, ok = strictLine(b); !ok {
			return s, false
		}
		if len(line) == 0 {
			return s, len(b) == 0 && s.host != nil
		}
		name, value, found := bytes.Cut(line, []byte(":"))
		value = bytes.TrimLeft(value, " ")
		if !found || len(name) == 0 || !are(name, inName) || !are(value, inValue) || bytes.HasSuffix(value, []byte(" ")) || !s.take(name, value) {
			return s, false
		}
	}
}

// strictLine cuts a line off b.
func strictLine(b []byte) (line, rest []byte, ok bool) {
	line, rest, ok = bytes.Cut(b, []byte("\n"))
	if !ok || !bytes.HasSuffix(line, []byte("\r")) {
		return nil, nil, false
	}
	return line[:len(line)-1], rest, true
}

// take notes a header. It reports false for those that servers may disagree about, and for those by
// which a shield may decide or answer otherwise: TestStrictKnowsHeaders finds them.
func (s *strictHead) take(name, value []byte) bool {
	var buf [32]byte
	if len(name) > len(buf) {
		return false
	}
	low := buf[:len(name)]
	for i, c := range name {
		low[i] = c | 0x20 // of letters; digits and - have it
	}
	if bytes.HasPrefix(low, []byte("x-envoy-")) || bytes.HasPrefix(low, []byte("grpc-")) {
		return false
	}
	switch string(low) {
	case "content-length", "transfer-encoding", "te", "trailer", "upgrade", "http2-settings", "expect",
		"content-type", "shield-retry", "x-shield-class", "idempotency-key", "x-request-timeout",
		"x-stainless-retry-count", "retry-attempt", "x-retry-counter", "amz-sdk-request", "x-goog-api-client":
		return false
	case "connection":
		return bytes.EqualFold(value, []byte("keep-alive"))
	case "cookie":
		return !bytes.Contains(value, []byte("shield")) // a ticket
	case "host":
		return are(value, inHost) && once(&s.host, value)
	case "user-agent":
		return once(&s.agent, value)
	case "accept":
		return once(&s.accept, value)
	case "sec-fetch-mode":
		return once(&s.fetch, value)
	}
	return true
}

// once notes the value of a header that must not come again, nor be empty.
func once(at *[]byte, value []byte) bool {
	first := *at == nil && len(value) > 0
	*at = value
	return first
}

// appendShape appends what decides on the answer to a request, besides where it comes from. No
// request begins as a shape does, with a 0.
func (s *strictHead) appendShape(b []byte) []byte {
	b = append(b, 0)
	for _, part := range [...][]byte{s.method, s.host, s.accept, s.fetch} {
		b = append(append(b, part...), '\n')
	}
	return b
}
