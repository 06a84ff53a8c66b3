// Package kubetest completes the fake clientset of client-go: it answers evictions and deletions of pods that are
// made through the REST client of the core API, of which the fake has none. Only tests use it.
package kubetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	restfake "k8s.io/client-go/rest/fake"
)

// An Evictable is a fake clientset with an eviction API.
type Evictable struct {
	kubernetes.Interface // the fake, which deletes pods itself
	// Evict answers an eviction. An error is no answer. nil: there are no evictions.
	Evict func(context.Context, *policyv1.Eviction) (*metav1.Status, error)
	// Admit is called before a pod is deleted, which an error prevents; nil: each deletion is admitted at once.
	Admit func(ctx context.Context, pod string) error
}

// IsWatchListSemanticsUnSupported is what informers ask a client about.
func (Evictable) IsWatchListSemanticsUnSupported() bool { return true }

// CoreV1 implements kubernetes.Interface.
func (e Evictable) CoreV1() typedcorev1.CoreV1Interface { return core{e.Interface.CoreV1(), e} }

type core struct {
	typedcorev1.CoreV1Interface
	of Evictable
}

// RESTClient implements typedcorev1.CoreV1Interface.
func (c core) RESTClient() rest.Interface {
	return &restfake.RESTClient{
		NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
		GroupVersion:         corev1.SchemeGroupVersion, VersionedAPIPath: "/api/v1",
		Client: restfake.CreateHTTPClient(c.serve),
	}
}

func (c core) serve(r *http.Request) (*http.Response, error) {
	status, err := &metav1.Status{Code: http.StatusOK, Status: metav1.StatusSuccess}, error(nil)
	switch {
	case r.Method == http.MethodDelete:
		err = c.delete(r)
	case strings.HasSuffix(r.URL.Path, "/eviction") && c.of.Evict != nil:
		var eviction policyv1.Eviction
		if err := json.NewDecoder(r.Body).Decode(&eviction); err != nil {
			return nil, err
		}
		status, err = c.of.Evict(r.Context(), &eviction)
	default:
		err = fmt.Errorf("the fake does not answer %s %s", r.Method, r.URL)
	}
	if refused, ok := errors.AsType[*apierrors.StatusError](err); ok {
		status, err = &refused.ErrStatus, nil
	}
	if err != nil {
		return nil, err
	}
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	text, err := json.Marshal(status)
	return &http.Response{
		StatusCode: int(status.Code), Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(string(text))),
	}, err
}

// delete deletes the pod of /api/v1/namespaces/NAMESPACE/pods/NAME.
func (c core) delete(r *http.Request) error {
	path := strings.Split(r.URL.Path, "/")
	if len(path) < 3 || path[len(path)-2] != "pods" {
		return fmt.Errorf("the fake does not answer %s %s", r.Method, r.URL)
	}
	var options metav1.DeleteOptions
	if err := json.NewDecoder(r.Body).Decode(&options); err != nil {
		return err
	}
	if c.of.Admit != nil {
		if err := c.of.Admit(r.Context(), path[len(path)-1]); err != nil {
			return err
		}
	}
	return c.Pods(path[len(path)-3]).Delete(r.Context(), path[len(path)-1], options)
}
