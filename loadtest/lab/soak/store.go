package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/loadtest/lab/process"
)

// A store is a redis-server behind a proxy that damages what it answers.
type store struct {
	address string // of the proxy
	server  string
	folder  string
	cmd     *exec.Cmd
	stop    func()
	damage  atomic.Pointer[func(answer []byte) []byte] // nil: none
	ahead   atomic.Int64                               // by how much its clock is set, a time.Duration
}

func (s *store) start(ctx context.Context) (err error) {
	_, port, _ := net.SplitHostPort(s.server)
	s.cmd = exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", s.folder)
	s.stop, err = process.Start(ctx, s.cmd, filepath.Join(s.folder, "redis.log"), "tcp", s.server)
	return err
}

// proxy passes on until l is closed.
func (s *store) proxy(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer client.Close()
			server, err := net.Dial("tcp", s.server)
			if err != nil {
				return
			}
			defer server.Close()
			go func() { pass(server, client, s.date); server.Close() }()
			pass(client, server, func(answer []byte) []byte {
				if damage := s.damage.Load(); damage != nil {
					return (*damage)(answer)
				}
				return answer
			})
		}()
	}
}

// pass passes on what comes, changed, until a connection ends.
func pass(to io.Writer, from io.Reader, change func([]byte) []byte) {
	for buffer := make([]byte, 64<<10); ; {
		n, err := from.Read(buffer)
		if err == nil {
			_, err = to.Write(change(buffer[:n]))
		}
		if err != nil {
			return
		}
	}
}

// noDate is the first argument of the script, if it is to take the server's time, before the second one.
var noDate = regexp.MustCompile(`\$0\r\n\r\n(\$\d+\r\n\{"me")`)

// date has the script run at the time that the store's clock shows.
func (s *store) date(ask []byte) []byte {
	ahead := time.Duration(s.ahead.Load())
	if ahead == 0 {
		return ask
	}
	now := strconv.FormatInt(time.Now().Add(ahead).UnixMilli(), 10)
	return noDate.ReplaceAll(ask, fmt.Appendf(nil, "$$%d\r\n%s\r\n$1", len(now), now))
}

func late(answer []byte) []byte {
	time.Sleep(200 * time.Millisecond)
	return answer
}

// garbage answers what no Redis would, or not here.
func garbage(answer []byte) []byte {
	texts := []string{"", "$2000000000\r\n", "$9223372036854775807\r\n", "*100000000\r\n", "$-7\r\n", ":1\r\n", "+OK\r\n", "$2\r\n{}\r\n", "-ERR no\r\n", "$4\r\nnull\r\n", "*-1\r\n"}
	if text := texts[rand.IntN(len(texts))]; text != "" {
		return []byte(text)
	}
	for i := range answer {
		answer[i] = byte(rand.N(256))
	}
	return answer
}

// lie answers with other numbers of as many digits, so that the answer can be read.
func lie(answer []byte) []byte {
	begin := strings.Index(string(answer), "{") // after the length
	for i := max(0, begin); begin >= 0 && i < len(answer); i++ {
		if c := answer[i]; c >= '1' && c <= '9' && rand.N(4) == 0 {
			answer[i] = '1' + byte(rand.N(9))
		}
	}
	return answer
}
