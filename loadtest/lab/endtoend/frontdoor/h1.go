package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// request is what an HTTP/1.1 client sends, with its headers between "\r\n". The zeros are
// counted up where requests differ.
const request = "GET /items/" + zeros + " HTTP/1.1\r\n" +
	"Host: shop.example.com\r\n" +
	"User-Agent: frontdoor/1\r\n" +
	"Accept: */*\r\n" +
	"X-Account: 42\r\n"

const zeros = "0000000000"

// here is the address from which clients connect by default.
const here = "127.0.0.1"

// dial connects from a loopback address.
func (t *target) dial(ctx context.Context, from string, protocol string) (net.Conn, error) {
	d := net.Dialer{Timeout: 5 * time.Second, KeepAlive: -1}
	if from != here { // to bind costs as much as to connect
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	conn, err := d.DialContext(ctx, "tcp", t.address)
	if err != nil {
		return nil, err
	}
	if t.tls != nil {
		config := t.tls.Clone()
		config.NextProtos = []string{protocol}
		conn = tls.Client(conn, config)
	}
	return conn, nil
}

// closeWith closes a connection when ctx ends, or when it is told to.
func closeWith(ctx context.Context, conn net.Conn) (now func()) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	return func() {
		if stop() {
			_ = conn.Close()
		}
	}
}

// A client1 has one connection, and one request in flight. It is written out because
// net/http's client would take more time than the front end.
type client1 struct {
	conn    net.Conn
	request []byte
	buffer  [4096]byte
}

func newClient1(conn net.Conn, header string) *client1 {
	return &client1{conn: conn, request: []byte(request + header + "\r\n")}
}

// vary makes the next request another one than all before.
func (c *client1) vary(n uint64) {
	at := c.request[len("GET /items/"):][:len(zeros)]
	for i := len(at) - 1; i >= 0; i-- {
		at[i] = '0' + byte(n%10)
		n /= 10
	}
}

// do sends the request, and returns the status of the response when it has all of it.
func (c *client1) do() (status int, err error) {
	if _, err := c.conn.Write(c.request); err != nil {
		return 0, err
	}
	for n, end := 0, len(c.buffer); n < end; {
		if n == len(c.buffer) {
			return 0, fmt.Errorf("a response has more than %d bytes; this client reads no such ones", n)
		}
		more, err := c.conn.Read(c.buffer[n:])
		if err != nil {
			return 0, err
		}
		n += more
		if i := bytes.Index(c.buffer[:n], []byte("\r\n\r\n")); i >= 0 {
			if status, end, err = parseHead(c.buffer[:i+4]); err != nil {
				return 0, err
			}
			if end += i + 4; n > end {
				return 0, fmt.Errorf("%d bytes came after a response of %d: %q", n-end, end, c.buffer[:n])
			}
		}
	}
	return status, nil
}

// parseHead returns the status and the Content-Length of a response.
func parseHead(head []byte) (status, length int, err error) {
	const name = "\nContent-Length: "
	i := bytes.Index(head, []byte(name))
	if i < 0 {
		i = bytes.Index(head, []byte("\ncontent-length: ")) // HAProxy's
	}
	if i < 0 || len(head) < len("HTTP/1.1 200") {
		return 0, 0, fmt.Errorf("a response without a Content-Length: %q", head)
	}
	value, _, _ := bytes.Cut(head[i+len(name):], []byte("\r"))
	length, err = strconv.Atoi(string(value))
	if err != nil {
		return 0, 0, err
	}
	status, err = strconv.Atoi(string(head[len("HTTP/1.1 "):][:3]))
	return status, length, err
}

// again has connections send the same request again and again, each as soon as it is answered.
func again(conns int) load {
	return func(ctx context.Context, t *target, c *count) error {
		return together(conns, func(int) error { return t.keep(ctx, c, false) })
	}
}

// different is like again, with requests that all differ.
func different(conns int) load {
	return func(ctx context.Context, t *target, c *count) error {
		return together(conns, func(int) error { return t.keep(ctx, c, true) })
	}
}

// impatient is like again, of a client that does not wait for its appointment. It has one for
// sure once a request of its own was answered, and keeping to it matters once others wait, too.
func impatient(conns int) load {
	return func(ctx context.Context, t *target, c *count) error {
		for _, from := range []string{"127.0.3.1", "127.0.3.2", "127.0.3.3", here} {
			if _, err := t.once(ctx, from); err != nil {
				return ended(ctx, err)
			}
		}
		return again(conns)(ctx, t, c)
	}
}

func (t *target) keep(ctx context.Context, c *count, vary bool) error {
	conn, err := t.dial(ctx, here, "http/1.1")
	if err != nil {
		return err
	}
	defer closeWith(ctx, conn)()
	for client := newClient1(conn, ""); ; {
		if vary {
			client.vary(c.sent.Add(1))
		}
		status, err := client.do()
		if err != nil {
			return ended(ctx, err)
		}
		c.note(status, t.want)
	}
}

// anew has so many clients open a connection for each request. The server closes it, so that
// the client's ports are free again at once.
func anew(clients int) load {
	return func(ctx context.Context, t *target, c *count) error {
		return together(clients, func(int) error {
			for ctx.Err() == nil {
				status, err := t.once(ctx, here)
				if err != nil {
					return ended(ctx, err)
				}
				c.note(status, t.want)
			}
			return nil
		})
	}
}

func (t *target) once(ctx context.Context, from string) (status int, err error) {
	conn, err := t.dial(ctx, from, "http/1.1")
	if err != nil {
		return 0, err
	}
	defer closeWith(ctx, conn)()
	client := newClient1(conn, "Connection: close\r\n")
	if status, err = client.do(); err != nil {
		return 0, err
	}
	if _, err := conn.Read(client.buffer[:]); !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("the connection does not end with its response: %v", err)
	}
	return status, nil
}
