package shieldgrpc_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
	"github.com/herdshield/shield/shieldgrpc"
)

// Before all methods of a server. The user is named by a token that an interceptor before
// this one has checked.
func ExampleUnary() {
	var authenticate grpc.UnaryServerInterceptor = func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return handler(ctx, req)
	}
	var authenticateStream grpc.StreamServerInterceptor = func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return handler(srv, stream)
	}
	guard := shield.Must(shield.New(shield.Config{Concurrency: 64, PerClient: 8}, nil))
	options := shieldgrpc.Options{
		Client: func(ctx context.Context, _ string) string {
			return strings.Join(metadata.ValueFromIncomingContext(ctx, "authorization"), " ")
		},
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(authenticate, shieldgrpc.Unary(guard, options)),
		grpc.ChainStreamInterceptor(authenticateStream, shieldgrpc.Stream(guard, options)),
	)
	health.RegisterHealthServer(server, new(service))
	fmt.Println(len(server.GetServiceInfo()), guard.Limit())
	// Output: 1 64
}

// service answers health checks, and if it has gates, not before it may.
type service struct {
	health.UnimplementedHealthServer
	entered, leave chan bool
}

func (s *service) wait() {
	if s.entered != nil {
		s.entered <- true
		<-s.leave
	}
}

func (s *service) Check(context.Context, *health.HealthCheckRequest) (*health.HealthCheckResponse, error) {
	s.wait()
	return &health.HealthCheckResponse{Status: health.HealthCheckResponse_SERVING}, nil
}

func (s *service) Watch(_ *health.HealthCheckRequest, stream grpc.ServerStreamingServer[health.HealthCheckResponse]) error {
	s.wait()
	return stream.Send(&health.HealthCheckResponse{Status: health.HealthCheckResponse_SERVING})
}

// serve starts a server of s behind c on loopback, and returns a client of it.
func serve(t *testing.T, s *service, c shield.Config, o shieldgrpc.Options, dial ...grpc.DialOption) (health.HealthClient, *shield.State) {
	t.Helper()
	state := new(shield.State)
	guard := shield.Must(shield.New(c, state))
	server := grpc.NewServer(grpc.UnaryInterceptor(shieldgrpc.Unary(guard, o)), grpc.StreamInterceptor(shieldgrpc.Stream(guard, o)))
	health.RegisterHealthServer(server, s)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(listener.Addr().String(), append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return health.NewHealthClient(conn), state
}

// rejected checks that a call was rejected with a code, and told a time in both ways.
func rejected(t *testing.T, err error, trailer metadata.MD, want codes.Code) {
	t.Helper()
	s := status.Convert(err)
	pushback, _ := strconv.Atoi(append(trailer.Get("grpc-retry-pushback-ms"), "")[0])
	if s.Code() != want || pushback < 1 || len(s.Details()) != 1 {
		t.Fatalf("%v, details %v, trailer %v; want %v and when to come back", err, s.Details(), trailer, want)
	}
	info, ok := s.Details()[0].(*errdetails.RetryInfo)
	if !ok || info.RetryDelay.AsDuration() != time.Duration(pushback)*time.Millisecond {
		t.Errorf("%v, and a pushback of %d ms", s.Details(), pushback)
	}
}

func TestQuota(t *testing.T) {
	byUser := shieldgrpc.Options{Client: func(ctx context.Context, _ string) string {
		from, _ := metadata.FromIncomingContext(ctx)
		return append(from.Get("user"), "")[0]
	}}
	for name, c := range map[string]struct {
		options shieldgrpc.Options
		other   codes.Code // of a second user of the same address
	}{"by address": {shieldgrpc.Options{}, codes.ResourceExhausted}, "by user": {byUser, codes.OK}} {
		t.Run(name, func(t *testing.T) {
			client, _ := serve(t, &service{}, shield.Config{
				Zones: []shield.Zone{{Name: "z", Limit: limiter.Config{Rate: 1, Per: time.Minute, Burst: 2}}},
			}, c.options)
			call := func(user string) (metadata.MD, error) {
				var trailer metadata.MD
				_, err := client.Check(metadata.AppendToOutgoingContext(t.Context(), "user", user), &health.HealthCheckRequest{}, grpc.Trailer(&trailer))
				return trailer, err
			}
			for range 2 {
				if _, err := call("ann"); err != nil {
					t.Fatal(err)
				}
			}
			trailer, err := call("ann")
			rejected(t, err, trailer, codes.ResourceExhausted)
			if _, err := call("bob"); status.Code(err) != c.other {
				t.Errorf("another user: %v, want %v", err, c.other)
			}
		})
	}
}

// Calls and streams hold permits; what finds none is UNAVAILABLE, and the permits are
// given back.
func TestConcurrency(t *testing.T) {
	s := &service{entered: make(chan bool), leave: make(chan bool)}
	client, state := serve(t, s, shield.Config{Concurrency: 2, Queue: loadshed.QueueConfig{Size: loadshed.NoQueue}, Pushback: pushback.ResponseConfig{NoDither: true}}, shieldgrpc.Options{})
	ended := make(chan error, 2)
	go func() {
		_, err := client.Check(t.Context(), &health.HealthCheckRequest{})
		ended <- err
	}()
	<-s.entered
	go func() {
		stream, err := client.Watch(t.Context(), &health.HealthCheckRequest{})
		for err == nil {
			_, err = stream.Recv()
		}
		ended <- err
	}()
	<-s.entered
	var trailer metadata.MD
	_, err := client.Check(t.Context(), &health.HealthCheckRequest{}, grpc.Trailer(&trailer))
	rejected(t, err, trailer, codes.Unavailable)
	stream, err := client.Watch(t.Context(), &health.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	rejected(t, err, stream.Trailer(), codes.Unavailable)
	if n := state.Backend.Stats(shield.Now()).InFlight; n != 2 {
		t.Errorf("%d in flight, want 2", n)
	}
	close(s.leave)
	<-ended
	<-ended
	// The last response may arrive before its permit is given back.
	for end := time.Now().Add(10 * time.Second); state.Backend.Stats(shield.Now()).InFlight > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d in flight at the end", state.Backend.Stats(shield.Now()).InFlight)
		}
	}
}

// A client with a retry policy comes when it was told, and is served.
func TestClientsObey(t *testing.T) {
	const policy = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.01s", "maxBackoff": "0.01s", "backoffMultiplier": 1, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`
	client, state := serve(t, &service{}, shield.Config{
		Zones: []shield.Zone{{Name: "z", Limit: limiter.Config{Rate: 2, Burst: 1}}},
	}, shieldgrpc.Options{}, grpc.WithDefaultServiceConfig(policy))
	for i := range 3 {
		if _, err := client.Check(t.Context(), &health.HealthCheckRequest{}); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	if s := state.Backend.Stats(shield.Now()); s.Rejected[shield.Quota] != 2 || s.Admitted != 3 {
		t.Errorf("%d rejected and %d admitted; want each of the last two rejected once", s.Rejected[shield.Quota], s.Admitted)
	}
}

// unary makes a call of a method without a network.
func unary(ctx context.Context, g *shield.Guard, o shieldgrpc.Options, method string, handler func() error) error {
	_, err := shieldgrpc.Unary(g, o)(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) { return nil, handler() })
	return err
}

func TestClass(t *testing.T) {
	guard := shield.Must(shield.New(shield.Config{Concurrency: 10, Classes: []loadshed.Class{{Name: loadshed.Critical}, {Name: loadshed.Sheddable}}}, nil))
	options := shieldgrpc.Options{Class: func(_ context.Context, method string) string {
		return map[string]string{"/pay.Service/Pay": loadshed.Critical}[method]
	}}
	for _, method := range []string{"/pay.Service/Pay", "/list.Service/List"} {
		if err := unary(t.Context(), guard, options, method, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	for _, class := range guard.ClassStats() {
		if want := map[string]uint64{loadshed.Critical: 1, loadshed.Default: 1}[class.Name]; class.Admitted != want {
			t.Errorf("class %s: %d admitted, want %d", class.Name, class.Admitted, want)
		}
	}
}

// The limit is told how a call ends, and a panic keeps no permit.
func TestOutcomes(t *testing.T) {
	for code, failed := range map[codes.Code]uint64{codes.OK: 0, codes.NotFound: 0, codes.ResourceExhausted: 0, codes.Unavailable: 1, codes.Internal: 0} {
		state := new(shield.State)
		guard := shield.Must(shield.New(shield.Config{Concurrency: 1}, state))
		func() {
			defer func() { _ = recover() }()
			_ = unary(t.Context(), guard, shieldgrpc.Options{}, "/a/b", func() error { panic("in a handler") })
		}()
		if err := unary(t.Context(), guard, shieldgrpc.Options{}, "/a/b", func() error { return status.Error(code, "") }); status.Code(err) != code {
			t.Errorf("%v became %v", code, err)
		}
		if s := state.Backend.Stats(shield.Now()); s.Failed != failed || s.InFlight != 0 {
			t.Errorf("%v: %d failures and %d in flight, want %d and 0", code, s.Failed, s.InFlight, failed)
		}
	}
}

// A contextStream is a stream of a client that sends nothing.
type contextStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s contextStream) Context() context.Context { return s.ctx }

// How long a call takes that its client cancels, or in which the client streams, says nothing of the backend: the next client is
// told a second, as long as nothing is known.
func TestClientsTakeTheirTime(t *testing.T) {
	for name, call := range map[string]func(context.Context, *shield.Guard){
		"cancelled": func(ctx context.Context, g *shield.Guard) {
			ctx, cancel := context.WithCancel(ctx)
			_ = unary(ctx, g, shieldgrpc.Options{}, "", func() error { time.Sleep(10 * time.Second); cancel(); return nil })
		},
		"streams": func(ctx context.Context, g *shield.Guard) {
			_ = shieldgrpc.Stream(g, shieldgrpc.Options{})(nil, contextStream{ctx: ctx}, &grpc.StreamServerInfo{IsClientStream: true}, func(any, grpc.ServerStream) error {
				time.Sleep(10 * time.Second)
				return nil
			})
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Hour - shield.Now()) // synctest begins before the process
			g := shield.Must(shield.New(shield.Config{Concurrency: 10, PerClient: 1}, nil))
			call(t.Context(), g)
			err := unary(t.Context(), g, shieldgrpc.Options{}, "", func() error { return unary(t.Context(), g, shieldgrpc.Options{}, "", nil) })
			details := status.Convert(err).Details()
			if len(details) != 1 || details[0].(*errdetails.RetryInfo).RetryDelay.AsDuration() != time.Second {
				t.Errorf("%s: %v, %v; want told 1 s", name, err, details)
			}
		})
	}
}
