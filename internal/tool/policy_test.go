package tool

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

// Without its ConfigMap a pod does not start.
func TestAPolicyFileThatIsGoneIsWrong(t *testing.T) {
	origin := &Origin{release: &Release{
		namespace: "nth", mounts: []corev1.VolumeMount{{Name: "policy", MountPath: "/policy"}},
		volumes: []corev1.Volume{{Name: "policy", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "rules"},
		}}}},
	}}
	configMap := func(key string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "nth", Name: "rules"}, Data: map[string]string{key: "version: 1\n"}}
	}
	for name, tt := range map[string]struct {
		client *fake.Clientset
		path   string
		wrong  bool
	}{
		"it is there":            {fake.NewClientset(configMap("policy.yaml")), "/policy/policy.yaml", false},
		"no ConfigMap":           {fake.NewClientset(), "/policy/policy.yaml", true},
		"no such key":            {fake.NewClientset(configMap("other.yaml")), "/policy/policy.yaml", true},
		"a file that is missing": {fake.NewClientset(), "/elsewhere/policy.yaml", true},
	} {
		_, err := readPolicy(t.Context(), &options.Options{PolicyFile: tt.path}, origin, tt.client)
		if wrong, is := errors.AsType[*doctor.PolicyError](err); is != tt.wrong || !is && err != nil || is && wrong.From == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
