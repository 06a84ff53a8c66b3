package app

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/loadbalancer"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/policyfile"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// largeBytes is how many bytes the large objects have that are decoded at once; that takes up to four times as much.
const largeBytes = 8 << 20

// newTrimmer makes answers with what tenants write smaller. It returns one for all clients of the process.
func newTrimmer(policy *policyfile.Follower) *kube.Trimmer {
	pods := new(drain.PodTrimmer)
	return kube.NewTrimmer(largeBytes,
		kube.TrimmedPods(func(pod *corev1.Pod) *corev1.Pod { return pods.Trim(pod, policy.Rules()) }),
		loadbalancer.OfCluster(nil).Trimmed(loadbalancer.Trim),
	)
}

// newKubeClients returns the clients for all that is about nodes, and the namespace that
// this program is at home in.
func newKubeClients(
	o *options.Options, m *telemetry.Metrics, gate *pace.Gate, trimmer *kube.Trimmer,
) (*kube.Clients, string, error) {
	config, namespace, err := RESTConfig(o)
	if err != nil {
		return nil, "", err
	}
	config.Wrap(trimmer.Wrap)
	config.Wrap(m.Kubernetes)
	config.Wrap(kube.Backpressure(gate))
	clients, err := kube.New(config)
	return clients, namespace, err
}

// newLowPriorityClients returns the clients for Events, webhooks and conditions of nodes. They get a tenth of the
// drains' rate limit and a timeout of 10 s. The time that they wait at the gate is not part
// of the metrics of requests.
func newLowPriorityClients(
	o *options.Options, m *telemetry.Metrics, gate *pace.Gate, trimmer *kube.Trimmer,
) (*kube.Clients, error) {
	const qps, burst, timeout = 50, 100, 10 * time.Second
	config, _, err := RESTConfig(o)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst, config.Timeout = qps, burst, timeout
	config.Wrap(trimmer.Wrap)
	config.Wrap(m.Kubernetes)
	config.Wrap(kube.LowPriority(gate))
	return kube.New(config)
}
