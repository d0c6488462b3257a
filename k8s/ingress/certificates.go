package ingress

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"math/big"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddytls"
	"github.com/caddyserver/certmagic"

	"github.com/herdshield/shield/k8s/model"
)

func init() {
	caddy.RegisterModule(new(CertificateManager))
	caddy.RegisterModule(new(CertificatePermission))
	caddy.RegisterModule(new(ServerName))
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
// use it: CertMagic, through which they all go, takes none that is for no name.
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

// CertificateManager answers every TLS handshake with a certificate of the cluster's
// Secrets, chosen by server name, or with the default certificate. Since it always
// has one, Caddy never falls through to obtaining one by itself; where the cluster
// has changed, the next handshake sees it.
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
func (m *CertificateManager) Provision(ctx caddy.Context) error {
	if m.find != nil {
		return nil // a test's
	}
	app, err := ctx.App("shield_ingress")
	if err != nil {
		return fmt.Errorf("getting the app shield_ingress: %w", err)
	}
	m.find = func(serverName string) *tls.Certificate {
		if s := app.(*App).Snapshot(); s != nil {
			return s.Certificate(serverName)
		}
		return selfSigned.get(time.Now())
	}
	return nil
}

// GetCertificate implements certmagic.Manager. It never fails and never returns nil.
func (m *CertificateManager) GetCertificate(ctx context.Context, hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if name, ok := ctx.Value(serverNameKey{}).(string); ok {
		return m.find(name), nil
	}
	return m.find(hello.ServerName), nil
}

// CertificatePermission lets Caddy obtain or load no certificate for any name. It
// is the second barrier, should the CertificateManager not answer.
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

// ServerName has every handshake reach the CertificateManager. CertMagic, which is
// asked first, aborts those whose server name is not a proper host name, like
// a_b.example.com, though a wildcard certificate covers it; and those that offer
// nothing but the protocol of the TLS-ALPN challenge, with an error in the log for
// each, though no such challenge can be under way here.
type ServerName struct{}

type serverNameKey struct{} // of the context: the name that the client sent

// CaddyModule returns the Caddy module information.
func (*ServerName) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "tls.context.shield_ingress",
		New: func() caddy.Module { return new(ServerName) },
	}
}

// HandshakeContext implements caddytls.HandshakeContext. hello is CertMagic's next:
// it gets a name that it can read. That name has to differ where the client's does,
// because handshakes of one name that come at once share an answer.
func (*ServerName) HandshakeContext(hello *tls.ClientHelloInfo) (context.Context, error) {
	hello.SupportedProtos = nil // has been negotiated
	if plain(hello.ServerName) {
		return hello.Context(), nil
	}
	ctx := context.WithValue(hello.Context(), serverNameKey{}, hello.ServerName)
	hash := fnv.New128a()
	_, _ = hash.Write([]byte(hello.ServerName)) // cannot fail
	hello.ServerName = "x" + hex.EncodeToString(hash.Sum(nil)) + ".invalid"
	return ctx, nil
}

// plain says that name consists of labels of letters and digits, and single hyphens
// between them: what every reader of host names takes as it is.
func plain(name string) bool {
	inside := false // the byte before is a letter or digit
	for i := 0; i < len(name); i++ {
		switch b := name[i]; {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9':
			inside = true
		case (b == '-' || b == '.') && inside:
			inside = false
		default:
			return false
		}
	}
	return inside || name == ""
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*CertificateManager)(nil)
	_ certmagic.Manager           = (*CertificateManager)(nil)
	_ caddytls.OnDemandPermission = (*CertificatePermission)(nil)
	_ caddytls.HandshakeContext   = (*ServerName)(nil)
)
