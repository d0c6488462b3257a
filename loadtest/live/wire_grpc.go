package live

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/pushback"
)

// grpcWire calls one unary method with an empty message. The contents of the answer do not
// matter: a HealthCheck with NOT_SERVING counts as answered.
type grpcWire struct {
	cfg   LoadConfig
	conns []*grpc.ClientConn
}

func newGRPCWire(c LoadConfig, d *dialer) (*grpcWire, error) {
	creds := insecure.NewCredentials()
	if c.Target.URL.Scheme == "https" {
		creds = credentials.NewTLS(&tls.Config{InsecureSkipVerify: c.Insecure, ServerName: c.Target.URL.Hostname()})
	}
	w := &grpcWire{cfg: c}
	for range c.connections() {
		conn, err := grpc.NewClient("passthrough:///"+c.Target.URL.Host,
			grpc.WithTransportCredentials(creds),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return d.dial(ctx, "", "") }),
			grpc.WithNoProxy(),
			// Only the clients retry.
			grpc.WithDisableRetry(),
			grpc.WithDisableServiceConfig(),
			// A broken connection is opened again soon. Otherwise its clients would fail
			// without an attempt.
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 100 * time.Millisecond},
				MinConnectTimeout: max(20*time.Second, 2*c.Timeout), // the first is grpc-go's own; clients run out of time before
			}),
			grpc.WithIdleTimeout(0),
			grpc.WithUserAgent(userAgent),
			grpc.WithStatsHandler(answered{}),
			grpc.WithMaxHeaderListSize(maxHeader),
		)
		if err != nil {
			w.close()
			return nil, fmt.Errorf("connecting by gRPC: %w", err)
		}
		w.conns = append(w.conns, conn)
	}
	return w, nil
}

func (w *grpcWire) send(ctx context.Context, s sender) reply {
	md := metadata.MD{}
	for name, values := range w.cfg.Header {
		md.Append(name, values...)
	}
	if s.address != "" {
		md.Set("X-Forwarded-For", s.address)
	}
	var header, trailer metadata.MD
	var fromServer atomic.Bool // written by another goroutine, which may come late
	ctx = metadata.NewOutgoingContext(context.WithValue(ctx, answered{}, &fromServer), md)
	err := w.conns[s.index%len(w.conns)].Invoke(ctx, w.cfg.Method, &emptypb.Empty{}, &emptypb.Empty{},
		grpc.Header(&header), grpc.Trailer(&trailer))
	st := status.Convert(err)
	switch {
	case err == nil:
		return reply{status: http.StatusOK, label: codes.OK.String()}
	case fromServer.Load():
		r := reply{status: runtime.HTTPStatusFromCode(st.Code()), label: st.Code().String(), hint: grpcHint(metadata.Join(header, trailer), time.Now())}
		if st.Code() == codes.DeadlineExceeded {
			// The server's own deadline error, unlike a gateway's 504, which grpc-go
			// retries as UNAVAILABLE.
			r.failed = clients.NoAnswer
		}
		return r
	case ctx.Err() != nil:
		return reply{status: clients.NoAnswer}
	}
	if code, ok := answeredByHTTP(st.Message()); ok {
		r := reply{status: code, label: fmt.Sprintf("HTTP %d", code)}
		if code < 300 {
			r.status, r.label = http.StatusNotImplemented, r.label+", but no gRPC"
		}
		return r
	}
	return reply{status: clients.NoConnection, why: st.Message()}
}

// answered is a stats.Handler that tells answers of the server from failures that grpc-go
// reports with the same codes. It is also the context key of its result.
type answered struct{}

func (answered) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC is called by the connection's reader before the call returns.
func (answered) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.InTrailer); ok {
		if p, ok := ctx.Value(answered{}).(*atomic.Bool); ok {
			p.Store(true)
		}
	}
}

func (answered) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (answered) HandleConn(context.Context, stats.ConnStats) {}

// answeredByHTTP returns the status of an answer without gRPC, as from a proxy. It parses
// the message of grpc-go, which has no other place for it.
func answeredByHTTP(message string) (int, bool) {
	_, rest, ok := strings.Cut(message, "unexpected HTTP status code received from server: ")
	if !ok {
		return 0, false
	}
	digits, _, _ := strings.Cut(rest, " ")
	code, err := strconv.Atoi(digits)
	return code, err == nil && code >= 100 && code < 600
}

// grpcHint is hintOf for the metadata of an answer. grpc-retry-pushback-ms is the wait in
// milliseconds; one that is negative or not a number means never (gRPC proposal A6).
func grpcHint(md metadata.MD, now time.Time) pushback.Hint {
	h := http.Header{}
	for _, name := range []string{"Retry-After", "Retry-After-Ms", "X-Should-Retry"} {
		if values := md.Get(name); len(values) > 0 {
			h.Set(name, values[0])
		}
	}
	hint := hintOf(h, now)
	if values := md.Get("grpc-retry-pushback-ms"); len(values) > 0 {
		n, ok := wholeNumber(values[0])
		if !ok {
			return pushback.Hint{Never: true}
		}
		hint.Ms = int(min(n, math.MaxInt32*1000))
	}
	return hint
}

func (w *grpcWire) connect(ctx context.Context) {
	for _, c := range w.conns {
		c.Connect()
	}
	for _, c := range w.conns {
		for s := c.GetState(); s != connectivity.Ready && s != connectivity.TransientFailure; s = c.GetState() {
			if !c.WaitForStateChange(ctx, s) {
				return
			}
		}
	}
}

func (w *grpcWire) close() {
	for _, c := range w.conns {
		c.Close()
	}
}
