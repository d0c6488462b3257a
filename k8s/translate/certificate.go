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

// secretCertificate is what is in a Secret, or what is wrong with it.
type secretCertificate struct {
	version string // the Secret's resourceVersion
	cert    *tls.Certificate
	err     error
}

// certificate returns a Secret's certificate, or why there is none: in words, and as
// a Problem's reason.
func (r *run) certificate(k key) (cert *tls.Certificate, reason, why string) {
	s := r.secrets[k]
	if s == nil {
		return nil, ReasonSecretNotFound, fmt.Sprintf("there is no Secret %s of type %s", k, corev1.SecretTypeTLS)
	}
	id := identityOf(s)
	c, done := r.next.certificates[id]
	if !done {
		c = r.last.certificates[id]
		if c.version != s.ResourceVersion || s.ResourceVersion == "" {
			c = secretCertificate{version: s.ResourceVersion}
			c.cert, c.err = parseSecret(s)
		}
		r.next.certificates[id] = c
	}
	if c.err != nil {
		return nil, ReasonSecretInvalid, fmt.Sprintf("Secret %s: %v", k, c.err)
	}
	until := c.cert.Leaf.NotAfter
	if !r.now.Before(until) {
		return c.cert, ReasonCertificateExpired, fmt.Sprintf("the certificate in Secret %s has expired on %s", k, until.UTC().Format(time.RFC3339))
	}
	if r.expires.IsZero() || until.Before(r.expires) {
		r.expires = until
	}
	return c.cert, "", ""
}

func parseSecret(s *corev1.Secret) (*tls.Certificate, error) {
	if s.Type != corev1.SecretTypeTLS {
		return nil, fmt.Errorf("type is %q; want %q", s.Type, corev1.SecretTypeTLS)
	}
	for _, name := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		if len(s.Data[name]) == 0 {
			return nil, fmt.Errorf("%s is empty; want PEM", name)
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

// A tlsClaim is the first that has named a host in spec.tls.
type tlsClaim struct {
	by     *ingress
	secret key // whose certificate is used; zero while there is none
}

// certificates gives hosts the certificates that are asked for, and Ingresses their
// TLSHosts. Ingresses must come oldest first.
func (r *run) certificates(ours []*ingress) []model.Certificate {
	claims := make(map[string]*tlsClaim)
	for _, in := range ours {
		for i := range in.Spec.TLS {
			r.claimTLS(in, &in.Spec.TLS[i], claims)
		}
		slices.Sort(in.origin.TLSHosts)
	}

	bySecret := make(map[key]*model.Certificate)
	for _, host := range sortedKeys(claims) {
		k := claims[host].secret
		if k == (key{}) {
			continue
		}
		c := bySecret[k]
		if c == nil {
			c = new(model.Certificate)
			c.Certificate, _, _ = r.certificate(k)
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

func (r *run) claimTLS(in *ingress, entry *networkingv1.IngressTLS, claims map[string]*tlsClaim) {
	ref, k := in.origin.Ref, key{in.Namespace, entry.SecretName}
	var cert *tls.Certificate
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
		hosts = namedBy(cert, in)
	}
	for _, host := range hosts {
		host = readHost(host)
		if host == "" {
			continue
		}
		first := claims[host]
		if first == nil {
			first = &tlsClaim{by: in}
			claims[host] = first
		}
		if first.by.Namespace != in.Namespace {
			r.problems.add(ref, ReasonHostTaken,
				"host %s in spec.tls belongs to namespace %s, whose Ingress %s is older; this claim is refused", host, first.by.Namespace, first.by.origin)
			continue
		}
		if !slices.Contains(in.origin.TLSHosts, host) {
			in.origin.TLSHosts = append(in.origin.TLSHosts, host)
		}
		switch {
		case !usable:
		case first.secret == (key{}):
			first.secret = k
			if !covers(cert.Leaf, host) {
				r.problems.add(ref, ReasonCertificateMismatch, "the certificate in Secret %s is not for host %s", k, host)
			}
		case first.secret != k:
			r.problems.add(ref, ReasonHostTaken, "host %s has the certificate in Secret %s, which was named first; that in %s is not used", host, first.secret, k)
		}
	}
}

// namedBy returns the hosts of an Ingress's rules that a certificate is for. If there
// are no rules, or one without host, they are all that the certificate is for.
func namedBy(cert *tls.Certificate, in *ingress) []string {
	if cert == nil {
		return nil
	}
	if len(in.hosts) == 0 || slices.Contains(in.hosts, "") {
		return namesIn(cert.Leaf)
	}
	var hosts []string
	for _, h := range in.hosts {
		if covers(cert.Leaf, h) {
			hosts = append(hosts, h)
		}
	}
	return hosts
}

// namesIn returns the host names of a certificate: of old ones without subject
// alternative names it is the common name, as with other ingress controllers.
func namesIn(leaf *x509.Certificate) []string {
	if len(leaf.DNSNames) == 0 && len(leaf.IPAddresses) == 0 && leaf.Subject.CommonName != "" {
		return []string{leaf.Subject.CommonName}
	}
	return leaf.DNSNames
}

// covers tells whether a certificate is for a host, which may be a wildcard.
func covers(leaf *x509.Certificate, host string) bool {
	_, parent, _ := strings.Cut(host, ".")
	return slices.ContainsFunc(namesIn(leaf), func(name string) bool {
		name = readHost(name)
		return name == host || parent != "" && name == "*."+parent
	})
}

// defaultCertificate returns that of Options, or nil.
func (r *run) defaultCertificate() *tls.Certificate {
	if r.opts.DefaultCertificate == "" {
		return nil
	}
	k := splitKey(r.opts.DefaultCertificate)
	cert, reason, why := r.certificate(k)
	if reason == "" {
		return cert
	}
	ref := model.Ref{Kind: "Secret", Namespace: k.namespace, Name: k.name}
	if s := r.secrets[k]; s != nil {
		ref = refTo("Secret", s)
	}
	r.problems.add(ref, reason, "%s; it is wanted as the default certificate, and a self-signed one is used", why)
	return nil
}
