package operate

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"sync"
	"syscall"

	"github.com/caddyserver/caddy/v2"
)

// ShareAdmin is for the command of a program, before it runs: another process may listen at the
// address of its admin endpoint.
func ShareAdmin() { adminLooked.Do(func() {}) }

// adminLooked is done with the first config: later ones find the sockets of this process.
var adminLooked sync.Once

// Provision implements caddy.Provisioner. Caddy calls it before it opens the admin endpoint. The error
// says that another process listens there. Caddy would listen beside it, for it sets SO_REUSEPORT, and
// status, block and reload would reach either process.
func (*Admin) Provision(ctx caddy.Context) (err error) {
	adminLooked.Do(func() {
		if address := adminAddress(ctx); Listened(address) {
			err = fmt.Errorf("the admin address is %s, where another process listens, maybe another shield; "+
				"want that process stopped, or another address in the global option admin or in CADDY_ADMIN", address)
		}
	})
	return err
}

// adminAddress returns where the admin endpoint of a config is to listen, "" if it is off. Caddy shows
// its config to no module, so this reads a field that Caddy keeps to itself; of a Caddy without it, it
// returns "".
func adminAddress(ctx caddy.Context) string {
	field := reflect.ValueOf(ctx).FieldByName("cfg")
	if !field.IsValid() || field.Type() != reflect.TypeFor[*caddy.Config]() {
		return ""
	}
	admin := cmp.Or((*caddy.Config)(field.UnsafePointer()).Admin, new(caddy.AdminConfig))
	if admin.Disabled {
		return ""
	}
	return cmp.Or(caddy.NewReplacer().ReplaceKnown(admin.Listen, ""), caddy.DefaultAdminListen)
}

// Listened reports whether a process listens at a TCP address, as Caddy writes it; false for what is none.
func Listened(address string) bool {
	addr, err := caddy.ParseNetworkAddress(address)
	if err != nil || !strings.HasPrefix(addr.Network, "tcp") || addr.StartPort == 0 {
		return false
	}
	l, err := net.Listen(addr.Network, addr.JoinHostPort(0))
	if err == nil {
		l.Close()
	}
	return errors.Is(err, syscall.EADDRINUSE)
}
