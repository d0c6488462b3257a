package main

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/herdshield/shield/loadtest/lab/process"
)

// A bench is what measurements have in common.
type bench struct {
	programs   programs
	warm, time time.Duration
	backend    string // its address
	folder     string // for certificate and files
	tls        *tls.Config
}

// newBench starts a backend in this process. stop ends it.
func newBench(p programs, warm, time time.Duration) (b *bench, stop func(), err error) {
	b = &bench{programs: p, warm: warm, time: time}
	if b.folder, err = os.MkdirTemp("", "frontdoor"); err != nil {
		return nil, nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		b.tls, err = certify(b.folder)
	}
	if err != nil {
		os.RemoveAll(b.folder)
		return nil, nil, err
	}
	b.backend = l.Addr().String()
	go serve(l)
	return b, func() { l.Close(); os.RemoveAll(b.folder) }, nil
}

// serve is the least backend: it answers each request at once. The front end sends one
// at a time.
func serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			for b := make([]byte, 4096); ; {
				for n := 0; n < 4 || string(b[n-4:n]) != "\r\n\r\n"; {
					more, err := conn.Read(b[n:])
					if err != nil {
						return // also if the request is too long
					}
					n += more
				}
				if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nok\n"); err != nil {
					return
				}
			}
		}()
	}
}

// certify makes a certificate in the folder, and returns what trusts it.
func certify(folder string) (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"shop.example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	private := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(cert)
	return &tls.Config{ServerName: "shop.example.com", RootCAs: trusted, MinVersion: tls.VersionTLS13}, errors.Join(
		os.WriteFile(filepath.Join(folder, "cert.pem"), cert, 0o644),
		os.WriteFile(filepath.Join(folder, "key.pem"), private, 0o600),
		os.WriteFile(filepath.Join(folder, "both.pem"), slices.Concat(cert, private), 0o600))
}

// A figure is what one front end has done in one round.
type figure struct {
	answered int           // requests
	took     time.Duration // all of it
	used     time.Duration // processor time of the front end
	p50, p99 time.Duration // waits of honest clients
}

func (f figure) perRequest() float64 { return float64(f.used) / float64(f.answered) }
func (f figure) perSecond() float64  { return float64(f.answered) / f.took.Seconds() }

// measure runs a front end of a row in a process of its own, warms it up, and measures.
func (b *bench) measure(ctx context.Context, r row, f front) (result figure, err error) {
	address, err := process.FreeAddress(ctx)
	if err != nil {
		return result, err
	}
	folder, err := os.MkdirTemp(b.folder, "")
	if err != nil {
		return result, err
	}
	s := setting{row: r, front: f, Address: address, Backend: b.backend, Keys: b.folder, Folder: folder}
	pid, stop, err := s.start(ctx, b.programs[f.program])
	if err != nil {
		return result, err
	}
	defer stop()
	t := &target{address: address, want: r.want}
	if r.tls {
		t.tls = b.tls
	}
	if r.status != 0 && (f.program == "shield" || f.program == "baseline") {
		t.want = r.status
	}
	if result, err = b.run(ctx, r, t, pid); err != nil {
		err = fmt.Errorf("%s, %s: %w", r.name, f.name, err)
	}
	return result, err
}

// takes is how long a row is measured. Few clients are honest, and a p99 of 200 is luck.
func (r row) takes(time time.Duration) time.Duration {
	if r.live {
		return 3 * time
	}
	return time
}

const (
	// patience is how long a busy machine may take for a response.
	patience = 10 * time.Second

	// newcomer is how many requests of a client are admitted before it is over its limit. nginx
	// takes one more than the burst.
	newcomer = 2
)

// run sends the load, and takes the time of the process from the end of the warm-up.
func (b *bench) run(ctx context.Context, r row, t *target, pid int) (f figure, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c, done := new(count), make(chan error, 1)
	go func() { done <- r.load(ctx, t, c) }()
	pause := func(d time.Duration) error { // and longer, until there are answers, and waits of honest clients where there are any
		enough := func(from uint64) bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.answered.Load() > from && (!r.live || len(c.waits) > 0)
		}
		for from, start := c.answered.Load(), time.Now(); ; {
			select {
			case err := <-done:
				return cmp.Or(err, ctx.Err())
			case <-time.After(d):
			}
			if enough(from) || time.Since(start) > patience {
				return nil
			}
		}
	}
	if err := pause(b.warm); err != nil {
		return f, err
	}
	c.mu.Lock()
	c.waits = nil
	c.mu.Unlock()
	start, answered := time.Now(), c.answered.Load()
	used, err := processorTime(pid)
	if err != nil {
		return f, err
	}
	if err := pause(r.takes(b.time)); err != nil {
		return f, err
	}
	f = figure{answered: int(c.answered.Load() - answered), took: time.Since(start)}
	now, err := processorTime(pid)
	if err != nil {
		return f, err
	}
	f.used = now - used
	cancel()
	if err := <-done; err != nil {
		return f, err
	}
	if wrong := c.wrong.Load(); wrong > newcomer || f.answered == 0 {
		return f, fmt.Errorf("%d answers with status %d, and %d with another one such as %d; there must be none of those", f.answered, t.want, wrong, c.unlike)
	}
	slices.Sort(c.waits)
	f.p50, f.p99 = quantile(c.waits, 0.5), quantile(c.waits, 0.99)
	return f, nil
}

// quantile returns that of a sorted list, or 0.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
