package ingress

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddytls"
	"github.com/caddyserver/certmagic"

	"github.com/herdshield/shield/k8s/model"
)

func init() {
	caddy.RegisterModule(new(CertificateManager))
	caddy.RegisterModule(new(CertificatePermission))
	caddy.RegisterModule(new(CertificateListener))
}

// certificates finds the certificate for a server name. It is immutable and safe for
// concurrent use.
type certificates struct {
	exact    map[string][]*tls.Certificate // by host
	wildcard map[string][]*tls.Certificate // by what follows the star: ".example.com"
	fallback *tls.Certificate              // nil: selfSigned
}

// newCertificates makes an index of all. Of several for one host, the first that has not
// expired counts. def is for all other names; nil means a self-signed one. Certificates
// that no handshake could use are left out.
func newCertificates(all []model.Certificate, def *tls.Certificate) *certificates {
	c := &certificates{
		exact:    make(map[string][]*tls.Certificate, len(all)),
		wildcard: make(map[string][]*tls.Certificate),
		fallback: presentable(def),
	}
	for _, one := range all {
		certificate := presentable(one.Certificate)
		if certificate == nil {
			continue
		}
		for _, host := range one.Hosts {
			host = canonical(host)
			if after, ok := strings.CutPrefix(host, "*"); ok {
				c.wildcard[after] = append(c.wildcard[after], certificate)
				continue
			}
			c.exact[host] = append(c.exact[host], certificate)
		}
	}
	return c
}

// find returns the certificate for serverName now; a client without a server name has "". It
// is that of the exact host, else of the wildcard one label up, else the default one. It has
// not expired, and is never nil.
func (c *certificates) find(serverName string) *tls.Certificate {
	return c.at(serverName, time.Now())
}

// at is find at a given time. It does not allocate, unless the name has upper-case letters.
func (c *certificates) at(serverName string, now time.Time) *tls.Certificate {
	name := canonical(serverName)
	for _, certificate := range c.exact[name] {
		if now.Before(certificate.Leaf.NotAfter) {
			return certificate
		}
	}
	if dot := strings.IndexByte(name, '.'); dot > 0 {
		for _, certificate := range c.wildcard[name[dot:]] {
			if now.Before(certificate.Leaf.NotAfter) {
				return certificate
			}
		}
	}
	if c.fallback != nil && now.Before(c.fallback.Leaf.NotAfter) {
		return c.fallback
	}
	return selfSigned.get(now)
}

// canonical returns a host name in the form in which names are compared.
func canonical(host string) string {
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// presentable returns certificate with its leaf parsed, or nil if no handshake can use it, or
// if it has no names, which CertMagic rejects.
func presentable(certificate *tls.Certificate) *tls.Certificate {
	if certificate == nil || len(certificate.Certificate) == 0 || certificate.PrivateKey == nil {
		return nil
	}
	if certificate.Leaf == nil {
		leaf, err := x509.ParseCertificate(certificate.Certificate[0])
		if err != nil {
			return nil
		}
		parsed := *certificate // a copy: the Model is immutable
		parsed.Leaf = leaf
		certificate = &parsed
	}
	leaf := certificate.Leaf
	if leaf.Subject.CommonName == "" && len(leaf.DNSNames)+len(leaf.IPAddresses)+len(leaf.EmailAddresses)+len(leaf.URIs) == 0 {
		return nil
	}
	return certificate
}

const (
	selfSignedFor    = 365 * 24 * time.Hour
	selfSignedRenews = selfSignedFor / 3 // validity that is left when the next one is made
)

// selfSigned is the certificate for names without one, as in other ingress controllers. No
// client should trust it.
var selfSigned selfSignedCertificate

// A selfSignedCertificate is made on first use, and again when a third of its validity is
// left. Its zero value is ready, and safe for concurrent use.
type selfSignedCertificate struct {
	current atomic.Pointer[tls.Certificate]
	making  sync.Mutex
}

// get returns a certificate that is valid at now.
func (s *selfSignedCertificate) get(now time.Time) *tls.Certificate {
	if c := s.current.Load(); c != nil && now.Before(c.Leaf.NotAfter.Add(-selfSignedRenews)) {
		return c
	}
	s.making.Lock()
	defer s.making.Unlock()
	if c := s.current.Load(); c != nil && now.Before(c.Leaf.NotAfter.Add(-selfSignedRenews)) {
		return c // another goroutine has just made it
	}
	c, err := selfSign(now)
	if err != nil {
		panic("ingress: signing a certificate of a fixed form with a fresh key: " + err.Error())
	}
	s.current.Store(c)
	return c
}

// selfSign makes a certificate that is signed with its own key.
func selfSign(now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{Organization: []string{"herdshield"}, CommonName: "Shield Ingress Controller Fake Certificate"},
		DNSNames:              []string{"ingress.local"},
		NotBefore:             now.Add(-time.Hour), // clocks differ
		NotAfter:              now.Add(selfSignedFor),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// finder returns a function that finds the certificate for a handshake, by server name, in
// the current Snapshot. It never returns nil.
func finder(ctx caddy.Context) (func(serverName string) *tls.Certificate, error) {
	app, err := ctx.App("shield_ingress")
	if err != nil {
		return nil, fmt.Errorf("getting the app shield_ingress: %w", err)
	}
	return func(serverName string) *tls.Certificate {
		if s := app.(*App).Snapshot(); s != nil {
			return s.Certificate(serverName)
		}
		return selfSigned.get(time.Now())
	}, nil
}

// CertificateListener gives the TLS handshakes of a server the certificates of the cluster's
// Secrets, by server name, or the default certificate. A change in the cluster applies
// to the next handshake. It does not change the listener.
//
// It bypasses CertMagic, which asks the CertificateManager. CertMagic aborts handshakes whose
// server name is not a proper host name, such as a_b.example.com, even if a wildcard
// certificate covers it. It also logs an error for handshakes that offer only the protocol
// of the TLS-ALPN challenge, which never runs here.
//
// It needs the app `shield_ingress`.
type CertificateListener struct {
	server *caddyhttp.Server
	find   func(serverName string) *tls.Certificate
}

// CaddyModule returns the Caddy module information.
func (*CertificateListener) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "caddy.listeners.shield_ingress",
		New: func() caddy.Module { return new(CertificateListener) },
	}
}

// Provision implements caddy.Provisioner.
func (l *CertificateListener) Provision(ctx caddy.Context) (err error) {
	l.server, _ = ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if l.server == nil {
		return errors.New("the listener wrapper shield_ingress works with HTTP servers only")
	}
	l.find, err = finder(ctx)
	return err
}

// WrapListener implements caddy.ListenerWrapper. Caddy calls it when all connection policies
// have been provisioned, and before any is used.
func (l *CertificateListener) WrapListener(listener net.Listener) net.Listener {
	for _, policy := range l.server.TLSConnPolicies {
		c := policy.TLSConfig
		c.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			return l.find(hello.ServerName), nil
		}
		c.NextProtos = policy.ALPN // without Caddy's addition for the TLS-ALPN challenge
	}
	return listener
}

// CertificateManager gives CertMagic the same certificates, for configs without a
// CertificateListener. It always has one, so that CertMagic never tries to obtain one.
//
// It needs the app `shield_ingress`.
type CertificateManager struct {
	find func(serverName string) *tls.Certificate
}

// CaddyModule returns the Caddy module information.
func (*CertificateManager) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "tls.get_certificate.shield_ingress",
		New: func() caddy.Module { return new(CertificateManager) },
	}
}

// Provision implements caddy.Provisioner.
func (m *CertificateManager) Provision(ctx caddy.Context) (err error) {
	m.find, err = finder(ctx)
	return err
}

// GetCertificate implements certmagic.Manager. It never fails and never returns nil.
func (m *CertificateManager) GetCertificate(_ context.Context, hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return m.find(hello.ServerName), nil
}

// CertificatePermission forbids Caddy to obtain or load certificates. It is the last
// barrier, if neither of the others has a response.
type CertificatePermission struct{}

// CaddyModule returns the Caddy module information.
func (*CertificatePermission) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "tls.permission.shield_ingress",
		New: func() caddy.Module { return new(CertificatePermission) },
	}
}

// CertificateAllowed implements caddytls.OnDemandPermission.
func (*CertificatePermission) CertificateAllowed(_ context.Context, name string) error {
	return fmt.Errorf("%q: certificates come from Secrets only: %w", name, caddytls.ErrPermissionDenied)
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*CertificateManager)(nil)
	_ certmagic.Manager           = (*CertificateManager)(nil)
	_ caddytls.OnDemandPermission = (*CertificatePermission)(nil)
	_ caddy.Provisioner           = (*CertificateListener)(nil)
	_ caddy.ListenerWrapper       = (*CertificateListener)(nil)
)
