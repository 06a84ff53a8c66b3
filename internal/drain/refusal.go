package drain

import (
	"errors"
	"net/http"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// refusalOf returns why an eviction was refused.
func refusalOf(err error) evacuation.Refusal {
	switch {
	case twoBudgets(err):
		return evacuation.TwoBudgets
	case apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
		return evacuation.Budget
	case apierrors.IsForbidden(err) && apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return evacuation.Namespace
	case apierrors.IsTooManyRequests(err) && !denied(err):
		return evacuation.Busy
	}
	return evacuation.Failed
}

// twoBudgets reports whether an eviction was refused because more than one budget covers the pod. The
// API server gives that no reason of its own, so it is recognised by its text.
// https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
func twoBudgets(err error) bool {
	s := statusOf(err)
	return s.Code == http.StatusInternalServerError && strings.Contains(s.Message, "more than one PodDisruptionBudget")
}

// denied reports whether an admission webhook has denied a request.
func denied(err error) bool {
	s := statusOf(err)
	return kube.DeniedByWebhook(s.Message)
}

// statusOf is the API server's answer to a request that has failed; zero: there is none.
func statusOf(err error) (s metav1.Status) {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		s = status.Status()
	}
	return s
}

// uncalled reports whether a request was refused because an admission webhook does not answer. Webhooks are called
// before a request has an effect.
// https://github.com/kubernetes/kubernetes/blob/v1.34.0/staging/src/k8s.io/apiserver/pkg/admission/plugin/webhook/validating/dispatcher.go
func uncalled(err error) bool {
	return apierrors.IsInternalError(err) && nameIn(webhookWords, err) != ""
}

// busyFor returns how long an overloaded API server asks to be left alone; zero: it is not overloaded.
// The refusal of a budget has the same status code.
func busyFor(err error) time.Duration {
	if refusalOf(err) != evacuation.Busy {
		return 0
	}
	return max(time.Second, retryAfter(err))
}

// retryAfter returns the pause that an answer asks for; zero: it asks for none.
func retryAfter(err error) time.Duration {
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		return time.Duration(seconds) * time.Second
	}
	return 0
}

// causeOf returns who has refused an eviction, with its name, and why. The cause is [overview.Refused] if the
// answer does not say who, or the request has failed, and [overview.Answer] if the API server is overloaded.
func causeOf(pod *corev1.Pod, err error) (cause overview.Cause, name, why string) {
	switch refusalOf(err) {
	case evacuation.TwoBudgets:
		return overview.TwoBudgets, "", "two PodDisruptionBudgets cover the pod, which the eviction API does not support: " +
			"it is never evicted; see kubectl -n " + pod.Namespace + " get pdb"
	case evacuation.Budget:
		if name, says := budgetOf(err); name != "" {
			name = pod.Namespace + "/" + name
			return overview.Budget, name, "PodDisruptionBudget " + name + " " + says
		}
		return overview.Budget, "", "a PodDisruptionBudget allows no disruption now: " + truncate(err.Error())
	case evacuation.Namespace:
		return overview.Namespace, pod.Namespace, "namespace " + pod.Namespace + " is being deleted, and the pod with it: " +
			truncate(err.Error())
	case evacuation.Busy: // that is about all pods
		return overview.Answer, "", truncate(err.Error())
	case evacuation.Failed:
	}
	if name := nameIn(webhookWords, err); name != "" {
		return overview.Webhook, name, truncate(err.Error())
	}
	if name := nameIn(policyWords, err); name != "" {
		return overview.AdmissionPolicy, name, truncate(err.Error())
	}
	return overview.Refused, "", truncate(err.Error())
}

// refuses reports whether the answer to a request says that it had no effect. What has no answer, or an error of the
// server, may have had one.
func refuses(err error) bool {
	s := statusOf(err)
	return s.Code >= 400 && s.Code < 500 && s.Code != http.StatusRequestTimeout ||
		denied(err) || uncalled(err) || twoBudgets(err)
}

// unheard reports whether an eviction has failed before its pod's budget was asked, or may have: the API server is
// overloaded, is shutting down, has failed, or has not answered. That is no reason to force the pod.
func unheard(err error) bool { return refusalOf(err) == evacuation.Busy || !refuses(err) }

// The API server's text about a budget, in the cause of its answer. After the budget's name there may
// be others: that it is still being processed, or why its state is not known.
// https://github.com/kubernetes/kubernetes/blob/v1.34.0/pkg/registry/core/pod/storage/eviction.go
var (
	budgetWords = regexp.MustCompile(`^The disruption budget (\S+) (.*)$`)
	countWords  = regexp.MustCompile(`^(needs \d+ healthy pods and has \d+) currently$`)
)

// budgetOf returns the name of the budget that has refused an eviction, and what is said of it. The name
// is empty if the API server does not give it.
func budgetOf(err error) (name, says string) {
	s := statusOf(err)
	if s.Details == nil {
		return "", ""
	}
	for _, cause := range s.Details.Causes {
		if cause.Type != policyv1.DisruptionBudgetCause {
			continue
		}
		if words := budgetWords.FindStringSubmatch(cause.Message); words != nil {
			if count := countWords.FindStringSubmatch(words[2]); count != nil {
				return words[1], count[1]
			}
			return words[1], truncate(words[2])
		}
	}
	return "", ""
}

// webhookWords is the API server's text about an admission webhook that denies a request, or does not
// answer.
// https://github.com/kubernetes/kubernetes/blob/v1.34.0/staging/src/k8s.io/apiserver/pkg/admission/plugin/webhook/errors/statuserror.go
// https://github.com/kubernetes/kubernetes/blob/v1.34.0/staging/src/k8s.io/apiserver/pkg/admission/plugin/webhook/mutating/dispatcher.go
var webhookWords = regexp.MustCompile(`(?:admission|failed calling) webhook "([^"]+)"`)

// policyWords is the API server's text about an admission policy that denies a request, or fails.
// https://github.com/kubernetes/kubernetes/blob/v1.34.0/staging/src/k8s.io/apiserver/pkg/admission/plugin/policy/validating/dispatcher.go
var policyWords = regexp.MustCompile(`AdmissionPolicy '([^']+)' (?:with binding '[^']+' )?denied request`)

// nameIn returns the name of what a request has failed for, by the API server's words; empty: for none.
func nameIn(words *regexp.Regexp, err error) string {
	s := statusOf(err)
	if found := words.FindStringSubmatch(s.Message); found != nil {
		return found[1]
	}
	return ""
}
