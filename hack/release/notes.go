package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// notes is what the changelog says about the version.
func (s source) notes() (string, error) {
	changelog, err := os.ReadFile(filepath.Join(s.root, "CHANGELOG.md"))
	if err != nil {
		return "", err
	}
	return section(string(changelog), s.version)
}

// section is the text below the heading of a version, such as "## 1.2.3 (2026-01-31)".
func section(changelog, version string) (string, error) {
	for part := range strings.SplitSeq("\n"+changelog, "\n## ") {
		heading, text, _ := strings.Cut(part, "\n")
		if name, _, _ := strings.Cut(heading, " "); name == version {
			if text = strings.TrimSpace(text); text != "" {
				return text + "\n", nil
			}
		}
	}
	return "", fmt.Errorf("CHANGELOG.md says nothing about %s: move what is under Unreleased to a heading for it", version)
}
