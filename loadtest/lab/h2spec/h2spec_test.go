// Package h2spec runs h2spec, which says where a server does not keep to RFC 9113's rules, against
// shields with the door and without.
package h2spec

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"

	"github.com/caddyserver/caddy/v2"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/standard"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	_ "github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/loadtest/lab/must"
	"github.com/herdshield/shield/loadtest/lab/process"
)

// busy is a case that demands that a hundred rejections of one client are in progress at once. The
// door makes one after the other, so that the limit is never exceeded; without it the case is luck.
const busy = "5.1.2 Stream Concurrency: Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded"

// TestH2spec demands that the same cases pass with the door as without it: where all requests are
// admitted, and on connections that have been rejected requests, where the door numbers and answers those
// that follow. A case has passed once it does: each has a time limit, and some are races.
func TestH2spec(t *testing.T) {
	tool := filepath.Join(t.TempDir(), "h2spec")
	build := exec.Command("go", "-C", "../../../.ci/h2spec", "build", "-o", tool, "github.com/summerwind/h2spec/cmd/h2spec")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	servers := serve(t)
	t.Run("cases", func(t *testing.T) {
		for _, kind := range []string{"admitted", "rejected"} {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				all, here, there := map[string]bool{}, map[string]bool{}, map[string]bool{}
				for tries := 0; tries == 0 || tries < 4 && !maps.Equal(here, there); tries++ {
					var both sync.WaitGroup
					both.Go(func() { verdicts(t, tool, servers[kind+" at the door"], kind == "rejected", all, here) })
					both.Go(func() { verdicts(t, tool, servers[kind], kind == "rejected", nil, there) })
					both.Wait()
				}
				t.Logf("%d cases; %d passed with the door, %d without", len(all), len(here), len(there))
				if len(all) < 70 || len(there) < 60 {
					t.Error("h2spec has no cases, or few pass without the door")
				}
				for name := range all {
					if here[name] != there[name] {
						t.Errorf("%s: passes with the door: %v, without: %v", name, here[name], there[name])
					}
				}
			})
		}
	})
	atDoor := doorTotal(t)
	if t.Logf("%v rejections at the door", atDoor); atDoor < 100 {
		t.Errorf("%v rejections were made at the door: the runs show little", atDoor)
	}
}

var testcase = regexp.MustCompile(`<testcase classname="([^"]*)" name="([^"]*)"[^>]*>(<failure|<skipped)?`)

// verdicts runs h2spec, and adds its cases to all, and those that pass to passed.
func verdicts(t *testing.T, tool, address string, rejected bool, all, passed map[string]bool) {
	report := filepath.Join(t.TempDir(), "report.xml")
	if rejected {
		address = relay(t, address)
	}
	host, port, _ := net.SplitHostPort(address)
	out, _ := exec.Command(tool, "-o", "1", "-h", host, "-p", port, "-j", report).CombinedOutput() // it fails if any case does
	text, err := os.ReadFile(report)
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	for _, c := range testcase.FindAllStringSubmatch(string(text), -1) {
		name := c[1] + ": " + c[2]
		if all != nil {
			all[name] = true
		}
		if c[3] == "" && (name != busy || !rejected) {
			passed[name] = true
		}
	}
}

// serve starts servers with and without the door. The shields of some admit one request per hour.
func serve(t *testing.T) (addresses map[string]string) {
	servers, addresses := map[string]any{}, map[string]string{}
	for i, name := range []string{"admitted", "admitted at the door", "rejected", "rejected at the door"} {
		address := process.Free(t)
		addresses[name] = address
		zone := map[string]any{"name": fmt.Sprint("z", i), "rate": 1, "per": "1h", "burst": 1}
		if i < 2 {
			zone = map[string]any{"name": fmt.Sprint("z", i), "rate": 1_000_000}
		}
		server := map[string]any{
			"listen": []string{address}, "protocols": []string{"h1", "h2c"},
			"automatic_https": map[string]any{"disable": true},
			"routes": []any{map[string]any{"handle": []any{
				map[string]any{"handler": "shield", "name": fmt.Sprint("s", i), "pushback": map[string]any{"dither": false}, "zones": []any{zone}},
				map[string]any{"handler": "static_response", "body": "ok"},
			}}},
		}
		if i%2 == 1 {
			server["listener_wrappers"] = []any{map[string]any{"wrapper": "shield"}}
		}
		servers[name] = server
	}
	config, err := json.Marshal(map[string]any{
		"admin":   map[string]any{"disabled": true},
		"logging": map[string]any{"logs": map[string]any{"default": map[string]any{"level": "ERROR"}}},
		"apps":    map[string]any{"http": map[string]any{"servers": servers}},
	})
	must.Do(t, err)
	must.Do(t, caddy.Load(config, true))
	t.Cleanup(func() { _ = caddy.Stop() })
	return addresses
}

func doorTotal(t *testing.T) (n float64) {
	ctx := caddy.ActiveContext()
	families := must.Get(ctx.GetMetricsRegistry().Gather())(t)
	for _, f := range families {
		if f.GetName() == "caddy_shield_fast_rejects_total" {
			for _, m := range f.GetMetric() {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// relay returns an address whose connections are passed on to a server on such that have been
// rejected requests.
func relay(t *testing.T, server string) (address string) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				if err := pass(client.(*net.TCPConn), server); err != nil {
					t.Errorf("relay: %v", err)
				}
			}()
		}
	}()
	return l.Addr().String()
}

// before is how many requests a connection has been rejected before h2spec has it.
const before int32 = 8

func pass(client *net.TCPConn, server string) error {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(client, preface); err != nil {
		return nil // h2spec has nothing to say
	}
	conn, err := net.Dial("tcp", server)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write(preface); err != nil {
		return err
	}
	there, back := func() { shift(conn, client, 2*before) }, func() { shift(client, conn, -2*before) }
	if string(preface) != http2.ClientPreface { // a case; errors are its end
		there, back = func() { _, _ = io.Copy(conn, client) }, func() { _, _ = io.Copy(client, conn) }
	} else if err := reject(conn, client); err != nil {
		return err
	}
	go func() {
		back()
		_ = client.CloseWrite()
	}()
	there()
	return nil
}

// reject has a connection refused some requests, and hands on what the server begins with. The
// requests leave the server's HPACK table as it is.
func reject(conn, client net.Conn) error {
	var block bytes.Buffer
	fields := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "127.0.0.1"}, {":path", "/"}} {
		_ = fields.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true}) // into memory
	}
	f, on := http2.NewFramer(conn, conn), http2.NewFramer(client, client)
	if err := f.WriteSettings(); err != nil {
		return err
	}
	for id, known := uint32(1), false; id < uint32(2*before) || !known; {
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true}); err != nil {
			return err
		}
		for answered := false; !answered || !known; {
			got, err := f.ReadFrame()
			if err != nil {
				return err
			}
			switch is := got.(type) {
			case *http2.SettingsFrame:
				if known = known || is.IsAck(); is.IsAck() {
					break
				}
				var all []http2.Setting
				_ = is.ForeachSetting(func(s http2.Setting) error { all = append(all, s); return nil })
				err = on.WriteSettings(all...)
			case *http2.WindowUpdateFrame:
				err = on.WriteWindowUpdate(is.StreamID, is.Increment)
			default:
				answered = answered || got.Header().StreamID == id && got.Header().Flags.Has(http2.FlagDataEndStream)
			}
			if err != nil {
				return err
			}
		}
		id += 2
	}
	return nil
}

// shift passes on frames, as they are but for the numbers of their streams, until the end.
func shift(to io.Writer, from io.Reader, by int32) {
	for {
		frame := make([]byte, 9)
		n, err := io.ReadFull(from, frame)
		if err == nil {
			if id := binary.BigEndian.Uint32(frame[5:]); id != 0 {
				binary.BigEndian.PutUint32(frame[5:], id+uint32(by))
			}
			length := int(frame[0])<<16 | int(frame[1])<<8 | int(frame[2])
			frame = append(frame, make([]byte, length)...)
			var more int
			more, err = io.ReadFull(from, frame[n:])
			n += more
		}
		if _, wrong := to.Write(frame[:n]); wrong != nil || err != nil {
			return
		}
	}
}
