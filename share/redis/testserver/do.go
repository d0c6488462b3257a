package testserver

import (
	"crypto/tls"
	"fmt"
	"strings"
	"time"

	redigo "github.com/gomodule/redigo/redis"
)

// do sends one command on a connection of its own, and returns the reply as text: that of
// a list has one line for each element.
func do(address string, t *tls.Config, password string, args ...string) (string, error) {
	const most = 10 * time.Second
	conn, err := redigo.Dial("tcp", address, redigo.DialPassword(password), redigo.DialUseTLS(t != nil), redigo.DialTLSConfig(t),
		redigo.DialConnectTimeout(most), redigo.DialReadTimeout(most), redigo.DialWriteTimeout(most))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	reply, err := conn.Do(args[0], redigo.Args{}.AddFlat(args[1:])...)
	return textOf(reply), err
}

func textOf(reply any) string {
	switch reply := reply.(type) {
	case nil:
		return ""
	case []byte:
		return string(reply)
	case []any:
		lines := make([]string, len(reply))
		for i, one := range reply {
			lines[i] = textOf(one)
		}
		return strings.Join(lines, "\n")
	}
	return fmt.Sprint(reply)
}
