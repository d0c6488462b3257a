// Package shieldgrpc puts a shield.Guard before the methods of a gRPC server.
//
//	guard := shield.Must(shield.New(shield.Config{Concurrency: 64}, nil))
//	server := grpc.NewServer(
//		grpc.UnaryInterceptor(shieldgrpc.Unary(guard, shieldgrpc.Options{})),
//		grpc.StreamInterceptor(shieldgrpc.Stream(guard, shieldgrpc.Options{})),
//	)
//
// A rejected call ends with RESOURCE_EXHAUSTED if its client is over its own limit, else
// with UNAVAILABLE. It carries the client's appointment twice. gRPC clients with a retry
// policy obey the trailer grpc-retry-pushback-ms (gRPC proposal A6). OTLP exporters read
// the google.rpc.RetryInfo.
//
// Limitations: tickets are for HTTP only, as is the early warning to admitted clients.
package shieldgrpc

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/herdshield/shield"
)

// Options say whose a call is. Zones count by its client: Zone.Key and Config.Client are for HTTP.
type Options struct {
	// Client names the client of a call to a method ("/package.Service/Method"). nil
	// means the address of the peer: IPv4 by address, IPv6 by /64. Behind a proxy that
	// is one and the same for all.
	Client func(ctx context.Context, method string) string

	// Class names the priority class of a call; a name that the Guard does not know, ""
	// too, means the default class. nil means that all are of that.
	Class func(ctx context.Context, method string) string
}

// Unary returns the interceptor of methods with one request and one response.
func Unary(g *shield.Guard, o Options) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
		d, err := enter(ctx, g, o, info.FullMethod)
		if err != nil {
			return nil, err
		}
		ended := shield.Detached // if the handler panics
		defer func() { d.Done(shield.Now(), ended) }()
		response, err = handler(ctx, request)
		ended = outcome(ctx, err)
		return response, err
	}
}

// Stream returns the interceptor of streaming methods. A stream holds its permit in flight
// until it ends. How long it took is up to the client where that streams, too, so it
// says nothing about the backend then.
func Stream(g *shield.Guard, o Options) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		d, err := enter(stream.Context(), g, o, info.FullMethod)
		if err != nil {
			return err
		}
		ended := shield.Detached
		defer func() { d.Done(shield.Now(), ended) }()
		err = handler(server, stream)
		if is := outcome(stream.Context(), err); !info.IsClientStream || is == shield.Overloaded {
			ended = is
		}
		return err
	}
}

// enter asks the Guard. The error is the answer to a call that is rejected.
func enter(ctx context.Context, g *shield.Guard, o Options, method string) (shield.Decision, error) {
	now := shield.Now()
	d := g.Enter(ctx, now, describe(ctx, g, o, method, now))
	if d.Admit {
		return d, nil
	}
	if _, ok := d.Deliver(ctx); !ok {
		return d, status.FromContextError(ctx.Err()).Err()
	}
	code, message := g.Responses().GRPC(d.Rejection())
	rejection := status.New(codes.Code(code), message)
	wait := "-1"
	if !d.Hint.Never {
		wait = strconv.Itoa(d.Hint.Ms)
		delay := durationpb.New(time.Duration(d.Hint.Ms) * time.Millisecond)
		if detailed, err := rejection.WithDetails(&errdetails.RetryInfo{RetryDelay: delay}); err == nil {
			rejection = detailed
		}
	}
	_ = grpc.SetTrailer(ctx, metadata.Pairs("grpc-retry-pushback-ms", wait)) // fails outside a server only
	return d, rejection.Err()
}

// describe returns what the Guard has to know of a call that comes at now.
func describe(ctx context.Context, g *shield.Guard, o Options, method string, now time.Duration) shield.Request {
	from, _ := metadata.FromIncomingContext(ctx)
	agent := ""
	if a := from["user-agent"]; len(a) > 0 {
		agent = a[0]
	}
	q := shield.Request{
		Precise: true, Agent: agent,
		Retry: len(from["grpc-previous-rpc-attempts"]) > 0, // gRPC proposal A6
	}
	var name []byte
	if o.Client != nil {
		name = []byte(o.Client(ctx, method))
	} else {
		name = shield.AppendNetwork(nil, address(ctx), 32, 64)
	}
	g.Identify(&q, name, nil)
	if o.Class != nil {
		g.Classify(&q, o.Class(ctx, method))
	}
	if at, ok := ctx.Deadline(); ok {
		q.Deadline = max(now+1, now+at.Sub(shield.At(now))) // 0 would mean that there is none
	}
	return q
}

// address returns that of the peer, or the zero Addr.
func address(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return netip.Addr{}
	}
	if tcp, ok := p.Addr.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr()
	}
	at, _ := netip.ParseAddrPort(p.Addr.String())
	return at.Addr()
}

// outcome returns what the end of a call says of the backend: codes about the request or
// its client say that it was served.
func outcome(ctx context.Context, err error) shield.Outcome {
	switch code := status.Code(err); {
	case ctx.Err() == context.Canceled:
		return shield.Aborted
	case ctx.Err() != nil, code == codes.DeadlineExceeded:
		return shield.TimedOut
	case code == codes.Unavailable:
		return shield.Overloaded
	case code == codes.ResourceExhausted:
		return shield.Limited
	}
	return shield.Served
}
