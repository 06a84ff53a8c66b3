package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is who the program runs as, nonroot in distroless images.
const user = "65532:65532"

// An image is what a registry gets: the image of several platforms, and what refers
// to it.
type image struct {
	tag       string
	index     v1.ImageIndex
	referrers []v1.Image // bills of materials, of each platform's image and of the index
	bom       []byte     // of the index
	programs  []program
}

// image makes the image of all platforms in dir, as an OCI layout, tells its digest,
// and pushes it to reference, unless that is empty.
func (s source) image(ctx context.Context, dir, reference string, out io.Writer) error {
	b, err := s.newBuilder(ctx)
	if err != nil {
		return err
	}
	defer b.close()
	var programs []program
	for _, p := range s.platforms {
		if !p.inImage() || s.fips && p.os == windows {
			continue
		}
		made, err := b.program(ctx, p, s.fips)
		if err != nil {
			return err
		}
		programs = append(programs, made)
	}
	i, err := b.compose(ctx, programs, s.fips)
	if err != nil {
		return err
	}
	if err := i.write(dir); err != nil {
		return err
	}
	digest, err := i.index.Digest()
	if err != nil {
		return err
	}
	fmt.Fprintln(out, digest)
	if reference == "" {
		return nil
	}
	return pushLayout(ctx, dir, reference)
}

// compose makes the image of programs for Linux and Windows.
func (b *builder) compose(ctx context.Context, programs []program, fips bool) (*image, error) {
	i := &image{tag: b.version, programs: programs}
	if fips {
		i.tag += "-fips"
	}
	roots, err := b.roots(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the certificates: %w", err)
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	base, err := layer(baseFiles())
	if err != nil {
		return nil, err
	}
	for _, p := range programs {
		if p.os != windows { // which has its own certificates
			p.components = append(slices.Clone(p.components), roots)
		}
		made, err := b.imageOf(p, base)
		if err != nil {
			return nil, err
		}
		if made, err = b.configure(made, p, i.tag); err != nil {
			return nil, err
		}
		bom, err := b.bom(cyclonedx.ComponentTypeContainer, p.components, p.settings()...)
		if err != nil {
			return nil, err
		}
		descriptor, err := partial.Descriptor(made)
		if err != nil {
			return nil, err
		}
		if err := i.refer(*descriptor, bom); err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: made, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.os, Architecture: p.arch}},
		})
	}
	i.index = mutate.Annotations(index, b.labels(i.tag)).(v1.ImageIndex)
	if i.bom, err = b.bom(cyclonedx.ComponentTypeContainer, append(union(programs), roots)); err != nil {
		return nil, err
	}
	descriptor, err := partial.Descriptor(i.index)
	if err != nil {
		return nil, err
	}
	return i, i.refer(*descriptor, i.bom)
}

// imageOf is the image for one platform, of which nothing is said so far.
func (b *builder) imageOf(p program, base v1.Layer) (v1.Image, error) {
	content, err := os.ReadFile(p.path)
	if err != nil {
		return nil, err
	}
	itself, licences := file{name: p.file(), mode: 0o755, content: content}, b.licenceFiles(p.components)
	made := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if p.os == windows {
		only, err := layer(windowsFiles(itself, licences))
		if err != nil {
			return nil, err
		}
		return mutate.AppendLayers(made, only)
	}
	top, err := layer(append(licences, itself))
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(made, base, top)
}

// configure says what an image is for and how it runs.
func (b *builder) configure(made v1.Image, p program, tag string) (v1.Image, error) {
	config, err := made.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = p.os, p.arch
	config.Config = v1.Config{
		User: user, Entrypoint: []string{"/" + programName}, WorkingDir: "/", Labels: b.labels(tag),
	}
	if p.os == windows { // its directory depends on containerd, and its user is the pod's
		config.Config = v1.Config{Entrypoint: []string{p.file()}, Labels: b.labels(tag)}
	}
	return mutate.ConfigFile(made, config)
}

// labels are those of the image, and the annotations of its index: registries show
// the one or the other.
func (b *builder) labels(tag string) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":         programName,
		"org.opencontainers.image.description":   "Drains Kubernetes nodes before AWS takes their instances away.",
		"org.opencontainers.image.version":       tag,
		"org.opencontainers.image.revision":      b.commit,
		"org.opencontainers.image.source":        repository,
		"org.opencontainers.image.url":           repository,
		"org.opencontainers.image.documentation": repository + "/tree/main/docs",
		"org.opencontainers.image.licenses":      "Apache-2.0",
	}
}

// refer adds a bill of materials of what the descriptor names.
func (i *image) refer(of v1.Descriptor, bom []byte) error {
	made, err := artifact(v1.Manifest{
		ArtifactType: sbomType,
		Subject:      &v1.Descriptor{MediaType: of.MediaType, Digest: of.Digest, Size: of.Size},
		Config:       v1.Descriptor{MediaType: "application/vnd.oci.empty.v1+json", Data: []byte(emptyConfig)},
	}, []byte(emptyConfig), static.NewLayer(bom, types.MediaType(sbomType)))
	if err != nil {
		return err
	}
	i.referrers = append(i.referrers, made)
	return nil
}

// tagAnnotation names an image of a layout.
const tagAnnotation = "org.opencontainers.image.ref.name"

// write writes the image to dir, which is emptied first: the index, by its tag, then
// what refers to it.
func (i *image) write(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	path, err := layout.Write(dir, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	if err := path.AppendIndex(i.index, layout.WithAnnotations(map[string]string{tagAnnotation: i.tag})); err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	for _, r := range i.referrers {
		if err := path.AppendImage(r); err != nil {
			return fmt.Errorf("write the bill of materials: %w", err)
		}
	}
	return nil
}

// credentials are those of a registry. REGISTRY_USER and REGISTRY_PASSWORD name them for one call, so that
// nothing has to be written to disk and no container engine is needed. Without them they come from the
// configuration of Docker.
func credentials() authn.Keychain {
	user, password := os.Getenv("REGISTRY_USER"), os.Getenv("REGISTRY_PASSWORD")
	if user == "" && password == "" {
		return authn.DefaultKeychain
	}
	return given{Username: user, Password: password}
}

// given is a Keychain for a single registry.
type given authn.AuthConfig

// Resolve implements authn.Keychain.
func (g given) Resolve(authn.Resource) (authn.Authenticator, error) {
	return authn.FromConfig(authn.AuthConfig(g)), nil
}

// pushLayout pushes the image that dir holds to reference, with what refers to it.
func pushLayout(ctx context.Context, dir, reference string) error {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return err
	}
	all, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return fmt.Errorf("read the image: %w", err)
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		return err
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(credentials())}
	for _, d := range manifest.Manifests {
		if d.Annotations[tagAnnotation] != "" {
			index, err := all.ImageIndex(d.Digest)
			if err != nil {
				return err
			}
			if err := remote.WriteIndex(ref, index, options...); err != nil {
				return fmt.Errorf("push %s: %w", reference, err)
			}
			continue
		}
		referrer, err := all.Image(d.Digest)
		if err != nil {
			return err
		}
		if err := remote.Write(ref.Context().Digest(d.Digest.String()), referrer, options...); err != nil {
			return fmt.Errorf("push the bill of materials of %s: %w", reference, err)
		}
	}
	return nil
}

// describeImage writes what an image is made of to path.cdx.json, and where it comes
// from to path.provenance.json.
func (b *builder) describeImage(i *image, path string) error {
	if err := os.WriteFile(path+".cdx.json", i.bom, 0o644); err != nil {
		return err
	}
	digest, err := i.index.Digest()
	if err != nil {
		return err
	}
	manifest, err := i.index.IndexManifest()
	if err != nil {
		return err
	}
	subjects := []resource{{Name: programName + ":" + i.tag, Digest: map[string]string{digest.Algorithm: digest.Hex}}}
	for _, m := range manifest.Manifests {
		subjects = append(subjects, resource{
			Name:   fmt.Sprintf("%s:%s (%s)", programName, i.tag, m.Platform),
			Digest: map[string]string{m.Digest.Algorithm: m.Digest.Hex},
		})
	}
	// The platforms differ in nothing but the platform.
	made := i.programs[0]
	made.components = union(i.programs)
	return writeJSON(path+".provenance.json", b.provenance(subjects, &made))
}

// emptyConfig is what OCI says to put where an artifact has no configuration.
const emptyConfig = "{}"

// artifact is an image of one layer that is no file system. The manifest says what it is, and gets the digests.
func artifact(manifest v1.Manifest, config []byte, layer v1.Layer) (v1.Image, error) {
	descriptor, err := partial.Descriptor(layer)
	if err != nil {
		return nil, err
	}
	digest, size, err := v1.SHA256(bytes.NewReader(config))
	if err != nil {
		return nil, err
	}
	manifest.SchemaVersion, manifest.MediaType = 2, types.OCIManifestSchema1
	manifest.Config.Digest, manifest.Config.Size = digest, size
	manifest.Layers = []v1.Descriptor{*descriptor}
	text, err := json.Marshal(manifest)
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(&artifactCore{text, config, layer})
}

// An artifactCore implements partial.CompressedImageCore.
type artifactCore struct {
	manifest, config []byte
	layer            v1.Layer
}

// RawConfigFile and those below implement partial.CompressedImageCore.
func (a *artifactCore) RawConfigFile() ([]byte, error) { return a.config, nil }

func (a *artifactCore) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

func (a *artifactCore) RawManifest() ([]byte, error) { return a.manifest, nil }

func (a *artifactCore) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	if own, err := a.layer.Digest(); err != nil || own != h {
		return nil, fmt.Errorf("there is no layer %s", h)
	}
	return a.layer, nil
}

// licenceFiles are the files of the image that say under which terms it may be used.
func (b *builder) licenceFiles(components []component) []file {
	return []file{
		{name: "licenses/", mode: 0o755},
		{name: "licenses/" + licenceFile, mode: 0o644, content: b.licence},
		{name: "licenses/" + noticesFile, mode: 0o644, content: notices(components)},
	}
}

// rootfs writes to dir the files of the image besides the program, for an image
// that the Dockerfile makes.
func (s source) rootfs(ctx context.Context, dir, path string) error {
	b, err := s.newBuilder(ctx)
	if err != nil {
		return err
	}
	defer b.close()
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	settings := map[string]string{}
	for _, setting := range info.Settings {
		settings[setting.Key] = setting.Value
	}
	made := program{platform: platform{settings["GOOS"], settings["GOARCH"]}, path: path}
	fips := settings["GOFIPS140"] != "" && settings["GOFIPS140"] != "off"
	if made, err = b.examine(ctx, made, fips); err != nil {
		return err
	}
	roots, err := b.roots(ctx)
	if err != nil {
		return err
	}
	for _, f := range append(baseFiles(), b.licenceFiles(append(made.components, roots))...) {
		target, mode := filepath.Join(dir, filepath.FromSlash(f.name)), fs.FileMode(f.mode&0o777)
		if f.mode&0o1000 != 0 {
			mode |= fs.ModeSticky
		}
		if strings.HasSuffix(f.name, "/") {
			err = os.MkdirAll(target, mode)
		} else {
			err = os.WriteFile(target, f.content, mode)
		}
		if err == nil {
			err = os.Chmod(target, mode) // whatever the umask is
		}
		if err != nil {
			return err
		}
	}
	return nil
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
		{
			name: "etc/passwd", mode: 0o644,
			content: []byte("root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"),
		},
		{name: "etc/ssl/", mode: 0o755},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: roots.Bytes()},
		{name: "tmp/", mode: 0o1777},
	}
}

// layer is a layer with files in this order.
func layer(files []file) (v1.Layer, error) {
	archive, err := pack(files)
	if err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(archive)), nil
	}, tarball.WithMediaType(types.OCILayer))
}
