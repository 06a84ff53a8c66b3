package app

import (
	"fmt"
	"io"
	"mime"
	"net/url"
	"os"
	"strings"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/webhook"
)

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
