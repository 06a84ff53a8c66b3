package app

import (
	"context"
	"fmt"
	"io"
	"mime"
	"net/url"
	"os"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/node-termination-handler/node-termination-handler/internal/conditions"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
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

// newConditions makes the writer of conditions of nodes; nil if the options ask for none.
func (a *App) newConditions(client kube.Client) *conditions.Writer {
	if !a.options.NodeConditions || a.options.DryRun {
		return nil
	}
	return &conditions.Writer{
		Client: client.CoreV1(), Nodes: a.nodes, Policy: Policy(a.options), Log: a.log.WithName("conditions"),
	}
}

// newObservers makes the observers that the options ask for. Events are written until ctx ends.
func (a *App) newObservers(ctx context.Context, template webhook.Template, client kube.Client) observers {
	o, told, all := a.options, report.Observers{a.metrics}, observers{pod: a.metrics.Pod}
	if o.EmitEvents {
		events := telemetry.NewEvents(ctx, telemetry.EventOptions{
			Client: client.CoreV1(), Node: a.nodes.ByName, Host: o.NodeName, Where: a.where, Annotations: o.EventAnnotations,
			Metrics: a.metrics, Log: a.log.WithName("events"),
		})
		told = append(told, events)
		all.blocked = events.Blocked
		all.pod = func(s evacuation.Answer) {
			a.metrics.Pod(s)
			events.Pod(s)
		}
	}
	if o.WebhookURL != "" {
		all.webhook = delivery.New(delivery.Options{
			URL: o.WebhookURL, Proxy: o.WebhookProxy, Headers: o.WebhookHeaders, Template: template, Phases: o.WebhookPhases,
			Node: a.nodes.ByName, Where: a.where, Pods: podNames(client),
			Delivered: a.metrics.Delivered, Log: a.log.WithName("webhook"),
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
	var sending sync.WaitGroup
	sending.Go(func() { o.webhook.Run(ctx) })
	return func() {
		cancel()
		sending.Wait()
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

// webhookTemplate is that of the file, else that of the option. The error is of type
// [options.Problems]: who parses options reads no files.
func webhookTemplate(o *options.Options) (webhook.Template, error) {
	if o.WebhookTemplateFile == "" {
		return webhook.ParseTemplate(o.WebhookTemplate)
	}
	text, err := readTemplate(o.WebhookTemplateFile)
	if err != nil {
		return webhook.Template{}, options.Problems{{Name: "webhook-template-file", Text: err.Error()}}
	}
	t, err := webhook.ParseTemplate(text)
	if err != nil {
		text := fmt.Sprintf("%s does not work: %v", o.WebhookTemplateFile, err)
		return t, options.Problems{{Name: "webhook-template-file", Text: text}}
	}
	return t, nil
}

// warnOfBody warns if the webhook announces JSON and the template makes something else: most servers
// refuse that, and nobody would know before the first interruption.
func warnOfBody(log logr.Logger, o *options.Options, t webhook.Template) {
	if o.WebhookURL == "" || !announcesJSON(o.WebhookHeaders) {
		return
	}
	if err := t.CheckJSON(); err != nil {
		logging.Warn(log, "the template of the webhook makes no JSON, but its Content-Type says JSON", "error", err)
	}
}

// warnOfPlainHTTP warns if whoever is on the way reads the messages and the headers, which often have a secret.
func warnOfPlainHTTP(log logr.Logger, o *options.Options) {
	if to, err := url.Parse(o.WebhookURL); err == nil && strings.EqualFold(to.Scheme, "http") {
		logging.Warn(log, "the webhook's URL is http, so its messages and headers are sent without encryption")
	}
}

func announcesJSON(headers map[string]string) bool {
	for name, value := range headers {
		if strings.EqualFold(name, "Content-Type") {
			form, _, err := mime.ParseMediaType(value)
			return err == nil && (form == "application/json" || strings.HasSuffix(form, "+json"))
		}
	}
	return false
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
