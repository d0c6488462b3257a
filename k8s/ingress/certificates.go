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

// certificates finds the certificate for a server name. It is not changed once
// made, so it is safe for concurrent use.
type certificates struct {
	exact    map[string][]*tls.Certificate // by host
	wildcard map[string][]*tls.Certificate // by what follows the star: ".example.com"
	fallback *tls.Certificate              // nil: selfSigned's
}

// newCertificates makes an index of all. Where several are for one host, the first
// one counts, unless it has expired. def is for all other names; nil means the one
// that shield signs by itself. Certificates that no handshake could use are left out.
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

// find returns the certificate to present now to a client that asks for serverName,
// "" if it names none: of the exact host, else of the wildcard one label up, else the
// default one; never one that has expired, and never nil.
func (c *certificates) find(serverName string) *tls.Certificate {
	return c.at(serverName, time.Now())
}

// at is find at this time. It does not allocate, unless the name has upper-case
// letters.
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

// presentable returns certificate with its leaf parsed, or nil if no handshake can
// use it; neither does CertMagic take one that is for no name.
func presentable(certificate *tls.Certificate) *tls.Certificate {
	if certificate == nil || len(certificate.Certificate) == 0 || certificate.PrivateKey == nil {
		return nil
	}
	if certificate.Leaf == nil {
		leaf, err := x509.ParseCertificate(certificate.Certificate[0])
		if err != nil {
			return nil
		}
		parsed := *certificate // not ours to change
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
	selfSignedRenews = selfSignedFor / 3 // what it has left when the next one is made
)

// selfSigned is the certificate for whoever asks for a name that there is none for,
// as other ingress controllers have one. No client is meant to trust it.
var selfSigned ownCertificate

// An ownCertificate is made when it is first asked for, and again when a third of
// its time is left. Its zero value is ready, and safe for concurrent use.
type ownCertificate struct {
	current atomic.Pointer[tls.Certificate]
	making  sync.Mutex
}

// get returns a certificate that is valid at now.
func (o *ownCertificate) get(now time.Time) *tls.Certificate {
	if c := o.current.Load(); c != nil && now.Before(c.Leaf.NotAfter.Add(-selfSignedRenews)) {
		return c
	}
	o.making.Lock()
	defer o.making.Unlock()
	if c := o.current.Load(); c != nil && now.Before(c.Leaf.NotAfter.Add(-selfSignedRenews)) {
		return c // somebody else has just made it
	}
	c, err := signOwn(now)
	if err != nil {
		panic("ingress: signing a certificate of a fixed form with a fresh key: " + err.Error())
	}
	o.current.Store(c)
	return c
}

// signOwn makes a certificate that its own key signs.
func signOwn(now time.Time) (*tls.Certificate, error) {
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

// finder returns what finds certificates for handshakes, by server name, in whatever
// the cluster has at the time: never nil.
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

// CertificateListener has the TLS handshakes of a server get their certificates from
// the cluster's Secrets, by server name, or the default certificate. Where the
// cluster has changed, the next handshake sees it. It leaves the listener as it is.
//
// It is there beside the CertificateManager, because CertMagic, which asks that one,
// stands in the way: it aborts handshakes whose server name is not a proper host
// name, like a_b.example.com, though a wildcard certificate covers it; and for those
// that offer nothing but the protocol of the TLS-ALPN challenge, which can never be
// under way here, it writes an error into the log.
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
		return errors.New("the listener wrapper shield_ingress is for HTTP servers only")
	}
	if l.find == nil { // else a test's
		l.find, err = finder(ctx)
	}
	return err
}

// WrapListener implements caddy.ListenerWrapper. It is called when all connection
// policies have been provisioned, and none is in use yet.
func (l *CertificateListener) WrapListener(listener net.Listener) net.Listener {
	for _, policy := range l.server.TLSConnPolicies {
		c := policy.TLSConfig
		c.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			return l.find(hello.ServerName), nil
		}
		c.NextProtos = policy.ALPN // without what Caddy has added for the TLS-ALPN challenge
	}
	return listener
}

// CertificateManager gives CertMagic the same certificates, for configs without a
// CertificateListener. Since it always has one, CertMagic never falls through to
// obtaining one by itself.
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
	if m.find == nil { // else a test's
		m.find, err = finder(ctx)
	}
	return err
}

// GetCertificate implements certmagic.Manager. It never fails and never returns nil.
func (m *CertificateManager) GetCertificate(_ context.Context, hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return m.find(hello.ServerName), nil
}

// CertificatePermission lets Caddy obtain or load no certificate for any name. It
// is the last barrier, should neither of the others have an answer.
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
