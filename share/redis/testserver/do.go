package testserver

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// do sends one command on a connection of its own, and returns the reply as text: that of
// a list has one line for each element.
func do(address string, t *tls.Config, password string, args ...string) (string, error) {
	d := &net.Dialer{Timeout: 10 * time.Second}
	conn, err := d.Dial("tcp", address)
	if err == nil && t != nil {
		conn = tls.Client(conn, t)
	}
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return "", err
	}
	r := bufio.NewReader(conn)
	if password != "" {
		if _, err := send(conn, r, "AUTH", password); err != nil {
			return "", err
		}
	}
	return send(conn, r, args...)
}

func send(w io.Writer, r *bufio.Reader, args ...string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return "", err
	}
	return reply(r)
}

func reply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSuffix(line, "\r\n")
	kind, rest := line[0], line[1:]
	n, _ := strconv.Atoi(rest)
	switch kind {
	case '-':
		return "", errors.New(rest)
	case '$':
		if n < 0 {
			return "", nil
		}
		text := make([]byte, n+2)
		_, err := io.ReadFull(r, text)
		return string(text[:n]), err
	case '*':
		lines := make([]string, max(0, n))
		for i := range lines {
			if lines[i], err = reply(r); err != nil {
				return "", err
			}
		}
		return strings.Join(lines, "\n"), nil
	}
	return rest, nil
}
