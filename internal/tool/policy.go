package tool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/app"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/policyfile"
)

// policy returns what the options and the policy file say about decisions.
func (s *Session) policy() decision.Policy {
	p := app.Policy(s.Options)
	p.Rules = s.file.Rules
	return p
}

// readPolicy reads the policy file of the handler; see ReadPolicy.
func (s *Session) readPolicy(ctx context.Context) (err error) {
	s.file, err = readPolicy(ctx, s.Options, s.origin, s.client)
	if errors.Is(err, doctor.ErrAbsent) {
		return nil
	}
	if wrong, ok := errors.AsType[*doctor.PolicyError](err); ok {
		return fmt.Errorf("the policy file of %s is wrong:\n%w", wrong.From, wrong.Err)
	}
	return err
}

// ReadPolicy returns what reads the policy file of the handler for [doctor.Gatherer]: of the ConfigMap
// that the installed handler has at its path, or, if it has none there, the file of this machine.
func ReadPolicy(o *options.Options, origin *Origin) func(context.Context) (doctor.Policy, error) {
	return func(ctx context.Context) (doctor.Policy, error) {
		client, err := connect(o)
		if err != nil {
			return doctor.Policy{}, err
		}
		return readPolicy(ctx, o, origin, client)
	}
}

func readPolicy(
	ctx context.Context, o *options.Options, origin *Origin, client kube.Client,
) (p doctor.Policy, err error) {
	if o.PolicyFile == "" {
		return p, doctor.ErrAbsent
	}
	var data []byte
	data, p.From, err = policyData(ctx, o.PolicyFile, origin, client)
	if apierrors.IsNotFound(err) || errors.Is(err, errNoKey) || errors.Is(err, os.ErrNotExist) && origin.release != nil {
		return p, &doctor.PolicyError{From: p.From, Err: err}
	}
	if err != nil {
		return p, fmt.Errorf("read the policy file %s: %w", o.PolicyFile, err)
	}
	file, err := policyfile.Parse(data)
	if err != nil {
		return p, &doctor.PolicyError{From: p.From, Err: err}
	}
	p.Rules = file.Rules
	for _, warning := range file.Warnings {
		p.Warnings = append(p.Warnings, warning.String())
	}
	return p, nil
}

var errNoKey = errors.New("the ConfigMap has no key")

func policyData(
	ctx context.Context, path string, origin *Origin, client kube.Client,
) (data []byte, from string, err error) {
	configMap, key := "", ""
	if origin.release != nil {
		configMap, key = origin.release.configMapAt(path)
	}
	if configMap == "" {
		data, err = os.ReadFile(path)
		return data, path, err
	}
	namespace := origin.release.namespace
	from = fmt.Sprintf("ConfigMap %s/%s", namespace, configMap)
	found, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, configMap, metav1.GetOptions{})
	if err != nil {
		return nil, from, err
	}
	text, ok := found.Data[key]
	if !ok {
		return nil, from, fmt.Errorf("%w %s", errNoKey, key)
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
