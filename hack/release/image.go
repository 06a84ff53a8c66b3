package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is who the program runs as, nonroot in distroless images.
const user = "65532:65532"

// image writes the image of all platforms to dir as an OCI layout, tells its
// digest, and pushes it to reference, unless that is empty.
func (s source) image(ctx context.Context, dir, reference string, out io.Writer) error {
	work, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	binaries := map[platform]string{}
	for _, p := range imagePlatforms {
		binaries[p] = filepath.Join(work, p.os+"-"+p.arch)
		if err := s.build(ctx, p, binaries[p]); err != nil {
			return err
		}
	}
	index, err := s.index(binaries)
	if err != nil {
		return fmt.Errorf("make the image: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if _, err := layout.Write(dir, index); err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Fprintln(out, digest)
	if reference == "" {
		return nil
	}
	return push(ctx, index, reference)
}

func push(ctx context.Context, index v1.ImageIndex, reference string) error {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return err
	}
	if err := remote.WriteIndex(ref, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return fmt.Errorf("push %s: %w", reference, err)
	}
	return nil
}

// index is the image of several platforms.
func (s source) index(binaries map[platform]string) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	base, err := layer(baseFiles())
	if err != nil {
		return nil, err
	}
	for _, p := range imagePlatforms { // a map has no order
		program, err := os.ReadFile(binaries[p])
		if err != nil {
			return nil, err
		}
		top, err := layer([]file{{name: programName, mode: 0o755, content: program}})
		if err != nil {
			return nil, err
		}
		image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
		if image, err = mutate.AppendLayers(image, base, top); err != nil {
			return nil, err
		}
		config, err := image.ConfigFile()
		if err != nil {
			return nil, err
		}
		config = config.DeepCopy()
		config.OS, config.Architecture = p.os, p.arch
		config.Config = v1.Config{
			User: user, Entrypoint: []string{"/" + programName}, WorkingDir: "/",
			Labels: map[string]string{
				"org.opencontainers.image.title":    programName,
				"org.opencontainers.image.version":  s.version,
				"org.opencontainers.image.revision": s.commit,
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		}
		if image, err = mutate.ConfigFile(image, config); err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.os, Architecture: p.arch}},
		})
	}
	return index, nil
}

// A file of the image; a directory where its name ends in a slash.
type file struct {
	name    string
	mode    int64
	content []byte
}

// baseFiles are what distroless/static has that the program may need: who it
// is, a place for temporary files, and whom to trust.
func baseFiles() []file {
	var roots bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil { // a file has no place for constraints
			_ = pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a Buffer takes all
		}
	}
	return []file{
		{name: "etc/", mode: 0o755},
		{name: "etc/group", mode: 0o644, content: []byte("root:x:0:\nnonroot:x:65532:\n")},
		{name: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")},
		{name: "etc/ssl/", mode: 0o755},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: roots.Bytes()},
		{name: "tmp/", mode: 0o1777},
	}
}

// layer is a layer with files in this order, all of root's and of 1970.
func layer(files []file) (v1.Layer, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, f := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
		if f.name[len(f.name)-1] == '/' {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(archive.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
}
