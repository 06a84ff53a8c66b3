package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

var tree = source{root: filepath.Join("..", ".."), version: "1.2.3", commit: "abc"}

// index makes an image of files that stand for the binaries, as it is on disk.
func index(t *testing.T) v1.ImageIndex {
	t.Helper()
	binaries := map[platform]string{}
	for _, p := range imagePlatforms {
		binaries[p] = filepath.Join(t.TempDir(), p.arch)
		if err := os.WriteFile(binaries[p], []byte("program for "+p.arch), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	i, err := tree.index(binaries)
	if err != nil {
		t.Fatal(err)
	}
	path, err := layout.Write(t.TempDir(), i)
	if err != nil {
		t.Fatal(err)
	}
	written, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	return written
}

func digest(t *testing.T, i interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	h, err := i.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

func TestTheSameBinariesGiveTheSameImage(t *testing.T) {
	if a, b := digest(t, index(t)), digest(t, index(t)); a != b {
		t.Errorf("%s, then %s", a, b)
	}
}

func TestTheImageIsWhatTheDockerfileSays(t *testing.T) {
	dockerfile, err := os.ReadFile(filepath.Join(tree.root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"USER " + user + "\n", `ENTRYPOINT ["/` + programName + `"]`} {
		if !strings.Contains(string(dockerfile), line) {
			t.Errorf("the Dockerfile lacks %q", line)
		}
	}
	i := index(t)
	if err := validate.Index(i); err != nil {
		t.Error(err)
	}
	manifest, err := i.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var architectures []string
	for _, m := range manifest.Manifests {
		architectures = append(architectures, m.Platform.String())
		image, err := i.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if c := config.Config; c.User != user || !slices.Equal(c.Entrypoint, []string{"/" + programName}) || config.Platform().String() != m.Platform.String() {
			t.Errorf("config of %s: %+v", m.Platform, config)
		}
		files := unpack(t, image)
		if got := files[programName]; got.Mode != 0o755 || string(got.content) != "program for "+m.Platform.Architecture {
			t.Errorf("the program is %q with mode %o", got.content, got.Mode)
		}
		if got := files["tmp"]; got.Header == nil || got.Mode != 0o1777 {
			t.Errorf("/tmp: %+v", got.Header)
		}
		if roots := x509.NewCertPool(); !roots.AppendCertsFromPEM(files["etc/ssl/certs/ca-certificates.crt"].content) {
			t.Error("there are no certificates in it")
		}
	}
	if !slices.Equal(architectures, []string{"linux/amd64", "linux/arm64"}) {
		t.Errorf("platforms: %v", architectures)
	}
}

type unpacked struct {
	*tar.Header
	content []byte
}

func unpack(t *testing.T, image v1.Image) map[string]unpacked {
	t.Helper()
	all := map[string]unpacked{}
	stream := mutate.Extract(image)
	defer stream.Close()
	for r := tar.NewReader(stream); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 0 || header.ModTime.Unix() != 0 {
			t.Errorf("%s is of user %d and of %s", header.Name, header.Uid, header.ModTime)
		}
		all[strings.TrimSuffix(header.Name, "/")] = unpacked{header, content}
	}
}

// newRegistry returns the address of a registry in memory.
func newRegistry(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func TestAnImageIsPushedAsItIs(t *testing.T) {
	reference := newRegistry(t) + "/team/" + programName + ":1.2.3"
	pushed := index(t)
	if err := push(t.Context(), pushed, reference); err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(reference)
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := remote.Index(ref)
	if err != nil {
		t.Fatal(err)
	}
	if digest(t, pulled) != digest(t, pushed) {
		t.Error("another image came back")
	}
}

func TestTheChartIsPackedAndPushed(t *testing.T) {
	dir, host := t.TempDir(), newRegistry(t)
	program, err := goTool(t, "-n", "helm")
	if err != nil {
		t.Fatal(err)
	}
	helm := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), strings.TrimSpace(program), args...)
		cmd.Env = []string{"HOME=" + dir}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
		return string(out)
	}
	helm("package", filepath.Join(tree.root, "deploy", "helm", programName), "--version=1.2.3", "--app-version=1.2.3", "--destination="+dir)
	helm("push", filepath.Join(dir, programName+"-1.2.3.tgz"), "oci://"+host+"/charts", "--plain-http")
	shown := helm("show", "chart", "oci://"+host+"/charts/"+programName, "--version=1.2.3", "--plain-http")
	if !strings.Contains(shown, "appVersion: 1.2.3") {
		t.Errorf("what came back: %s", shown)
	}
	rendered := helm("template", "nth", "oci://"+host+"/charts/"+programName, "--version=1.2.3", "--plain-http", "--set=queueURL=q,prometheusRule.create=true")
	if !strings.Contains(rendered, programName+":1.2.3") || !strings.Contains(rendered, "alert:") {
		t.Errorf("what it renders: %s", rendered)
	}
}

func goTool(t *testing.T, args ...string) (string, error) {
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"tool"}, args...)...)
	cmd.Dir = filepath.Join("..", "helm")
	out, err := cmd.Output()
	return string(out), err
}

func TestTheBuildCommandIsThatOfTheDockerfile(t *testing.T) {
	dockerfile, err := os.ReadFile(filepath.Join(tree.root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	command, err := buildCommand(string(dockerfile))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"CGO_ENABLED=0 ", "GOARCH=$TARGETARCH", "-trimpath", "-buildvcs=false", "-o /" + programName, "./cmd/" + programName} {
		if !strings.Contains(command, part) {
			t.Errorf("%q lacks %q", command, part)
		}
	}
	for _, wrong := range []string{"", "FROM x\nRUN make\n", "\nRUN CGO_ENABLED=0 go build -o /other ./cmd/other\n"} {
		if command, err := buildCommand(wrong); err == nil {
			t.Errorf("%q has the command %q", wrong, command)
		}
	}
}

func TestTheSBOMNamesEveryModuleOfTheBinary(t *testing.T) {
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, self, 0o600); err != nil {
		t.Fatal(err)
	}
	var first []byte
	for range 2 {
		if err := writeSBOM(path, "1.2.3"); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path + ".cdx.json")
		if err != nil {
			t.Fatal(err)
		}
		if first != nil && !bytes.Equal(first, text) {
			t.Error("the second is another")
		}
		first = text
	}
	var bom struct {
		BOMFormat  string
		Components []struct{ Name, Version, Purl string }
	}
	if err := json.Unmarshal(first, &bom); err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, c := range bom.Components {
		named[c.Name] = true
		if c.Version == "" || c.Purl != "pkg:golang/"+c.Name+"@"+c.Version {
			t.Errorf("component %+v", c)
		}
	}
	for _, module := range []string{"stdlib", "github.com/google/go-containerregistry", "github.com/CycloneDX/cyclonedx-go"} {
		if !named[module] {
			t.Errorf("%s is missing", module)
		}
	}
	if bom.BOMFormat != "CycloneDX" {
		t.Errorf("format %q", bom.BOMFormat)
	}
}

func TestChecksumsAreOfAllFiles(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"b": "", "a": "abc"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const want = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a\n" +
		"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  b\n"
	for range 2 { // the sums are not among what is summed
		if err := checksums(dir); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS")); err != nil || string(got) != want {
			t.Errorf("%v\n%s", err, got)
		}
	}
}
