package drain

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// refusedBy refuses as an API server does for a budget, in its words.
func refusedBy(words string) *metav1.Status {
	status := budget("")
	status.Details.Causes[0].Message = words
	return status
}

// deniedBy refuses as an API server does for a webhook.
func deniedBy(name string) *metav1.Status {
	return &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: fmt.Sprintf("admission webhook %q denied the request: not on a Friday", name),
	}
}

// terminating refuses as an API server does while it deletes the pod's namespace.
func terminating(string) *metav1.Status {
	return &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: "unable to create new content in namespace ns because it is being terminated",
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause, Message: "namespace ns is being terminated"}}},
	}
}

// policySays are an API server's words for a ValidatingAdmissionPolicy.
const policySays = `pods "db-0" is forbidden: ValidatingAdmissionPolicy 'no-friday' with binding 'everywhere' denied request: not on a Friday`

func forbidden(message string) *metav1.Status {
	return &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: message,
	}
}

// Whoever refuses the evictions of a pod for good: it is told in the words of the answer, and the pod, which leaves by
// itself in the end, was neither evicted nor deleted by us. It was perhaps where the answer says nothing of that.
func TestEachRefusalIsToldAndCountsForNoEviction(t *testing.T) {
	invalid := forbidden("a quota of evictions that nobody has heard of")
	invalid.Code, invalid.Reason = http.StatusUnprocessableEntity, metav1.StatusReasonInvalid
	broken := forbidden("etcd: request timed out")
	broken.Code, broken.Reason = http.StatusInternalServerError, metav1.StatusReasonInternalError
	away := *broken
	away.Message = `Internal error occurred: failed calling webhook "friday.example.com": failed to call webhook: Post "https://a.b.svc/": EOF`
	ended, perhaps := evacuation.Result{Ended: 1}, evacuation.Result{Evicted: 1}
	for name, tt := range map[string]struct {
		status *metav1.Status
		why    string
		want   evacuation.Result
	}{
		"a webhook":                 {deniedBy("friday.example.com"), `admission webhook "friday.example.com" denied the request`, ended},
		"a webhook that is away":    {&away, `failed calling webhook "friday.example.com"`, ended},
		"a policy":                  {forbidden(policySays), `ValidatingAdmissionPolicy 'no-friday'`, ended},
		"a namespace that ends":     {terminating(""), "namespace ns is being deleted", ended},
		"RBAC":                      {forbidden(`cannot create resource "pods/eviction"`), `cannot create resource "pods/eviction"`, ended},
		"what nobody has foreseen":  {invalid, "a quota of evictions that nobody has heard of", ended},
		"a server that is not well": {broken, "etcd: request timed out", perhaps},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("a")
				s.refuse = func(string) *metav1.Status { return tt.status }
				told := s.told()
				s.ends("a", time.Minute)
				result, err := s.drain(evacuation.Terms{}, nil)
				s.wantEnd(result, err, tt.want, time.Since(s.begin))
				if len(*told) != 1 || !strings.HasPrefix((*told)[0], "10s node a ") || !strings.Contains((*told)[0], tt.why) {
					t.Errorf("told: %q", *told)
				}
			})
		})
	}
}

// A right that is missing does not come by itself.
func TestAMissingRightIsAWarning(t *testing.T) {
	for says, warns := range map[string]int{`pods "a" is forbidden: cannot create resource "pods/eviction"`: 1, policySays: 0} {
		play(t, func(s *stage) {
			s.pod("a")
			s.refuse = func(string) *metav1.Status { return forbidden(says) }
			s.ends("a", time.Minute)
			if got := len(s.drainLogged(evacuation.Terms{}).Entries("an eviction was refused", "level", "warn")); got != warns {
				t.Errorf("%s: %d warnings, want %d", says, got, warns)
			}
		})
	}
}

// One request that fails, or that a server has no time for, is not what keeps a pod. What refuses it after that is told.
func TestARefusalIsToldThoughSomethingElseCameBefore(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a")
		s.refuse = func(string) *metav1.Status {
			switch since := time.Since(s.begin); {
			case since < time.Second:
				return &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests}
			case since < 20*time.Second:
				return refusedBy("The disruption budget db needs 2 healthy pods and has 2 currently")
			}
			return forbidden("a quota that nobody has heard of")
		}
		told := s.told()
		s.ends("a", 2*time.Minute)
		_, _ = s.drain(evacuation.Terms{}, nil)
		if len(*told) != 2 || !strings.Contains((*told)[0], "PodDisruptionBudget") || !strings.Contains((*told)[1], "a quota that nobody has heard of") {
			t.Errorf("told: %q", *told)
		}
	})
}

// The server's words alone tell one refusal that nobody has foreseen from another; numbers and names of pods do not.
func TestRefusalsThatNobodyHasForeseenAreToldOneByOne(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("web-x")
		s.pod("web-y")
		var asked atomic.Int32
		s.refuse = func(pod string) *metav1.Status {
			if time.Since(s.begin) < 30*time.Second {
				return forbidden(fmt.Sprintf("pods %q is forbidden: no right, answer %d", pod, asked.Add(1)))
			}
			return forbidden(fmt.Sprintf("pods %q is forbidden: a quota, answer %d", pod, asked.Add(1)))
		}
		told := s.told()
		s.ends("web-x", 2*time.Minute)
		s.ends("web-y", 2*time.Minute)
		_, _ = s.drain(evacuation.Terms{}, nil)
		ofNode := 0
		for _, text := range *told {
			if strings.HasSuffix(text, "first=true") {
				ofNode++
			}
		}
		if len(*told) != 4 || ofNode != 2 || !strings.Contains((*told)[0], "no right") || !strings.Contains((*told)[3], "a quota") {
			t.Errorf("told: %q", *told)
		}
	})
}

// The API server takes no Event of such a pod, so the node tells of each.
func TestEachPodOfANamespaceThatEndsIsToldOfByTheNode(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a")
		s.pod("b")
		s.refuse = terminating
		told := s.told()
		s.ends("a", time.Minute)
		s.ends("b", time.Minute)
		_, _ = s.drain(evacuation.Terms{}, nil)
		if len(*told) != 2 || !strings.HasSuffix((*told)[0], "first=true") || !strings.HasSuffix((*told)[1], "first=true") {
			t.Errorf("told: %q", *told)
		}
	})
}

// What refuses deletions is told like what refuses evictions. A server that is not well for a moment is not.
func TestARefusedDeletionIsTold(t *testing.T) {
	const says = `admission webhook "friday.example.com" denied the request: not on a Friday`
	for name, until := range map[string]time.Duration{"for good": time.Hour, "for a moment": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("a")
				s.kube.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
					if time.Since(s.begin) < until {
						return true, nil, &apierrors.StatusError{ErrStatus: *forbidden(says)}
					}
					return false, nil, nil
				})
				told := s.told()
				terms := evacuation.Terms{Deadline: s.begin.Add(40 * time.Second), IgnoreBudgets: true}
				answers, result := s.asking(terms, 2*time.Second)
				if waits := answers[0].Waits; len(waits) != 1 || waits[0].Cause != overview.Webhook || waits[0].Name != "friday.example.com" {
					t.Errorf("it waits for %+v", waits)
				}
				forGood := name == "for good"
				if is := len(*told) == 1 && strings.Contains((*told)[0], says); is != forGood || result.Forced == 1 == forGood {
					t.Errorf("told: %q; %+v", *told, result)
				}
			})
		})
	}
}

// What is accepted in the end does not fail any more, though the watch does not show it yet.
func TestADeletionThatIsAcceptedIsNotToldAsFailing(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a")
		deletions := 0
		s.kube.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			deletions++
			switch deletions {
			case 1:
				return true, nil, apierrors.NewInternalError(errors.New("no leader of etcd"))
			case 2:
				return true, nil, nil
			}
			return false, nil, nil
		})
		terms := evacuation.Terms{Deadline: s.begin.Add(time.Minute), IgnoreBudgets: true}
		answers, result := s.asking(terms, 100*time.Millisecond, 10*time.Second)
		for k, want := range []overview.Cause{overview.Refused, overview.Answer} {
			if waits := answers[k].Waits; len(waits) != 1 || waits[0].Cause != want {
				t.Errorf("it waits for %+v, want the cause %s", waits, want)
			}
		}
		if deletions != 3 || result.Forced != 1 {
			t.Errorf("%d deletions, %+v", deletions, result)
		}
	})
}

func TestARefusedEvictionNamesWhoHasRefused(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db-0"}}
	long := deniedBy("long.example.com")
	long.Message += "." + strings.Repeat("é", 1000)
	for _, test := range []struct {
		name       string
		err        error
		cause, why string
	}{
		{
			"a budget", &apierrors.StatusError{ErrStatus: *refusedBy("The disruption budget db needs 2 healthy pods and has 2 currently")},
			"budget default/db", "PodDisruptionBudget default/db needs 2 healthy pods and has 2",
		},
		{
			"a budget that was just made", &apierrors.StatusError{ErrStatus: *refusedBy("The disruption budget db is still being processed by the server.")},
			"budget default/db", "PodDisruptionBudget default/db is still being processed by the server.",
		},
		{
			"a budget without its name", &apierrors.StatusError{ErrStatus: *budget("")},
			"budget", "a PodDisruptionBudget allows no disruption now: Cannot evict pod as it would violate the pod's disruption budget.",
		},
		{
			"two budgets", &apierrors.StatusError{ErrStatus: *twice("")},
			"two-budgets", "two PodDisruptionBudgets cover the pod, which the eviction API does not support: it is never evicted; see kubectl -n default get pdb",
		},
		{
			"a namespace that is being deleted", &apierrors.StatusError{ErrStatus: *terminating("")},
			"namespace default", "namespace default is being deleted, and the pod with it: " + terminating("").Message,
		},
		{
			"a webhook", &apierrors.StatusError{ErrStatus: *deniedBy("pods.example.com")},
			"webhook pods.example.com", `admission webhook "pods.example.com" denied the request: not on a Friday`,
		},
		{
			"a webhook that is away",
			apierrors.NewInternalError(errors.New(`failed calling webhook "pods.example.com": Post "https://a.b.svc/": context deadline exceeded`)),
			"webhook pods.example.com", `Internal error occurred: failed calling webhook "pods.example.com": Post "https://a.b.svc/": context deadline exceeded`,
		},
		{
			"a policy", &apierrors.StatusError{ErrStatus: *forbidden(policySays)},
			"admission-policy no-friday", policySays,
		},
		{ // https://github.com/kubernetes/kubernetes/blob/v1.34.0/staging/src/k8s.io/apiserver/pkg/admission/plugin/policy/validating/dispatcher.go
			"a policy without a binding", &apierrors.StatusError{ErrStatus: *forbidden("ValidatingAdmissionPolicy 'broken' denied request: failed to configure policy")},
			"admission-policy broken", "ValidatingAdmissionPolicy 'broken' denied request: failed to configure policy",
		},
		{
			"something that nobody has foreseen", &apierrors.StatusError{ErrStatus: *forbidden("exceeded quota of evictions")},
			"refused", "exceeded quota of evictions",
		},
		{"nobody", errors.New("connection refused"), "refused", "connection refused"},
		{"a webhook that talks", &apierrors.StatusError{ErrStatus: *long}, "webhook long.example.com", long.Message[:maxWhy-1] + "…"},
	} {
		kind, name, why := causeOf(pod, test.err)
		cause := strings.TrimSpace(string(kind) + " " + name)
		if diff := cmp.Diff([]string{test.cause, test.why}, []string{cause, why}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

// drainLogged drains and returns the log.
func (s *stage) drainLogged(terms evacuation.Terms) *logtest.Log {
	s.Helper()
	return s.drainAsked(terms, nil)
}

// drainAsked is drainLogged of a drain that is asked for its progress.
func (s *stage) drainAsked(terms evacuation.Terms, asked <-chan chan<- evacuation.Progress) *logtest.Log {
	s.Helper()
	log := &logtest.Log{}
	terms.CordonedAt = s.begin
	_, err := s.drainer.Drain(s.Context(), &evacuation.Request{
		Node: "node", Terms: terms, NodeState: s.look, Asked: asked, Log: log.Logger(),
	})
	if err != nil {
		s.Error(err)
	}
	return log
}

// A drain of three and a half minutes, and one of 50 s.
func TestADrainThatWaitsSaysOnceAMinuteWhatFor(t *testing.T) {
	for waits, want := range map[time.Duration][]string{
		210 * time.Second: {
			`pods=3 why="ns/db-0: PodDisruptionBudget ns/db needs 2 healthy pods and has 2, deleted at 00:04:25Z; ns/slow: grace until 00:04:58Z; ` +
				`ns/critical: it is critical to the system, and goes after the others" left=4m0s`,
			`pods=3 why="ns/db-0: PodDisruptionBudget ns/db needs 2 healthy pods and has 2, deleted at 00:04:25Z; ns/slow: grace until 00:04:58Z; ` +
				`ns/critical: it is critical to the system, and goes after the others" left=3m0s`,
			`pods=2 why="ns/db-0: PodDisruptionBudget ns/db needs 2 healthy pods and has 2, deleted at 00:04:25Z; ` +
				`ns/critical: it is critical to the system, and goes after the others" left=2m0s`,
		},
		50 * time.Second: nil,
	} {
		play(t, func(s *stage) {
			s.pod("db-0")
			s.pod("slow", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(300)) })
			s.pod("critical", func(p *corev1.Pod) { p.Spec.Priority = new(int32(2_000_000_000)) })
			s.stops["slow"] = min(150*time.Second, waits-10*time.Second)
			s.refuse = func(pod string) *metav1.Status {
				if pod == "db-0" && time.Since(s.begin) < waits-10*time.Second {
					return refusedBy("The disruption budget db needs 2 healthy pods and has 2 currently")
				}
				return nil
			}
			log := s.drainLogged(evacuation.Terms{Deadline: s.begin.Add(5 * time.Minute)})
			// The last refusal is up to 10 s before the end, and the pause after it 12 s at most.
			if took := time.Since(s.begin); took > waits+3*time.Second {
				t.Errorf("it took %s", took)
			}
			if diff := cmp.Diff(want, log.Said("waiting for pods to leave")); diff != "" {
				t.Errorf("a drain of %s says (-want +got):\n%s", waits, diff)
			}
			if diff := cmp.Diff([]string{`pod=ns/db-0 why="PodDisruptionBudget ns/db needs 2 healthy pods and has 2"`}, log.Said("an eviction was refused")); diff != "" {
				t.Errorf("refusals (-want +got):\n%s", diff)
			}
		})
	}
}

func TestALineAboutAHundredPodsNamesTen(t *testing.T) {
	play(t, func(s *stage) {
		for k := range 100 {
			s.pod(fmt.Sprintf("p-%02d", k), func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(90)) })
			s.stops[fmt.Sprintf("p-%02d", k)] = 80 * time.Second
		}
		log := s.drainLogged(evacuation.Terms{})
		lines := log.Said("waiting for pods to leave")
		if len(lines) != 1 || !strings.HasPrefix(lines[0], `pods=100 why="ns/p-00: grace until 00:01:30Z; `) ||
			!strings.HasSuffix(lines[0], `; ns/p-09: grace until 00:01:30Z; and 90 more" left="no deadline"`) {
			t.Errorf("it says %q", lines)
		}
	})
}

// told notes what Blocked is called for.
func (s *stage) told() *[]string {
	var told []string
	s.drainer.Blocked = func(b evacuation.Blocked) {
		about := "volumes"
		if b.Pod != nil {
			about = b.Pod.Name
		}
		told = append(told, fmt.Sprintf("%s %s %s %s first=%t", time.Since(s.begin).Round(time.Second), b.Node, about, b.Why, b.First))
	}
	return &told
}

func TestWhatKeepsAPodIsToldOnceForEachCauseWhenItHasLasted(t *testing.T) {
	play(t, func(s *stage) {
		for _, name := range []string{"a", "b", "short"} {
			s.pod(name)
		}
		s.refuse = func(pod string) *metav1.Status {
			since := time.Since(s.begin)
			switch {
			case pod == "short" && since > 5*time.Second, since > 80*time.Second:
				return nil
			case pod == "b" && since > 60*time.Second: // and back again
				return refusedBy("The disruption budget db needs 2 healthy pods and has 1 currently")
			case pod == "b" && since > 30*time.Second:
				return deniedBy("friday.example.com")
			}
			return refusedBy("The disruption budget db needs 2 healthy pods and has 2 currently")
		}
		told := s.told()
		log := s.drainLogged(evacuation.Terms{})
		const budget = " PodDisruptionBudget ns/db needs 2 healthy pods and has 2"
		got := slices.Clone(*told)
		slices.Sort(got)
		// Which of the two pods is the first does not matter.
		either := [][]string{
			{"10s node a" + budget + " first=true", "10s node b" + budget + " first=false"},
			{"10s node a" + budget + " first=false", "10s node b" + budget + " first=true"},
		}
		if len(got) != 3 || !slices.Equal(got[:2], either[0]) && !slices.Equal(got[:2], either[1]) ||
			!strings.HasSuffix(got[2], `node b admission webhook "friday.example.com" denied the request: not on a Friday first=true`) {
			t.Errorf("told %q", got)
		}
		if lines := log.Said("an eviction was refused"); len(lines) != 4 {
			t.Errorf("%d lines, want one for each pod and cause: %q", len(lines), lines)
		}
	})
}
