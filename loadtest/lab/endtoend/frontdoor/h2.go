package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// headers are what an HTTP/2 client sends.
var headers = []hpack.HeaderField{
	{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "shop.example.com"}, {Name: ":path", Value: "/items/" + zeros},
	{Name: "user-agent", Value: "frontdoor/1"}, {Name: "accept", Value: "*/*"}, {Name: "x-account", Value: "42"},
}

// streams has connections keep so many requests each in flight over HTTP/2.
func streams(conns, each int) load {
	return func(ctx context.Context, t *target, c *count) error {
		return together(conns, func(int) error {
			conn, err := t.dial(ctx, here, "h2")
			if err != nil {
				return err
			}
			defer closeWith(ctx, conn)()
			client, err := newClient2(conn)
			if err == nil {
				err = client.run(each, func(status int) { c.note(status, t.want) })
			}
			return ended(ctx, err)
		})
	}
}

// A client2 is the least HTTP/2 client. Its header block is the same from the second request
// on, as with real clients: by then all fields are in the table of the server.
type client2 struct {
	conn    net.Conn
	in      *bufio.Reader
	out     []byte // frames to be sent
	first   []byte // the header block of the first request
	block   []byte // of any other
	stream  uint32 // the next one's number
	decoder *hpack.Decoder
	status  int    // of the header block that was decoded last
	unread  uint32 // bytes for which the server has no room back yet
	payload []byte
}

const (
	largeWindow = 1<<31 - 1
	giveBack    = 1 << 29
)

func newClient2(conn net.Conn) (*client2, error) {
	c := &client2{conn: conn, in: bufio.NewReaderSize(conn, 64<<10), stream: 1}
	c.decoder = hpack.NewDecoder(4096, c.field)
	var b bytes.Buffer
	encoder := hpack.NewEncoder(&b)
	for _, block := range []*[]byte{&c.first, &c.block} {
		for _, f := range headers {
			if err := encoder.WriteField(f); err != nil {
				return nil, err
			}
		}
		*block = bytes.Clone(b.Bytes())
		b.Reset()
	}
	b.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&b, nil)
	err := errors.Join(
		framer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: largeWindow}),
		framer.WriteWindowUpdate(0, largeWindow-65535))
	c.out = b.Bytes()
	return c, err
}

// run sends requests, each as soon as another is answered, until the connection ends.
func (c *client2) run(inFlight int, answered func(status int)) error {
	for range inFlight {
		c.ask()
	}
	for {
		if c.in.Buffered() == 0 && len(c.out) > 0 {
			if _, err := c.conn.Write(c.out); err != nil {
				return err
			}
			c.out = c.out[:0]
		}
		done, err := c.frame()
		if err != nil {
			return err
		}
		if done {
			answered(c.status)
			c.ask()
		}
	}
}

func (c *client2) ask() {
	block := c.block
	if c.stream == 1 {
		block = c.first
	}
	c.write(http2.FrameHeaders, http2.FlagHeadersEndStream|http2.FlagHeadersEndHeaders, c.stream, block)
	c.stream += 2
}

func (c *client2) write(kind http2.FrameType, flags http2.Flags, stream uint32, payload []byte) {
	c.out = binary.BigEndian.AppendUint32(c.out, uint32(len(payload))<<8|uint32(kind))
	c.out = binary.BigEndian.AppendUint32(append(c.out, byte(flags)), stream)
	c.out = append(c.out, payload...)
}

// frame reads a frame. It reports whether a response ends with it. Streams of one connection
// have all the same response, so the status is that of the latest header block.
func (c *client2) frame() (done bool, err error) {
	var head [9]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return false, err
	}
	length, kind, flags := int(binary.BigEndian.Uint32(head[:4])>>8), http2.FrameType(head[3]), http2.Flags(head[4])
	if cap(c.payload) < length {
		c.payload = make([]byte, length)
	}
	c.payload = c.payload[:length]
	if _, err := io.ReadFull(c.in, c.payload); err != nil {
		return false, err
	}
	const ends = http2.FlagDataEndStream // and FlagHeadersEndStream
	switch kind {
	case http2.FrameHeaders:
		if flags&^ends != http2.FlagHeadersEndHeaders {
			return false, fmt.Errorf("a HEADERS frame has the flags %#x; this client knows END_HEADERS and END_STREAM", flags)
		}
		return flags&ends != 0, c.decode()
	case http2.FrameData:
		if c.unread += uint32(length); c.unread >= giveBack {
			c.write(http2.FrameWindowUpdate, 0, 0, binary.BigEndian.AppendUint32(nil, c.unread))
			c.unread = 0
		}
		return flags&ends != 0, nil
	case http2.FrameSettings, http2.FramePing:
		const ack = http2.FlagSettingsAck // and FlagPingAck
		if flags&ack == 0 {
			answer := c.payload
			if kind == http2.FrameSettings {
				answer = nil
			}
			c.write(kind, ack, 0, answer)
		}
	case http2.FrameWindowUpdate:
	default:
		return false, fmt.Errorf("a frame of type %v came: %x", kind, c.payload)
	}
	return false, nil
}

// decode reads the status, which is the first field, and keeps the table for the next block.
func (c *client2) decode() error {
	c.status = 0
	c.decoder.SetEmitEnabled(true)
	if _, err := c.decoder.Write(c.payload); err != nil {
		return err
	}
	return c.decoder.Close()
}

func (c *client2) field(f hpack.HeaderField) {
	if f.Name == ":status" {
		c.status, _ = strconv.Atoi(f.Value) // 0 is no status that is wanted
		c.decoder.SetEmitEnabled(false)
	}
}
