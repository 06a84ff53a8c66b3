package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
	"github.com/node-termination-handler/node-termination-handler/internal/trace"
)

// observation is who is told what happens, besides the log.
type observation struct {
	telemetry.Observers
	// pod is told about the requests for pods.
	pod func(drain.Step)
	// run sends webhooks until ctx ends; nil: there are none.
	run func(ctx context.Context)
}

// observe makes the observers that c asks for. Kubernetes Events are written
// until ctx ends. node returns a node as it was last seen, nil if there is none.
func observe(ctx context.Context, c *config, log logr.Logger, metrics *telemetry.Metrics, template telemetry.Template, gate *pace.Gate, node func(string) *corev1.Node) (observation, error) {
	o := observation{Observers: telemetry.Observers{metrics}, pod: metrics.Pod}
	client, err := asideClients(c, metrics, gate)
	if err != nil {
		return o, err
	}
	if c.emitEvents {
		events := telemetry.NewEvents(ctx, telemetry.EventOptions{
			Client: client.CoreV1(), Node: node, Component: programName, Host: c.nodeName,
			Account: c.queue.account, Region: c.region, Annotations: c.eventAnnotations,
			Metrics: metrics, Log: log.WithName("events"),
		})
		o.Observers = append(o.Observers, events)
		o.pod = func(s drain.Step) {
			metrics.Pod(s)
			events.Pod(s)
		}
	}
	if c.webhookURL != "" {
		webhook := telemetry.NewWebhook(telemetry.WebhookOptions{
			URL: c.webhookURL, Proxy: c.webhookProxy, Headers: c.webhookHeaders, Template: template, Phases: c.webhookPhases,
			Node: node, Account: c.queue.account, Region: c.region, Pods: podsOn(client), Metrics: metrics, Log: log.WithName("webhook"),
		})
		o.Observers = append(o.Observers, webhook)
		o.run = webhook.Run
	}
	return o, nil
}

// begin lets the observers work until stop is called, which returns when they
// have said their last words.
func (o observation) begin(ctx context.Context) (stop func()) {
	if o.run == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// withTraces returns a context for all that is to be traced, if c asks for that.
// stop sends the last spans.
func withTraces(ctx context.Context, c *config, log logr.Logger) (_ context.Context, stop func()) {
	if c.traces == nil {
		return ctx, func() {}
	}
	tracer, stop := telemetry.NewTracer(ctx, c.traces, programName, cmp.Or(version, "unknown"), log.WithName("traces"))
	return trace.With(ctx, tracer), stop
}

// asideClients are for what must not take the requests of drains: they may make a
// tenth of theirs, and wait for no answer longer than any of it is worth. What they
// wait at the gate is no part of what metrics see.
func asideClients(c *config, metrics *telemetry.Metrics, gate *pace.Gate) (kubeClients, error) {
	const qps, burst, patience = 50, 100, 10 * time.Second
	config, _, err := c.kube()
	if err != nil {
		return kubeClients{}, err
	}
	config.QPS, config.Burst, config.Timeout = qps, burst, patience
	config.Wrap(metrics.Kubernetes)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return aside{next, gate} })
	return newKubeClients(config)
}

// aside lets each request wait until no other waits at the gate: those are about
// nodes, and nobody waits for these.
type aside struct {
	next http.RoundTripper
	gate *pace.Gate
}

// RoundTrip implements http.RoundTripper.
func (a aside) RoundTrip(request *http.Request) (*http.Response, error) {
	leave, err := a.gate.Enter(request.Context(), pace.Priority{Class: pace.Aside})
	if err != nil {
		return nil, err
	}
	response, err := a.next.RoundTrip(request)
	if err == nil && response.StatusCode == http.StatusTooManyRequests {
		leave(time.Second)
	} else {
		leave(0)
	}
	return response, err
}

// podsOn lists the names of the pods on a node; none where that fails, because a
// message without them is better than none.
func podsOn(client kubeClients) func(context.Context, string) []string {
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

// template is the webhook's: that of the file, else that of the option. The error
// is of type mistakes: load does not read files.
func (c *config) template() (telemetry.Template, error) {
	if c.webhookTemplateFile == "" {
		return telemetry.ParseTemplate(c.webhookTemplate)
	}
	text, err := readTemplate(c.webhookTemplateFile)
	if err != nil {
		return telemetry.Template{}, mistakes{{"webhook-template-file", err.Error()}}
	}
	t, err := telemetry.ParseTemplate(text)
	if err != nil {
		return t, mistakes{{"webhook-template-file", fmt.Sprintf("%s does not work: %v", c.webhookTemplateFile, err)}}
	}
	return t, nil
}

func readTemplate(path string) (string, error) {
	const most = 64 << 10 // more than any chat takes; the path may be a wrong one
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	switch {
	case err != nil:
		return "", err
	case len(text) > most:
		return "", fmt.Errorf("%s is larger than %d KiB", path, most>>10)
	}
	return string(text), nil
}
