package main

import (
	"bytes"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"text/template"

	"sigs.k8s.io/yaml"
)

// manifest is what Krew knows of a plugin: other fields are mistakes.
// https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/
type manifest struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string `json:"version"`
		Homepage         string `json:"homepage"`
		ShortDescription string `json:"shortDescription"`
		Description      string `json:"description"`
		Caveats          string `json:"caveats"`
		Platforms        []struct {
			Selector struct {
				MatchLabels map[string]string `json:"matchLabels"`
			} `json:"selector"`
			URI    string `json:"uri"`
			SHA256 string `json:"sha256"`
			Bin    string `json:"bin"`
		} `json:"platforms"`
	} `json:"spec"`
}

func TestTheManifestOfThePluginIsOneOfKrew(t *testing.T) {
	text, err := template.ParseFiles(filepath.Join("..", "..", "deploy", "krew", "nth.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	type archive struct{ OS, Arch, File, SHA256, Program string }
	var filled bytes.Buffer
	err = text.Execute(&filled, map[string]any{"Version": "1.2.3", "Archives": []archive{
		{"linux", "amd64", "a.tar.gz", strings.Repeat("0a", 32), programName}, {"windows", "amd64", "b.tar.gz", strings.Repeat("1b", 32), programName + ".exe"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var m manifest
	if err := yaml.UnmarshalStrict(filled.Bytes(), &m); err != nil {
		t.Fatalf("%v:\n%s", err, &filled)
	}
	if m.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || m.Kind != "Plugin" || "kubectl-"+m.Metadata.Name != pluginFile {
		t.Errorf("it is of %s %s %s", m.APIVersion, m.Kind, m.Metadata.Name)
	}
	// Krew's list shows 50 characters.
	if s := m.Spec; s.Version != "v1.2.3" || s.Homepage == "" || s.Description == "" || s.ShortDescription == "" || len(s.ShortDescription) > 50 {
		t.Errorf("its spec is %+v", s)
	}
	if len(m.Spec.Platforms) != 2 {
		t.Fatalf("its platforms are %+v", m.Spec.Platforms)
	}
	for _, p := range m.Spec.Platforms {
		if len(p.Selector.MatchLabels) != 2 || !strings.HasSuffix(p.URI, ".tar.gz") || !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(p.SHA256) || !strings.HasPrefix(p.Bin, programName) {
			t.Errorf("a platform is %+v", p)
		}
	}
}
