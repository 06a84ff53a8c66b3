package app

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/conditions"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
	"github.com/node-termination-handler/node-termination-handler/internal/webhook"
	"github.com/node-termination-handler/node-termination-handler/internal/webhook/delivery"
)

// observers are told what happens, beside the log: metrics, and Events and the webhook if
// the options ask for them.
type observers struct {
	report.Observer
	pod     func(evacuation.Answer)  // is told about the requests for pods
	blocked func(evacuation.Blocked) // is told what keeps pods on their nodes; nil: nobody wants to know
	webhook *delivery.Sender         // nil: none
}

// telling is what observers work with.
type telling struct {
	metrics  *telemetry.Metrics
	template webhook.Template // of the webhook
	client   kube.Client      // of low priority
	node     func(name string) *corev1.Node
	where    func() (account, region string) // of instances whose notice does not say; empty: unknown
}

// newConditions makes the writer of conditions of nodes; nil if the options ask for none.
func newConditions(
	o *options.Options, log logr.Logger, client kube.Client, nodes *cluster.Cluster,
) *conditions.Writer {
	if !o.NodeConditions || o.DryRun {
		return nil
	}
	return &conditions.Writer{
		Client: client.CoreV1(), Nodes: nodes, Policy: Policy(o), Log: log.WithName("conditions"),
	}
}

// newObservers makes the observers that the options ask for. Events are written until ctx ends.
func newObservers(ctx context.Context, o *options.Options, log logr.Logger, t telling) observers {
	told, all := report.Observers{t.metrics}, observers{pod: t.metrics.Pod}
	if o.EmitEvents {
		events := telemetry.NewEvents(ctx, telemetry.EventOptions{
			Client: t.client.CoreV1(), Node: t.node, Host: o.NodeName, Where: t.where, Annotations: o.EventAnnotations,
			Metrics: t.metrics, Log: log.WithName("events"),
		})
		told = append(told, events)
		all.blocked = events.Blocked
		all.pod = func(s evacuation.Answer) {
			t.metrics.Pod(s)
			events.Pod(s)
		}
	}
	if o.WebhookURL != "" {
		all.webhook = delivery.New(delivery.Options{
			URL: o.WebhookURL, Proxy: o.WebhookProxy, Headers: o.WebhookHeaders, Template: t.template, Phases: o.WebhookPhases,
			Node: t.node, Where: t.where, Pods: podNames(t.client),
			Delivered: t.metrics.Delivered, Log: log.WithName("webhook"),
		})
		told = append(told, all.webhook)
	}
	all.Observer = report.Once(told)
	return all
}

// start lets the webhook send until stop is called, which returns when it has sent its last
// messages.
func (o observers) start(ctx context.Context) (stop func()) {
	if o.webhook == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.webhook.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// podNames returns a function that lists the names of the pods on a node: none if that
// fails, because a message without them is better than no message.
func podNames(client kube.Client) func(ctx context.Context, node string) []string {
	return func(ctx context.Context, node string) []string {
		list, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
			FieldSelector:   fields.OneTermEqualSelector("spec.nodeName", node).String(),
			ResourceVersion: "0", // from the API server's cache
		})
		if err != nil {
			return nil
		}
		var names []string
		for k := range list.Items {
			names = append(names, list.Items[k].Name)
		}
		return names
	}
}
