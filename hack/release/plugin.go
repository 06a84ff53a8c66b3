package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
)

// pluginFile is the manifest of the plugin of kubectl, for Krew.
const pluginFile = "nth.yaml"

// A pluginArchive is an archive with the program, as the template of the manifest has it.
type pluginArchive struct{ OS, Arch, File, SHA256, Program string }

// plugin writes to dir the manifest of the plugin of kubectl, which is the program under another name. It is made of
// the archives in dir, without those of FIPS.
// https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/
func (s source) plugin(dir string) error {
	text, err := os.ReadFile(filepath.Join(s.root, "deploy", "krew", pluginFile))
	if err != nil {
		return err
	}
	manifest, err := template.New(pluginFile).Option("missingkey=error").Parse(string(text))
	if err != nil {
		return err
	}
	var archives []pluginArchive
	for _, p := range s.platforms {
		name := fmt.Sprintf("%s_%s_%s_%s.tar.gz", programName, s.version, p.os, p.arch)
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		archives = append(archives, pluginArchive{
			p.os, p.arch, name, fmt.Sprintf("%x", sha256.Sum256(content)), program{platform: p}.file(),
		})
	}
	var out bytes.Buffer
	err = manifest.Execute(&out, struct {
		Version  string
		Archives []pluginArchive
	}{s.version, archives})
	if err != nil {
		return fmt.Errorf("fill in the manifest of the plugin: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, pluginFile), out.Bytes(), 0o644)
}
