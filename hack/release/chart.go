package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

// chart packs the chart into dir as the version of the source, and returns its path.
// Helm writes the time into the package: it is packed again without, and with our
// licence.
func (s source) chart(ctx context.Context, dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	work, err := os.MkdirTemp("", "release-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	helm, env := filepath.Join(s.root, "hack", "helm"), append(os.Environ(), "GOWORK=off")
	_, err = output(ctx, helm, env, "tool", "helm", "package", filepath.Join(s.root, "deploy", "helm", programName),
		"--version="+s.version, "--app-version="+s.version, "--destination="+work)
	if err != nil {
		return "", err
	}
	name := fmt.Sprintf("%s-%s.tgz", programName, s.version)
	packed, err := os.ReadFile(filepath.Join(work, name))
	if err != nil {
		return "", err
	}
	files, err := unpack(bytes.NewReader(packed))
	if err != nil {
		return "", fmt.Errorf("unpack the chart: %w", err)
	}
	licence, err := os.ReadFile(filepath.Join(s.root, "LICENSE"))
	if err != nil {
		return "", err
	}
	licencePath := path.Join(programName, licenceFile)
	files = slices.DeleteFunc(files, func(f file) bool { return f.name == licencePath })
	files = append(files, file{name: licencePath, content: licence})
	for i := range files {
		files[i].mode = 0o644
	}
	// Helm wants Chart.yaml first; the rest is in the order of the names.
	first := path.Join(programName, "Chart.yaml")
	slices.SortFunc(files, func(a, b file) int {
		switch {
		case a.name == first:
			return -1
		case b.name == first:
			return 1
		}
		return strings.Compare(a.name, b.name)
	})
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	target := filepath.Join(dir, name)
	return target, writePacked(target, files)
}

// chartLayout writes the packed chart at path to dir as an OCI layout, as helm push would send it. So its digest is
// known before it is published.
// https://helm.sh/docs/topics/registries/#helm-chart-manifest
func (b *builder) chartLayout(path, dir string) error {
	packed, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	files, err := unpack(bytes.NewReader(packed))
	if err != nil {
		return fmt.Errorf("unpack the chart: %w", err)
	}
	config, err := yaml.YAMLToJSON(files[0].content)
	if err != nil {
		return fmt.Errorf("read %s: %w", files[0].name, err)
	}
	made, err := artifact(v1.Manifest{
		Config:      v1.Descriptor{MediaType: "application/vnd.cncf.helm.config.v1+json"},
		Annotations: b.labels(b.version),
	}, config, static.NewLayer(packed, "application/vnd.cncf.helm.chart.content.v1.tar+gzip"))
	if err != nil {
		return err
	}
	target, err := layout.Write(dir, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return fmt.Errorf("write the chart: %w", err)
	}
	err = target.AppendImage(made, layout.WithAnnotations(map[string]string{tagAnnotation: b.version}))
	if err != nil {
		return fmt.Errorf("write the chart: %w", err)
	}
	return nil
}
