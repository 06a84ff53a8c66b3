package app

import (
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// newKubeClients returns the clients for all that is about nodes, and the namespace that
// this program is at home in.
func newKubeClients(o *options.Options, m *telemetry.Metrics, gate *pace.Gate) (*kube.Clients, string, error) {
	config, namespace, err := RESTConfig(o)
	if err != nil {
		return nil, "", err
	}
	config.Wrap(m.Kubernetes)
	config.Wrap(kube.Backpressure(gate))
	clients, err := kube.New(config)
	return clients, namespace, err
}

// newLowPriorityClients returns the clients for Events, webhooks and conditions of nodes. They get a tenth of the
// drains' rate limit and a timeout of 10 s. The time that they wait at the gate is not part
// of the metrics of requests.
func newLowPriorityClients(o *options.Options, m *telemetry.Metrics, gate *pace.Gate) (*kube.Clients, error) {
	const qps, burst, timeout = 50, 100, 10 * time.Second
	config, _, err := RESTConfig(o)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst, config.Timeout = qps, burst, timeout
	config.Wrap(m.Kubernetes)
	config.Wrap(kube.LowPriority(gate))
	return kube.New(config)
}
