package caddymodule

import (
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/pushback"
)

// maxTimeout bounds a time-out. Ours: longer ones are mistakes.
const maxTimeout = 24 * time.Hour

// timeout is how long the backend may be waited for; 0: for ever. It ends requests whose handlers
// obey their contexts, as reverse_proxy does. A response that others begin later is dropped.
func (h *Handler) timeout(is *inForce) time.Duration {
	if h.Timeout == nil || is.config.Observe {
		return 0
	}
	return time.Duration(*h.Timeout)
}

// orTimeout returns the error of the handler behind, or that of the time-out. If the response has begun
// then, and cannot be complete, orTimeout panics as reverse_proxy does.
func orTimeout(x *shield.Exchange, r *http.Request, err error) error {
	late, slow := x.Late()
	if !late || x.Status() == http.StatusSwitchingProtocols {
		return err
	}
	if x.Status() != 0 {
		panic(http.ErrAbortHandler)
	}
	header := x.Header()
	switch {
	case slow:
		header.Set("Connection", "close")
		return caddyhttp.HandlerError{StatusCode: http.StatusRequestTimeout, Err: shield.ErrTimeout}
	case pushback.IsGRPC(r): // its clients do not read 504
		header.Set("Content-Type", "application/grpc")
		header.Set("Grpc-Status", "4")
		header.Set("Grpc-Message", shield.ErrTimeout.Error())
		x.ResponseWriter.WriteHeader(http.StatusOK)
		return nil
	}
	header.Set("Proxy-Status", "shield; error=http_response_timeout") // RFC 9209, section 2.3
	return caddyhttp.Error(http.StatusGatewayTimeout, shield.ErrTimeout)
}
