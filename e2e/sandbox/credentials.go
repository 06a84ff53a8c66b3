package sandbox

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// The names of the files in a cluster's directory.
const (
	caFile                = "ca.crt"
	servingCertFile       = "apiserver.crt"
	servingKeyFile        = "apiserver.key"
	serviceAccountKeyFile = "service-account.key"
	tokensFile            = "tokens.csv"
)

// validity is longer than any test or demo, and has room for a clock that is
// set while one runs.
const validity = 7 * 24 * time.Hour

// writeCredentials makes a certificate authority, the API server's certificate,
// the key that signs service account tokens and a token for each of users, and
// writes what the API server reads of it to dir. The key of the authority is
// not kept.
func writeCredentials(dir string, users []string) (ca []byte, tokens map[string]string, err error) {
	now := time.Now()
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	authority := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "sandbox-ca"},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(validity),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, authority, authority, caKey.Public(), caKey)
	if err != nil {
		return nil, nil, err
	}
	servingKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serving := &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: "kube-apiserver"},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:     []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	servingDER, err := x509.CreateCertificate(rand.Reader, serving, authority, servingKey.Public(), caKey)
	if err != nil {
		return nil, nil, err
	}
	serviceAccountKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}

	var table strings.Builder
	tokens = map[string]string{}
	for _, user := range users {
		tokens[user] = rand.Text()
		fmt.Fprintf(&table, "%s,%s,%s,system:masters\n", tokens[user], user, user)
	}
	ca = encodePEM("CERTIFICATE", caDER)
	files := map[string][]byte{
		caFile:          ca,
		servingCertFile: encodePEM("CERTIFICATE", servingDER),
		tokensFile:      []byte(table.String()),
	}
	keys := map[string]*ecdsa.PrivateKey{servingKeyFile: servingKey, serviceAccountKeyFile: serviceAccountKey}
	for name, key := range keys {
		der, err := x509.MarshalECPrivateKey(key) // not PKCS 8: the API server takes the public keys out of this form alone
		if err != nil {
			return nil, nil, err
		}
		files[name] = encodePEM("EC PRIVATE KEY", der)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return nil, nil, err
		}
	}
	return ca, tokens, nil
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// WriteKubeconfig writes a kubeconfig with one user, who has the token, to path.
func WriteKubeconfig(path, server string, ca []byte, user, token string) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["sandbox"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["sandbox"] = &clientcmdapi.Context{Cluster: "sandbox", AuthInfo: user}
	config.CurrentContext = "sandbox"
	return clientcmd.WriteToFile(*config, path)
}
