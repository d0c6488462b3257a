package testserver

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// StartCluster starts a Cluster of three masters, and so many replicas of each.
func StartCluster(t testing.TB, program string, replicas int) (servers []*Server) {
	t.Helper()
	for range 3 * (1 + replicas) {
		servers = append(servers, Start(t, program,
			"--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0"))
	}
	cli, create := strings.Replace(program, "-server", "-cli", 1), append([]string{"--cluster", "create"}, Addresses(servers)...)
	create = append(create, "--cluster-replicas", fmt.Sprint(replicas), "--cluster-yes")
	if out, err := exec.Command(cli, create...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cli, err, out)
	}
	for _, s := range servers {
		s.until("a node that knows all others, and is in step", func() bool {
			info := s.Do("CLUSTER", "INFO") + s.Do("INFO", "replication")
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r", len(servers))) &&
				!strings.Contains(info, "master_link_status:down") && strings.Count(s.Do("CLUSTER", "NODES"), "slave ") == 3*replicas
		})
	}
	return servers
}

// Addresses returns those of some servers.
func Addresses(servers []*Server) (addresses []string) {
	for _, s := range servers {
		addresses = append(addresses, s.Addr)
	}
	return addresses
}

// Master is the name of the master that a Sentinel of StartSentinel watches.
const Master = "main"

// StartSentinel starts a master, its replica, and a Sentinel that makes the replica the
// master half a second after the master has gone.
func StartSentinel(t testing.TB, program string) (sentinel, master, replica *Server) {
	t.Helper()
	master = Start(t, program, "--repl-diskless-sync-delay", "0")
	host, port, _ := net.SplitHostPort(master.Addr)
	replica = Start(t, program, "--replicaof", host+" "+port)
	replica.until("a replica in step", func() bool { return strings.Contains(replica.Do("INFO", "replication"), "master_link_status:up") })

	sentinel = AnotherSentinel(t, program, master)
	sentinel.until("a Sentinel that knows the replica", func() bool {
		return strings.Contains(sentinel.Do("SENTINEL", "REPLICAS", Master), "master-link-status\nok") // it has asked the replica itself
	})
	return sentinel, master, replica
}

// AnotherSentinel starts a further Sentinel that watches a master.
func AnotherSentinel(t testing.TB, program string, master *Server) *Server {
	t.Helper()
	host, port, _ := net.SplitHostPort(master.Addr)
	file := filepath.Join(t.TempDir(), "sentinel.conf")
	config := fmt.Sprintf("sentinel monitor %[1]s %[2]s %[3]s 1\nsentinel down-after-milliseconds %[1]s 500\nsentinel failover-timeout %[1]s 3000\n", Master, host, port)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	port = freePort(t)
	s := &Server{t: t, program: program, Addr: net.JoinHostPort("127.0.0.1", port)}
	s.start(file, "--sentinel", "--port", port, "--bind", "127.0.0.1")
	// A Sentinel that had no processor for 2 s mistrusts its clock, and fails nothing over for
	// 30 s. After that it never does: the replica has been without its master for too long.
	s.Do("SENTINEL", "DEBUG", "TILT-PERIOD", "1000")
	return s
}

// StartTLS starts a server that talks TLS only, with a certificate of its own making that the clients of its
// TLS trust, and may use themselves. caFile is a file with the certificate; its key is in key.pem beside it.
func StartTLS(t testing.TB, program string) (s *Server, caFile string) {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(nil, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certificate, key := filepath.Join(dir, "certificate.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{certificate: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	port := freePort(t)
	s = &Server{t: t, program: program, Addr: net.JoinHostPort("127.0.0.1", port), TLS: &tls.Config{RootCAs: pool, ServerName: "127.0.0.1"}}
	s.start(
		"--port", "0", "--tls-port", port, "--bind", "127.0.0.1", "--dir", t.TempDir(), "--save", "", "--appendonly", "no",
		"--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate, "--tls-auth-clients", "no")
	return s, certificate
}
