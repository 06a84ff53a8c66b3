package main

import (
	"bytes"
	"fmt"
	"strings"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

// sbomType is the media type of a bill of materials.
const sbomType = "application/vnd.cyclonedx+json"

// bom is what a program or an image is made of, as CycloneDX. It has neither a serial
// number nor a time: the same components give the same text.
func (b *builder) bom(
	kind cyclonedx.ComponentType, components []component, properties ...cyclonedx.Property,
) ([]byte, error) {
	subject := library(component{path: modulePath, version: b.version, licences: []string{"Apache-2.0"}})
	subject.Type = kind
	if kind == cyclonedx.ComponentTypeContainer {
		subject.Name, subject.PackageURL = programName, ""
		subject.BOMRef = programName + ":" + b.version
	}
	subject.ExternalReferences = &[]cyclonedx.ExternalReference{{Type: cyclonedx.ERTypeVCS, URL: repository}}
	if len(properties) > 0 {
		subject.Properties = &properties
	}
	var libraries []cyclonedx.Component
	var refs []string
	for _, c := range components {
		libraries = append(libraries, library(c))
		refs = append(refs, c.packageURL())
	}
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Component: &subject}
	bom.Components = &libraries
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: subject.BOMRef, Dependencies: &refs}}
	var out bytes.Buffer
	err := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	return out.Bytes(), err
}

const modulePath = "github.com/node-termination-handler/node-termination-handler"

func (c component) packageURL() string { return fmt.Sprintf("pkg:golang/%s@%s", c.path, c.version) }

func library(c component) cyclonedx.Component {
	l := cyclonedx.Component{
		BOMRef: c.packageURL(), PackageURL: c.packageURL(),
		Type: cyclonedx.ComponentTypeLibrary, Name: c.path, Version: c.version,
	}
	if len(c.licences) == 1 {
		l.Licenses = &cyclonedx.Licenses{{License: &cyclonedx.License{ID: c.licences[0]}}}
	} else {
		l.Licenses = &cyclonedx.Licenses{{Expression: expression(c.licences)}}
	}
	if c.sum != "" {
		l.Properties = &[]cyclonedx.Property{{Name: "go:sum", Value: c.sum}}
	}
	return l
}

// settings are how a program was built, as the linker has noted it.
func (p program) settings() []cyclonedx.Property {
	properties := []cyclonedx.Property{{Name: "go:version", Value: p.info.GoVersion}}
	for _, s := range p.info.Settings {
		if s.Value != "" && (s.Key == "-trimpath" || s.Key == "CGO_ENABLED" || strings.HasPrefix(s.Key, "GO")) {
			properties = append(properties, cyclonedx.Property{Name: "go:build:" + s.Key, Value: s.Value})
		}
	}
	return properties
}
