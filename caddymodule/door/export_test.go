package door

import (
	"net"
	"net/http"
)

// Serve has a server serve behind a door, as Caddy does.
func Serve(server *http.Server, l net.Listener) error {
	server.ConnContext = connContext()
	return server.Serve(new(Door).WrapListener(l))
}

// NumberKey is the header that no handler sees.
var NumberKey = numberKey
