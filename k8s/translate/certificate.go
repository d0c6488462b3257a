package translate

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/herdshield/shield/k8s/model"
)

// secretCertificate is the certificate in a Secret, or what is wrong with it.
type secretCertificate struct {
	version string // the Secret's resourceVersion
	cert    *tls.Certificate
	names   []string        // its hosts, as in Rule.Host
	named   map[string]bool // the same hosts
	err     error
}

// certificate returns a Secret's certificate, or why it is not used: as a Problem's reason, and in words.
func (r *run) certificate(k key) (c *secretCertificate, reason, why string) {
	s := r.secrets[k]
	if s == nil {
		return nil, ReasonSecretNotFound, fmt.Sprintf("Secret %s of type %s does not exist", k, corev1.SecretTypeTLS)
	}
	id := identityOf(s)
	c, done := r.next.certificates[id]
	if !done {
		c = r.last.certificates[id]
		if c == nil || c.version != s.ResourceVersion || s.ResourceVersion == "" {
			c = &secretCertificate{version: s.ResourceVersion}
			if c.cert, c.err = parseSecret(s); c.err == nil {
				c.readNames()
			}
		}
		r.next.certificates[id] = c
	}
	if c.err != nil {
		return nil, ReasonSecretInvalid, fmt.Sprintf("Secret %s: %v", k, c.err)
	}
	until := c.cert.Leaf.NotAfter
	if !r.now.Before(until) {
		return c, ReasonCertificateExpired, fmt.Sprintf("the certificate in Secret %s expired on %s", k, until.UTC().Format(time.RFC3339))
	}
	if r.expires.IsZero() || until.Before(r.expires) {
		r.expires = until
	}
	return c, "", ""
}

// readNames reads the hosts of a certificate. For one without subject alternative names it
// is the common name, as with other ingress controllers.
func (c *secretCertificate) readNames() {
	leaf := c.cert.Leaf
	names := leaf.DNSNames
	if len(names) == 0 && len(leaf.IPAddresses) == 0 {
		names = []string{leaf.Subject.CommonName}
	}
	c.named = make(map[string]bool, len(names))
	for _, name := range names {
		if name = readHost(name); name != "" && !c.named[name] {
			c.named[name] = true
			c.names = append(c.names, name)
		}
	}
}

// covers reports whether a certificate is for a host, which may be a wildcard.
func (c *secretCertificate) covers(host string) bool {
	if c.named[host] {
		return true
	}
	_, parent, _ := strings.Cut(host, ".")
	return parent != "" && c.named["*."+parent]
}

func parseSecret(s *corev1.Secret) (*tls.Certificate, error) {
	if s.Type != corev1.SecretTypeTLS {
		return nil, fmt.Errorf("type is %q; use %q", s.Type, corev1.SecretTypeTLS)
	}
	for _, name := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		if len(s.Data[name]) == 0 {
			return nil, fmt.Errorf("%s is empty; use PEM", name)
		}
	}
	c, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", corev1.TLSCertKey, corev1.TLSPrivateKeyKey, err)
	}
	if c.Leaf == nil { // only with GODEBUG=x509keypairleaf=0
		if c.Leaf, err = x509.ParseCertificate(c.Certificate[0]); err != nil {
			return nil, err
		}
	}
	return &c, nil
}

// certificates returns the certificates of all hosts, and sets the TLSHosts of Ingresses.
// Ingresses must come oldest first.
func (r *run) certificates(ours []*ingress) []model.Certificate {
	claims := make(map[string]key, len(ours)) // hosts, and the Secrets whose certificates are used
	for _, in := range ours {
		for i := range in.tls {
			r.claimTLS(in, &in.tls[i], claims)
		}
		slices.Sort(in.origin.TLSHosts)
		in.origin.TLSHosts = slices.Compact(in.origin.TLSHosts)
	}

	bySecret := make(map[key]*model.Certificate)
	for _, host := range sortedKeys(claims) {
		k := claims[host]
		c := bySecret[k]
		if c == nil {
			secret, _, _ := r.certificate(k)
			c = &model.Certificate{Certificate: secret.cert}
			bySecret[k] = c
		}
		c.Hosts = append(c.Hosts, host)
	}
	list := make([]model.Certificate, 0, len(bySecret))
	for _, c := range bySecret {
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b model.Certificate) int { return strings.Compare(a.Hosts[0], b.Hosts[0]) })
	return list
}

func (r *run) claimTLS(in *ingress, entry *networkingv1.IngressTLS, claims map[string]key) {
	ref, k := in.origin.Ref, key{in.Namespace, entry.SecretName}
	var cert *secretCertificate
	usable := false
	if entry.SecretName != "" {
		var reason, why string
		cert, reason, why = r.certificate(k)
		usable = reason == ""
		if !usable {
			r.problems.add(ref, reason, "%s; the default certificate is used", why)
		}
	}

	hosts := entry.Hosts
	if len(hosts) == 0 {
		hosts = r.impliedBy(cert, in)
	}
	for _, host := range hosts {
		host = readHost(host)
		if host == "" {
			continue
		}
		if owner, as := r.owner(host); owner != nil && owner.Namespace != in.Namespace {
			r.problems.add(ref, ReasonHostTaken, "%s; this spec.tls is ignored for it", ownerText(host, owner, as))
			continue
		}
		in.origin.TLSHosts = append(in.origin.TLSHosts, host)
		if !usable {
			continue
		}
		switch first, taken := claims[host]; {
		case !taken:
			claims[host] = k
			if !cert.covers(host) {
				r.problems.add(ref, ReasonCertificateMismatch, "the certificate in Secret %s is not for host %s", k, host)
			}
		case first != k:
			r.problems.add(ref, ReasonHostTaken, "host %s already has the certificate in Secret %s; that in %s is ignored", host, first, k)
		}
	}
}

// impliedBy returns the hosts of an Ingress's rules that a certificate covers. If it has no rules, or one
// without host, they are all names of the certificate, and the Ingress names them, unless another has.
func (r *run) impliedBy(cert *secretCertificate, in *ingress) []string {
	if cert == nil {
		return nil
	}
	all := len(in.hosts) == 0 || slices.Contains(in.hosts, "")
	candidates := in.hosts
	if all {
		candidates = cert.names
	}
	if left := maxTLSHosts - in.looked; len(candidates) > left {
		candidates = candidates[:left]
		r.problems.add(in.origin.Ref, ReasonTooLarge,
			"the entries in spec.tls without hosts imply more than %d hosts; the rest is ignored", maxTLSHosts)
	}
	in.looked += len(candidates)
	var hosts []string
	for _, host := range candidates {
		if all {
			r.implied.add(host, in)
		}
		if all || cert.covers(host) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// defaultCertificate returns that of Options, or nil.
func (r *run) defaultCertificate() *tls.Certificate {
	if r.opts.DefaultCertificate == "" {
		return nil
	}
	k := splitKey(r.opts.DefaultCertificate)
	cert, reason, why := r.certificate(k)
	if reason == "" {
		return cert.cert
	}
	ref := model.Ref{Kind: "Secret", Namespace: k.namespace, Name: k.name}
	if s := r.secrets[k]; s != nil {
		ref = refTo("Secret", s)
	}
	r.problems.add(ref, reason, "%s; a self-signed default certificate is used instead", why)
	return nil
}
