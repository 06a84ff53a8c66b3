package e2e

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/awssim"
)

// startLimit is what a process has to find out that it cannot work.
const startLimit = 30 * time.Second

// What keeps the program from working is told in its last line, by name, and
// ends it: the kubelet shows that line, and starts it again.
func TestAStartThatIsInVainEndsWithOneClearLineWithinThirtySeconds(t *testing.T) {
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
		"SQS hangs": {
			func(h *handler) { h.s.must(h.s.aws.SetFault(awssim.Fault{Service: "sqs", Hang: true})) },
			[]string{"sqs GetQueueAttributes", "/" + queueName, "deadline exceeded"},
		},
		"STS cannot be reached": {
			func(h *handler) {
				h.s.must(h.s.aws.SetFault(awssim.Fault{Service: "sts", Hang: true}))
				h.env = webIdentity(h.s)
			},
			[]string{"sqs GetQueueAttributes", "no AWS credentials", "the way to STS", "deadline exceeded"},
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
			[]string{"this ServiceAccount may not", "list nodes", "watch nodes", "patch nodes", "create pods/eviction", "watch volumeattachments", "ClusterRole"},
		},
		"one verb is missing": {
			func(h *handler) { h.s.withoutRight("nodes", "patch") },
			[]string{"this ServiceAccount may not patch nodes;"},
		},
		"the Role is missing": {
			func(h *handler) {
				h.s.must(h.s.kube.RbacV1().RoleBindings(h.s.name).Delete(h.s.ctx, "node-termination-handler", metav1.DeleteOptions{}))
			},
			[]string{"this ServiceAccount may not create leases", "get leases.coordination.k8s.io in s", "update leases"},
		},
		"no API server": {
			func(h *handler) { h.kubeconfig = h.s.kubeconfigOf(closedPort(h.s)) },
			[]string{"check the rights", "connection refused"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScenario(t)
			otherRights.Store(s.name, true)
			h := s.replica()
			test.set(h)
			begin := time.Now()
			h.run()
			s.within(startLimit+soon, "the handler has exited", h.isExited)
			if took := time.Since(begin); took > startLimit {
				t.Errorf("it took %s", took)
			}
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
	for name, test := range map[string]struct {
		queue awssim.Queue
		want  string
	}{
		"FIFO":           {awssim.Queue{Name: "nth.fifo"}, "FIFO"},
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

// closedPort is the URL of a port that nobody listens on.
func closedPort(s *scenario) string {
	s.Helper()
	l, err := new(net.ListenConfig).Listen(s.ctx, "tcp", "127.0.0.1:0")
	s.must(err)
	defer l.Close()
	return "http://" + l.Addr().String()
}

// kubeconfigOf is that of the scenario's ServiceAccount for another server.
func (s *scenario) kubeconfigOf(server string) string {
	s.Helper()
	path, err := shared.ServiceAccountKubeconfig(s.ctx, s.name, "node-termination-handler")
	s.must(err)
	text, err := os.ReadFile(path)
	s.must(err)
	other := filepath.Join(s.TempDir(), "kubeconfig")
	s.must(os.WriteFile(other, []byte(strings.ReplaceAll(string(text), shared.Config().Host, server)), 0o600))
	return other
}
