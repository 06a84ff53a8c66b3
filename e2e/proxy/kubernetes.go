package proxy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// APIServer starts a proxy in front of the API server of a kubeconfig, HTTPS and
// HTTP/2 as there, and returns it with another kubeconfig, in dir, for the same
// user by way of the proxy. The user must have a token: the proxy passes it on,
// which it cannot do with a client certificate. The caller must call Close.
//
// What was forwarded is served to its end even if the client goes away, so that
// the audit log says what became of it.
func APIServer(ctx context.Context, kubeconfig, dir string, hooks Hooks) (p *Proxy, through string, err error) {
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return nil, "", err
	}
	current := config.Contexts[config.CurrentContext]
	if current == nil || config.Clusters[current.Cluster] == nil {
		return nil, "", fmt.Errorf("kubeconfig %s names no cluster", kubeconfig)
	}
	cluster := config.Clusters[current.Cluster]
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(cluster.CertificateAuthorityData) {
		return nil, "", fmt.Errorf("kubeconfig %s has no certificate authority", kubeconfig)
	}
	certificate, authority, err := newCertificate()
	if err != nil {
		return nil, "", fmt.Errorf("make a certificate: %w", err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	p, err = start(ctx, cluster.Server, certificate,
		&Proxy{transport: transport, read: readKubernetes, finishes: true, hooks: hooks})
	if err != nil {
		return nil, "", err
	}
	cluster.Server, cluster.CertificateAuthorityData = p.URL(), authority
	through = filepath.Join(dir, "proxied-"+filepath.Base(kubeconfig))
	if err := clientcmd.WriteToFile(*config, through); err != nil {
		p.Close()
		return nil, "", err
	}
	return p, through, nil
}

// newCertificate makes a server's certificate for loopback that is its own authority.
func newCertificate() (certificate *tls.Certificate, authority []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "proxy"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(7 * 24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
