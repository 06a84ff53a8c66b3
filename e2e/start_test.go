package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

// What keeps the program from working is told in its last line, by name, and
// ends it: the kubelet shows that line, and starts it again. How soon: internal/app, in virtual time.
func TestAStartThatIsInVainEndsWithOneClearLine(t *testing.T) {
	t.Parallel()
	denied := func(action, code string) func(*handler) {
		return func(h *handler) {
			h.s.must(h.s.aws.SetFault(awssim.Fault{Action: action, Status: 403, Code: code}))
		}
	}
	for name, test := range map[string]struct {
		set  func(h *handler)
		want []string
	}{
		"no queue": {
			func(h *handler) { h.queue = "elsewhere" },
			[]string{"sqs GetQueueAttributes", "/elsewhere", "no such queue", "queue-url", "aws-region"},
		},
		"wrong region": {
			func(h *handler) { h.args = append(h.args, "--aws-region=eu-west-1") },
			[]string{"sqs GetQueueAttributes", "another region", "aws-region"},
		},
		"may not receive": {
			denied("ReceiveMessage", "AccessDenied"),
			[]string{"sqs ReceiveMessage", "/" + queueName, "lacks sqs:ReceiveMessage"},
		},
		"may not delete": {
			denied("DeleteMessageBatch", "AccessDenied"),
			[]string{"sqs DeleteMessageBatch", "/" + queueName, "lacks sqs:DeleteMessage"},
		},
		"may nothing with the queue": {
			func(h *handler) {
				h.s.must(h.s.aws.SetFault(awssim.Fault{Service: "sqs", Status: 403, Code: "AccessDenied"}))
			},
			[]string{"sqs DeleteMessageBatch", "/" + queueName, "lacks sqs:DeleteMessage"},
		},
		"may not look instances up": {
			denied("DescribeInstances", "UnauthorizedOperation"),
			[]string{"ec2 DescribeInstances", "permission ec2:DescribeInstances is missing", "all resources"},
		},
		"STS gives no role": {
			func(h *handler) {
				h.s.must(h.s.aws.SetFault(awssim.Fault{Service: "sts", Status: 403, Code: "AccessDenied"}))
				h.env = webIdentity(h.s)
			},
			[]string{"sqs GetQueueAttributes", "no AWS credentials", "trust policy", "AssumeRoleWithWebIdentity", "AccessDenied"},
		},
		"RBAC is missing": {
			func(h *handler) {
				h.s.must(h.s.kube.RbacV1().ClusterRoleBindings().Delete(h.s.ctx, h.s.name, metav1.DeleteOptions{}))
			},
			[]string{"this ServiceAccount must be allowed to", "list nodes", "watch nodes", "patch nodes", "create pods/eviction", "watch volumeattachments", "ClusterRole"},
		},
		"one verb is missing": {
			func(h *handler) { h.s.withoutRight("nodes", "patch") },
			[]string{"this ServiceAccount must be allowed to patch nodes;"},
		},
		"the Role is missing": {
			func(h *handler) {
				h.s.must(h.s.kube.RbacV1().RoleBindings(h.s.name).Delete(h.s.ctx, "node-termination-handler", metav1.DeleteOptions{}))
			},
			[]string{"this ServiceAccount must be allowed to create leases", "get leases.coordination.k8s.io in s", "update leases"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScenario(t)
			otherRights.Store(s.name, true)
			h := s.replica()
			test.set(h)
			h.run()
			s.eventually("the handler has exited", h.isExited)
			if status := h.cmd.ProcessState.ExitCode(); status != 1 {
				t.Errorf("exit status %d, want 1", status)
			}
			last := h.log.LastLines(1)
			t.Log(last)
			for _, want := range append(test.want, "node-termination-handler: ") {
				if !strings.Contains(last, want) {
					t.Errorf("the last line lacks %q:\n%s", want, last)
				}
			}
			if _, says, _ := strings.Cut(last, "node-termination-handler: "); !documented(s).MatchString(says) {
				t.Errorf("docs/troubleshooting.md has no entry for the last line:\n%s", last)
			}
		})
	}
}

// It waits for what may heal, and says for what. A spot warning that was sent meanwhile is
// in time.
func TestAStartUpWithoutSQSDrainsWhenSQSIsBack(t *testing.T) {
	const away = 20 * time.Second
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("app", n.name)
	s.must(s.aws.SetFault(awssim.Fault{ID: "away", Service: "sqs", Status: 503}))
	h := s.launch()
	back := time.After(away)
	s.eventually("/readyz says what is waited for", func() bool {
		status, body := h.fetch(h.probes, "/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "queue: sqs GetQueueAttributes") && strings.Contains(body, "ServiceUnavailable")
	})
	message := s.send(s.body("spot-interruption", n.instance))
	other := s.launch()
	s.eventually("the other replica waits as well", func() bool {
		return strings.Contains(other.body(other.probes, "/readyz"), "queue: sqs GetQueueAttributes")
	})
	if status := other.stop(); status != 0 {
		t.Errorf("SIGTERM ended it with %d", status)
	}
	for waiting := true; waiting; {
		select {
		case <-back:
			waiting = false
		case <-time.After(200 * time.Millisecond):
			if h.isExited() || h.get(h.probes, "/healthz") != http.StatusOK || h.get(h.probes, "/readyz") == http.StatusOK {
				t.Fatal("it has to live, and not to be ready")
			}
		}
	}
	s.aws.RemoveFault("away")
	s.awaitDeleted(soon, message)
	s.drainedBefore(message, n)
	h.awaitReady()
}

// documented matches what docs/troubleshooting.md has an entry for, about the start.
func documented(s *scenario) *regexp.Regexp {
	s.Helper()
	page, err := os.ReadFile("../docs/troubleshooting.md")
	s.must(err)
	_, section, _ := strings.Cut(string(page), "\n## It does not start\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var all []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*?) \\| ").FindAllStringSubmatch(section, -1) {
		for _, span := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			all = append(all, strings.ReplaceAll(regexp.QuoteMeta(span[1]), "…", ".*"))
		}
	}
	return regexp.MustCompile("^(?:" + strings.Join(all, "|") + ")")
}

func TestAQueueThatEatsOfTheNoticeIsAWarning(t *testing.T) {
	tier.Full(t, "internal/app has the warning")
	t.Parallel()
	for name, test := range map[string]struct {
		queue awssim.Queue
		want  string
	}{
		"FIFO":           {awssim.Queue{Name: "nth.fifo", Attributes: map[string]string{"FifoQueue": "true"}}, "FIFO"},
		"delivery delay": {awssim.Queue{Name: "late", Attributes: map[string]string{"DelaySeconds": "45"}}, "45s"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScenario(t)
			s.must(s.aws.CreateQueue(test.queue))
			h := s.replica()
			h.queue = test.queue.Name
			h.run()
			h.awaitLead()
			if !strings.Contains(h.log.String(), test.want) {
				t.Errorf("no warning about %s in the log:\n%s", test.want, h.log.String())
			}
		})
	}
}

// withoutRight takes a verb out of the scenario's ClusterRole.
func (s *scenario) withoutRight(resource, verb string) {
	s.Helper()
	role, err := s.kube.RbacV1().ClusterRoles().Get(s.ctx, s.name, metav1.GetOptions{})
	s.must(err)
	for k, rule := range role.Rules {
		if rule.Resources[0] == resource {
			role.Rules[k].Verbs = slices.DeleteFunc(rule.Verbs, func(v string) bool { return v == verb })
		}
	}
	_, err = s.kube.RbacV1().ClusterRoles().Update(s.ctx, role, metav1.UpdateOptions{})
	s.must(err)
}

// webIdentity is the environment of IRSA.
func webIdentity(s *scenario) []string {
	s.Helper()
	token := filepath.Join(s.TempDir(), "token")
	s.must(os.WriteFile(token, []byte("a token"), 0o600))
	return []string{
		"AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=",
		"AWS_ROLE_ARN=arn:aws:iam::123456789012:role/nth", "AWS_WEB_IDENTITY_TOKEN_FILE=" + token,
	}
}
