// Command testbed runs a Kubernetes control plane on loopback until it is
// interrupted, for a look at it by hand:
//
//	go run ./testbed &
//	export KUBECONFIG=~/.cache/shield-k8s/control-plane/kubeconfig
//	kubectl get namespaces
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/herdshield/shield/k8s/testbed/controlplane"
)

func main() {
	log.SetFlags(0)
	cache, _ := os.UserCacheDir()
	dir := flag.String("dir", filepath.Join(cache, "shield-k8s", "control-plane"), "`folder` of all files; an existing database is reused")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *dir); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	plane, err := controlplane.Start(ctx, dir)
	if err != nil {
		return err
	}
	defer plane.Stop()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, plane.Kubeconfig(plane.URL, controlplane.AdminToken), 0o600); err != nil {
		return err
	}
	fmt.Printf("export KUBECONFIG=%s\n", kubeconfig)
	<-ctx.Done()
	return nil
}
