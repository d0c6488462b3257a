// Package realclients checks that programs which others have written come back
// when shield tells them to, and are then admitted: curl, go-retryablehttp,
// Kubernetes' client-go, grpc-go, and from npm got and ky.
//
// It has nothing but tests; README.md says how to run them.
package realclients

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-retryablehttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// A client makes one request to a base URL without a slash at its end, retries
// as it does by default or when its manual says so, and returns an error unless
// it got what the backend gives.
type client struct {
	name string
	grpc bool
	run  func(ctx context.Context, t *testing.T, base string) error
}

var clients = []client{
	{name: "curl", run: curl},
	{name: "go-retryablehttp", run: retryable},
	{name: "client-go", run: clientGo},
	{name: "grpc-go", run: grpcGo, grpc: true},
	{name: "got", run: script("got")},
	{name: "ky", run: script("ky")},
}

// curl retries only if told how often; on its own it waits 1 s, then 2 s.
func curl(ctx context.Context, t *testing.T, base string) error {
	program := find(t, "curl", "install curl")
	return prints(exec.CommandContext(ctx, program, "--disable", "--silent", "--show-error", "--fail", "--noproxy", "*", "--retry", "3", base+"/"), hello)
}

// retryable waits 1 s, then 2 s on its own.
func retryable(ctx context.Context, _ *testing.T, base string) error {
	c := retryablehttp.NewClient()
	c.Logger = nil
	defer c.HTTPClient.CloseIdleConnections()
	req, err := retryablehttp.NewRequestWithContext(ctx, "GET", base+"/", nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); resp.StatusCode != 200 || string(b) != hello {
		return fmt.Errorf("%s: %q, %v", resp.Status, b, err)
	}
	return nil
}

// clientGo gives up on its own: it retries only as Retry-After says.
func clientGo(ctx context.Context, _ *testing.T, base string) error {
	u, err := url.Parse(base)
	if err != nil {
		return err
	}
	c, err := rest.UnversionedRESTClientFor(&rest.Config{
		Host: u.Host,
		ContentConfig: rest.ContentConfig{
			GroupVersion:         &schema.GroupVersion{},
			NegotiatedSerializer: serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion(),
		},
	})
	if err != nil {
		return err
	}
	defer c.Client.CloseIdleConnections()
	b, err := c.Get().AbsPath(u.Path, "/api").DoRaw(ctx)
	if err == nil && string(b) != hello {
		err = fmt.Errorf("got %q", b)
	}
	return err
}

// grpcGo comes back when the pushback says so (gRPC proposal A6), and after 10 ms
// on its own.
func grpcGo(ctx context.Context, _ *testing.T, base string) error {
	const retries = `{"methodConfig": [{"name": [{}], "retryPolicy": {
		"maxAttempts": 3, "initialBackoff": "0.01s", "maxBackoff": "0.01s", "backoffMultiplier": 1,
		"retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"]}}]}`
	u, err := url.Parse(base)
	if err != nil {
		return err
	}
	c, err := grpc.NewClient("passthrough:///"+u.Host, grpc.WithDefaultServiceConfig(retries),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return err
	}
	defer c.Close()
	var resp healthpb.HealthCheckResponse
	// healthpb's own client knows no paths with a prefix.
	err = c.Invoke(ctx, u.Path+healthpb.Health_Check_FullMethodName, new(healthpb.HealthCheckRequest), &resp)
	if err == nil && resp.Status != healthpb.HealthCheckResponse_SERVING {
		err = fmt.Errorf("got %v", resp.Status)
	}
	return err
}

// script returns the client of a package from npm. On its own got waits 1 s and
// up to 100 ms, ky 0.3 s.
func script(name string) func(context.Context, *testing.T, string) error {
	return func(ctx context.Context, t *testing.T, base string) error {
		const remedy = "install Node.js 18 or newer, and run npm ci in loadtest/lab/realclients/npm"
		node := find(t, "node", remedy)
		if _, err := os.Stat(filepath.Join("npm", "node_modules", name)); err != nil {
			missing(t, name, remedy)
		}
		return prints(exec.CommandContext(ctx, node, filepath.Join("npm", name+".mjs"), base+"/"), "200 "+hello+"\n")
	}
}

func prints(cmd *exec.Cmd, want string) error {
	cmd.Env = append(os.Environ(), "NO_PROXY=*", "no_proxy=*")
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err == nil && string(out) == want {
		return nil
	}
	return fmt.Errorf("%s: %v; printed %q, want %q; complained: %s", cmd.Args[0], err, out, want, complaints.String())
}

func find(t *testing.T, program, remedy string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		missing(t, program, remedy)
	}
	return path
}

// missing ends a test that needs what is not there.
func missing(t *testing.T, what, remedy string) {
	t.Helper()
	if testing.Short() {
		t.Skipf("no %s here: %s", what, remedy)
	}
	t.Fatalf("no %s here: %s; or leave this out with go test -short", what, remedy)
}
