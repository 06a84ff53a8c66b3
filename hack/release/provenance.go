package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A statement says where files come from: in-toto's, with a predicate of SLSA. It
// is not signed: whoever publishes the files does that.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     predicate  `json:"predicate"`
}

type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

type predicate struct {
	BuildDefinition buildDefinition `json:"buildDefinition"`
	RunDetails      runDetails      `json:"runDetails"`
}

type buildDefinition struct {
	BuildType            string            `json:"buildType"`
	ExternalParameters   map[string]string `json:"externalParameters"`
	InternalParameters   map[string]string `json:"internalParameters,omitempty"`
	ResolvedDependencies []resource        `json:"resolvedDependencies"`
}

type runDetails struct {
	Builder  builderID    `json:"builder"`
	Metadata *runMetadata `json:"metadata,omitempty"`
}

type builderID struct {
	ID      string            `json:"id"`
	Version map[string]string `json:"version,omitempty"`
}

type runMetadata struct {
	InvocationID string `json:"invocationId"`
}

const (
	statementType  = "https://in-toto.io/Statement/v1"
	provenanceType = "https://slsa.dev/provenance/v1"
	// buildType names how to build again from the parameters: the section says it.
	buildType = repository + "/blob/main/CONTRIBUTING.md#release"
)

var gitCommit = regexp.MustCompile(`^[0-9a-f]{40}$`)

// provenance is the statement about subjects that were made of a program; of
// none for the chart. It has no times: the same build says the same.
func (b *builder) provenance(subjects []resource, made *program) statement {
	code := resource{URI: "git+" + repository}
	if gitCommit.MatchString(b.commit) {
		code.URI += "@" + b.commit
		code.Digest = map[string]string{"gitCommit": b.commit}
	}
	dependencies := []resource{code}
	parameters := map[string]string{"source": code.URI, "version": b.version}
	var settings map[string]string
	if made != nil {
		settings = map[string]string{}
		for _, s := range made.info.Settings {
			if strings.HasPrefix(s.Key, "GO") || s.Key == "CGO_ENABLED" {
				settings[s.Key] = s.Value
			}
		}
		for _, c := range made.components {
			dependencies = append(dependencies, resource{URI: c.packageURL(), Digest: dirHash(c.sum)})
		}
	}
	details := runDetails{Builder: builderID{ID: b.builder, Version: map[string]string{"go": b.toolchain}}}
	if b.run != "" {
		details.Metadata = &runMetadata{b.run}
	}
	return statement{
		Type: statementType, Subject: subjects, PredicateType: provenanceType,
		Predicate: predicate{
			BuildDefinition: buildDefinition{
				BuildType:            buildType,
				ExternalParameters:   parameters,
				InternalParameters:   settings,
				ResolvedDependencies: dependencies,
			},
			RunDetails: details,
		},
	}
}

// dirHash is the digest that in-toto knows a module's sum by: in hexadecimal.
func dirHash(sum string) map[string]string {
	hash, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(sum, "h1:"))
	if sum == "" || err != nil {
		return nil
	}
	return map[string]string{"dirHash": hex.EncodeToString(hash)}
}

// attest writes the provenance of the file at path to path.provenance.json.
func (b *builder) attest(path string, made *program) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	subjects := []resource{{Name: filepath.Base(path), Digest: map[string]string{"sha256": sum}}}
	return writeJSON(path+".provenance.json", b.provenance(subjects, made))
}

func writeJSON(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
