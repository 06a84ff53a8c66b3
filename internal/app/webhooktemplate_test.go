package app

import (
	"strings"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/webhook"
)

func TestABodyThatIsNoJSONIsWarnedOfIfTheHeadersSayJSON(t *testing.T) {
	const url = "https://hooks.example.com/"
	for _, tt := range []struct {
		name, url, template string
		headers             map[string]string
		warns               bool
	}{
		{name: "no JSON", url: url, template: `{"text": {{ .Kind }}}`, headers: map[string]string{"Content-type": "application/json"}, warns: true},
		{name: "no JSON, with a charset", url: url, template: `-`, headers: map[string]string{"content-type": "application/json; charset=utf-8"}, warns: true},
		{name: "no JSON of another schema", url: url, template: `-`, headers: map[string]string{"Content-Type": "application/cloudevents+json"}, warns: true},
		{name: "JSON", url: url, template: webhook.DefaultTemplate, headers: map[string]string{"Content-type": "application/json"}},
		{name: "a text", url: url, template: `{{ .Kind }}`, headers: map[string]string{"Content-type": "text/plain"}},
		{name: "nobody says what it is", url: url, template: `{{ .Kind }}`, headers: map[string]string{"Authorization": "Bearer 123"}},
		{name: "no webhook", template: `{{ .Kind }}`, headers: map[string]string{"Content-type": "application/json"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			template, err := webhook.ParseTemplate(tt.template)
			if err != nil {
				t.Fatal(err)
			}
			var out logtest.Log
			warnOfBody(out.Logger(), &options.Options{WebhookURL: tt.url, WebhookHeaders: tt.headers}, template)
			if warns := out.Has("", "level", "warn") && strings.Contains(out.String(), "phase received: line 1"); warns != tt.warns {
				t.Errorf("the log is %q", out.String())
			}
		})
	}
}

func TestAWebhookWithoutEncryptionGivesAWarning(t *testing.T) {
	for address, want := range map[string]bool{"": false, "https://hooks.example.com/x": false, "http://hooks.example.com/x": true, "HTTP://hooks": true} {
		out := &logtest.Log{}
		warnOfPlainHTTP(out.Logger(), &options.Options{WebhookURL: address})
		if got := strings.Contains(out.String(), "without encryption"); got != want || strings.Contains(out.String(), "hooks") {
			t.Errorf("%q: %s", address, out)
		}
	}
}
