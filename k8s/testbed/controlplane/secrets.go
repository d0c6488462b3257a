package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"
)

// secrets returns the files ca.crt, apiserver.crt, apiserver.key and sa.key.
func secrets() (map[string][]byte, error) {
	keys := [3]*ecdsa.PrivateKey{} // of the authority, the API server, and ServiceAccounts' tokens
	for i := range keys {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		keys[i] = key
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "testbed"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(30 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	files := map[string][]byte{}
	for name, c := range map[string]struct {
		certificate *x509.Certificate
		key         *ecdsa.PrivateKey
	}{"ca.crt": {authority, keys[0]}, "apiserver.crt": {server, keys[1]}} {
		der, err := x509.CreateCertificate(rand.Reader, c.certificate, authority, c.key.Public(), keys[0])
		if err != nil {
			return nil, err
		}
		files[name] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	for name, key := range map[string]*ecdsa.PrivateKey{"apiserver.key": keys[1], "sa.key": keys[2]} {
		der, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			return nil, err
		}
		files[name] = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	}
	return files, nil
}
