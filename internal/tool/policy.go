package tool

import (
	"context"
	"fmt"
	"os"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/app"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/policyfile"
)

// A policySource is a policy file and where it was read.
type policySource struct {
	policyfile.File
	from string // empty: there is none
}

// policy returns what the options and the policy file say about decisions.
func (s *Session) policy() decision.Policy {
	p := app.Policy(s.Options)
	p.Rules = s.file.Rules
	return p
}

// readPolicy reads the policy file: of the ConfigMap that the installed handler has at that path, or, if
// it has none there, the file of this machine.
func (s *Session) readPolicy(ctx context.Context) error {
	if s.PolicyFile == "" {
		return nil
	}
	data, from, err := s.policyData(ctx)
	if err != nil {
		return fmt.Errorf("read the policy file %s: %w", s.PolicyFile, err)
	}
	file, err := policyfile.Parse(data)
	if err != nil {
		return fmt.Errorf("the policy file of %s is wrong:\n%w", from, err)
	}
	s.file = policySource{file, from}
	return nil
}

func (s *Session) policyData(ctx context.Context) (data []byte, from string, err error) {
	configMap, key := "", ""
	if s.origin.release != nil {
		configMap, key = s.origin.release.configMapAt(s.PolicyFile)
	}
	if configMap == "" {
		data, err = os.ReadFile(s.PolicyFile)
		return data, s.PolicyFile, err
	}
	namespace := s.origin.release.namespace
	from = fmt.Sprintf("ConfigMap %s/%s", namespace, configMap)
	found, err := s.client.CoreV1().ConfigMaps(namespace).Get(ctx, configMap, metav1.GetOptions{})
	if err != nil {
		return nil, from, err
	}
	text, ok := found.Data[key]
	if !ok {
		return nil, from, fmt.Errorf("%s has no key %s", from, key)
	}
	return []byte(text), from, nil
}

// configMapAt returns the ConfigMap that the container has at a path, and the key of it; empty: none.
func (r *Release) configMapAt(path string) (name, key string) {
	for _, m := range r.mounts {
		below, ok := strings.CutPrefix(path, strings.TrimSuffix(m.MountPath, "/")+"/")
		if !ok {
			continue
		}
		for _, v := range r.volumes {
			if v.Name != m.Name || v.ConfigMap == nil {
				continue
			}
			for _, item := range v.ConfigMap.Items {
				if item.Path == below {
					return v.ConfigMap.Name, item.Key
				}
			}
			return v.ConfigMap.Name, below
		}
	}
	return "", ""
}
