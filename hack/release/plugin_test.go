package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheManifestOfThePluginNamesTheArchives(t *testing.T) {
	dir := t.TempDir()
	if err := tree.plugin(dir); err == nil {
		t.Error("there is a manifest without archives")
	}
	var want []string
	for _, p := range allPlatforms {
		name := fmt.Sprintf("node-termination-handler_1.2.3_%s_%s.tar.gz", p.os, p.arch)
		content := []byte("archive for " + p.String())
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
		program := "node-termination-handler"
		if p.os == "windows" {
			program += ".exe"
		}
		want = append(want, fmt.Sprintf("os: %s\n          arch: %s\n      uri: %s/releases/download/v1.2.3/%s\n      sha256: %x\n      bin: %s\n",
			p.os, p.arch, repository, name, sha256.Sum256(content), program))
	}
	if err := tree.plugin(dir); err != nil {
		t.Fatal(err)
	}
	manifest := readText(t, dir, "nth.yaml")
	for _, part := range append(want, "\n  version: v1.2.3\n") {
		if !strings.Contains(manifest, part) {
			t.Errorf("the manifest lacks\n%s", part)
		}
	}
	if strings.Contains(manifest, "{{") {
		t.Errorf("the manifest is not filled in:\n%s", manifest)
	}
}
