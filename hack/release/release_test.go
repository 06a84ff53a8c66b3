package main

import (
	"archive/tar"
	"crypto/x509"
	"debug/buildinfo"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

var tree = func() source {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		panic(err)
	}
	return source{
		root: root, version: "1.2.3", commit: strings.Repeat("ab", 20), platforms: allPlatforms,
		builder: "https://ci.example.com/workflow", run: "https://ci.example.com/runs/1",
	}
}()

func newTestBuilder(t *testing.T) *builder {
	t.Helper()
	b, err := tree.newBuilder(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	return b
}

// aLibrary is a component that programs of tests are linked from.
var aLibrary = component{
	path: "example.com/library", version: "v1.0.0", sum: "h1:Khu2En+0gcYPZ2kuIihfswbzxv/mIHXgzPZ018Oty48=",
	licences: []string{"MIT"}, texts: []text{{"LICENSE", "Do as you like."}},
}

// imageOf makes an image of files that stand for the programs, and writes it to a
// directory.
func imageOf(t *testing.T) (made *image, dir string) {
	t.Helper()
	var programs []program
	for _, p := range allPlatforms[:3] {
		path := filepath.Join(t.TempDir(), p.arch)
		if err := os.WriteFile(path, []byte("program for "+p.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		programs = append(programs, program{
			platform: p, path: path, info: &buildinfo.BuildInfo{GoVersion: "go1.26.8"}, components: []component{aLibrary},
		})
	}
	b := newTestBuilder(t)
	made, err := b.compose(t.Context(), programs, false)
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(t.TempDir(), "image")
	if err := made.write(dir); err != nil {
		t.Fatal(err)
	}
	return made, dir
}

func digest(t *testing.T, i interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	h, err := i.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

func readText(t *testing.T, path ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestTheImageIsWhatTheDockerfileSays(t *testing.T) {
	dockerfile := readText(t, tree.root, "Dockerfile")
	toolchain, err := tree.toolchain()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"USER " + user + "\n", `ENTRYPOINT ["/` + programName + `"]`, "\nFROM scratch\n",
		" golang:" + strings.TrimPrefix(toolchain, "go") + "@sha256:", "COPY --from=build /rootfs/ /\n",
	} {
		if !strings.Contains(dockerfile, line) {
			t.Errorf("the Dockerfile lacks %q", line)
		}
	}
	made, dir := imageOf(t)
	all, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	outer, err := all.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if first := outer.Manifests[0]; first.Digest.String() != digest(t, made.index) || first.Annotations[tagAnnotation] != tree.version {
		t.Errorf("the layout begins with %+v", first)
	}
	i, err := all.ImageIndex(outer.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(i); err != nil {
		t.Error(err)
	}
	manifest, err := i.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if manifest.Annotations["org.opencontainers.image.source"] != repository {
		t.Errorf("annotations: %v", manifest.Annotations)
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
		files := filesOf(t, image)
		if m.Platform.OS == windows {
			checkWindows(t, config, files)
			continue
		}
		if c := config.Config; c.User != user || !slices.Equal(c.Entrypoint, []string{"/" + programName}) ||
			config.Platform().String() != m.Platform.String() || c.Labels["org.opencontainers.image.source"] != repository ||
			c.Labels["org.opencontainers.image.version"] != tree.version || c.Labels["org.opencontainers.image.revision"] != tree.commit {
			t.Errorf("config of %s: %+v", m.Platform, config)
		}
		if got := files[programName]; got.Mode != 0o755 || string(got.content) != "program for "+m.Platform.String() {
			t.Errorf("the program is %q with mode %o", got.content, got.Mode)
		}
		if got := files["tmp"]; got.Header == nil || got.Mode != 0o1777 {
			t.Errorf("/tmp: %+v", got.Header)
		}
		if roots := x509.NewCertPool(); !roots.AppendCertsFromPEM(files["etc/ssl/certs/ca-certificates.crt"].content) {
			t.Error("there are no certificates in it")
		}
		if string(files["licenses/LICENSE"].content) != readText(t, tree.root, "LICENSE") {
			t.Error("it lacks our licence")
		}
		others := string(files["licenses/"+noticesFile].content)
		for _, part := range []string{"example.com/library v1.0.0: MIT\n", "\nDo as you like.\n", certificates + " "} {
			if !strings.Contains(others, part) {
				t.Errorf("the notices lack %q:\n%s", part, others)
			}
		}
	}
	if !slices.Equal(architectures, []string{"linux/amd64", "linux/arm64", "windows/amd64"}) {
		t.Errorf("platforms: %v", architectures)
	}
}

// checkWindows expects an image of one layer that a HostProcess container runs: Windows has seen none so far.
func checkWindows(t *testing.T, config *v1.ConfigFile, files map[string]unpacked) {
	t.Helper()
	if c := config.Config; !slices.Equal(c.Entrypoint, []string{programName + ".exe"}) || c.User != "" || len(config.RootFS.DiffIDs) != 1 ||
		config.OSVersion != "" || c.Labels["org.opencontainers.image.version"] != tree.version {
		t.Errorf("config: %+v", config)
	}
	if got := files["Files/"+programName+".exe"]; string(got.content) != "program for windows/amd64" {
		t.Errorf("the program is %q", got.content)
	}
	if string(files["Files/licenses/LICENSE"].content) != readText(t, tree.root, "LICENSE") ||
		!strings.Contains(string(files["Files/licenses/"+noticesFile].content), "example.com/library v1.0.0: MIT\n") {
		t.Error("it lacks licences")
	}
	for name, f := range files {
		if dir := path.Dir(name); dir != "." && files[dir].Header == nil {
			t.Errorf("%s has no directory", name)
		}
		if f.Typeflag == tar.TypeReg && path.Dir(name) == "Files/Windows/System32/config" {
			checkHive(t, path.Base(name), f.content)
		}
	}
	for _, name := range []string{"DEFAULT", "SAM", "SECURITY", "SOFTWARE", "SYSTEM"} {
		if files["Files/Windows/System32/config/"+name].Header == nil {
			t.Errorf("there is no %s", name)
		}
	}
}

// checkHive reads a hive as its format is described: a base block with its checksum, then one bin whose cells follow one
// another to its end, with a root key of that name and a security descriptor.
func checkHive(t *testing.T, name string, hive []byte) {
	t.Helper()
	number := func(at int) int { return int(int32(binary.LittleEndian.Uint32(hive[at:]))) }
	if len(hive) != 8192 || string(hive[:4]) != "regf" || number(4) != number(8) || string(hive[4096:4100]) != "hbin" || number(40) != 4096 {
		t.Fatalf("%s is no hive of one bin", name)
	}
	sum := 0
	for at := 0; at < 508; at += 4 {
		sum ^= number(at)
	}
	if sum != number(508) {
		t.Errorf("%s has the checksum %x, not %x", name, number(508), sum)
	}
	cells := map[int][]byte{} // those in use
	at := 4096 + 32
	for at < len(hive) {
		size := number(at)
		if size == 0 || size%8 != 0 {
			t.Fatalf("%s: a cell of %d bytes at %d", name, size, at)
		}
		if size < 0 {
			cells[at-4096] = hive[at+4 : at-size]
		}
		at += max(size, -size)
	}
	root := cells[number(36)]
	if at != len(hive) || len(cells) != 2 || string(root[:2]) != "nk" || string(root[76:76+int(root[72])]) != name {
		t.Fatalf("%s: the cells end at %d, the root is %q", name, at, root)
	}
	security := cells[int(binary.LittleEndian.Uint32(root[44:]))]
	if string(security[:2]) != "sk" || int(security[16]) > len(security)-20 || security[20] != 1 {
		t.Errorf("%s: the security descriptor is %x", name, security)
	}
}

type unpacked struct {
	*tar.Header
	content []byte
}

func filesOf(t *testing.T, image v1.Image) map[string]unpacked {
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
func newRegistry(t *testing.T, options ...registry.Option) string {
	t.Helper()
	server := httptest.NewServer(registry.New(append(options, registry.Logger(log.New(io.Discard, "", 0)))...))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// A registry either answers who refers to an image, or clients keep a list under a tag.
func TestAnImageIsPushedAsItIsWithItsBillsOfMaterials(t *testing.T) {
	for _, answers := range []bool{true, false} {
		reference := newRegistry(t, registry.WithReferrersSupport(answers)) + "/team/" + programName + ":1.2.3"
		made, dir := imageOf(t)
		if err := pushLayout(t.Context(), dir, reference); err != nil {
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
		if digest(t, pulled) != digest(t, made.index) {
			t.Error("another image came back")
		}
		manifest, err := pulled.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		subjects := []string{digest(t, pulled)}
		ofWindows := ""
		for _, m := range manifest.Manifests {
			subjects = append(subjects, m.Digest.String())
			if m.Platform.OS == windows {
				ofWindows = m.Digest.String()
			}
		}
		for _, subject := range subjects {
			for _, bom := range referrers(t, ref.Context().Digest(subject)) {
				names := map[string]bool{}
				for _, c := range *bom.Components {
					names[c.Name] = true
				}
				if !names[aLibrary.path] || names[certificates] == (subject == ofWindows) || bom.Metadata.Component.Type != cyclonedx.ComponentTypeContainer {
					t.Errorf("%s is said to be made of %v", subject, names)
				}
			}
		}
	}
}

func TestAPushTakesTheCredentialsOfTheCallOrOfDocker(t *testing.T) {
	open := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	locked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "AWS" || password != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		open.ServeHTTP(w, r)
	}))
	t.Cleanup(locked.Close)
	address := strings.TrimPrefix(locked.URL, "http://")
	_, dir := imageOf(t)
	none, docker := t.TempDir(), t.TempDir()
	logins := `{"auths":{"` + address + `":{"username":"AWS","password":"secret"}}}`
	if err := os.WriteFile(filepath.Join(docker, "config.json"), []byte(logins), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, docker, user, password string
		enters                       bool
	}{
		{"none", none, "", "", false},
		{"those of the call", none, "AWS", "secret", true},
		{"wrong ones of the call, which win", docker, "AWS", "expired", false},
		{"those of Docker", docker, "", "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("DOCKER_CONFIG", tt.docker)
			t.Setenv("REGISTRY_USER", tt.user)
			t.Setenv("REGISTRY_PASSWORD", tt.password)
			if err := pushLayout(t.Context(), dir, address+"/team/"+programName+":1.2.3"); (err == nil) != tt.enters {
				t.Errorf("it enters: %v, want %v: %v", err == nil, tt.enters, err)
			}
		})
	}
}

// referrers are the bills of materials that refer to an image: one.
func referrers(t *testing.T, of name.Digest) []cyclonedx.BOM {
	t.Helper()
	index, err := remote.Referrers(of)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var boms []cyclonedx.BOM
	for _, m := range manifest.Manifests {
		artifact, err := remote.Image(of.Digest(m.Digest.String()))
		if err != nil {
			t.Fatal(err)
		}
		inside, err := artifact.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		if inside.ArtifactType != sbomType || inside.Subject.Digest.String() != of.DigestStr() {
			t.Errorf("what refers to %s: %+v", of, inside)
		}
		layers, err := artifact.Layers()
		if err != nil {
			t.Fatal(err)
		}
		content, err := layers[0].Compressed()
		if err != nil {
			t.Fatal(err)
		}
		var bom cyclonedx.BOM
		if err := cyclonedx.NewBOMDecoder(content, cyclonedx.BOMFileFormatJSON).Decode(&bom); err != nil {
			t.Fatal(err)
		}
		boms = append(boms, bom)
	}
	if len(boms) != 1 {
		t.Errorf("%d bills of materials refer to %s", len(boms), of)
	}
	return boms
}

func TestTheChartIsPackedAndItsLayoutIsWhatHelmPulls(t *testing.T) {
	dir, host := t.TempDir(), newRegistry(t)
	out, err := output(t.Context(), filepath.Join(tree.root, "hack", "helm"), os.Environ(), "tool", "-n", "helm")
	if err != nil {
		t.Fatal(err)
	}
	helm := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), strings.TrimSpace(string(out)), args...)
		cmd.Env = []string{"HOME=" + dir}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
		return string(out)
	}
	path, err := tree.chart(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	files, err := unpack(file)
	if err != nil {
		t.Fatal(err)
	}
	var licence string
	for _, f := range files {
		if f.name == programName+"/LICENSE" {
			licence += string(f.content)
		}
	}
	if licence != readText(t, tree.root, "LICENSE") {
		t.Errorf("the chart's licence is %q", licence)
	}
	target := filepath.Join(dir, "chart")
	if err := newTestBuilder(t).chartLayout(path, target); err != nil {
		t.Fatal(err)
	}
	all, err := layout.ImageIndexFromPath(target)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	made, err := all.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(host + "/charts/" + programName + ":1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, made); err != nil {
		t.Fatal(err)
	}
	shown := helm("show", "chart", "oci://"+host+"/charts/"+programName, "--version=1.2.3", "--plain-http")
	if !strings.Contains(shown, "\nversion: 1.2.3") || !strings.Contains(shown, "appVersion: 1.2.3") {
		t.Errorf("what came back: %s", shown)
	}
	rendered := helm("template", "nth", "oci://"+host+"/charts/"+programName, "--version=1.2.3", "--plain-http",
		"--set=queueURL=https://sqs.us-east-1.amazonaws.com/123456789012/nth,prometheusRule.create=true,image.repository=registry.example.com/"+programName)
	if !strings.Contains(rendered, programName+":1.2.3") || !strings.Contains(rendered, "alert:") {
		t.Errorf("what it renders: %s", rendered)
	}
}

func TestTheBuildCommandIsThatOfTheDockerfile(t *testing.T) {
	command, err := buildCommand(readText(t, tree.root, "Dockerfile"))
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

func TestEveryModuleIsBuiltWithTheSameGo(t *testing.T) {
	want, err := tree.toolchain()
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	err = filepath.WalkDir(tree.root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && slices.Contains([]string{".git", "node_modules", "dist"}, entry.Name()) {
			return filepath.SkipDir
		}
		if err != nil || filepath.Ext(path) != ".mod" {
			return err
		}
		count++
		if got, err := toolchainOf(path); got != want {
			t.Errorf("%s: %q, not %q: %v", path, got, want, err)
		}
		return nil
	})
	if err != nil || count < 2 {
		t.Errorf("%d files were found: %v", count, err)
	}
}

// What has a certificate is in a list that comes with Go.
func TestTheFIPSModuleIsTheNewestWithACertificate(t *testing.T) {
	root, err := output(t.Context(), tree.root, os.Environ(), "env", "GOROOT")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(strings.TrimSpace(string(root)), "lib", "fips140")
	if certified := readText(t, dir, "certified.txt"); certified != readText(t, dir, fipsModule+".txt") {
		t.Errorf("%s has a certificate, and we build with %s", strings.TrimSpace(certified), fipsModule)
	}
}

func TestLicencesAreReadAndToldApart(t *testing.T) {
	known, err := newLicences()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	put := func(name, content string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	inner := filepath.Join(dir, "internal", "borrowed")
	read := func() (component, error) {
		return known.read(component{path: "example.com/m", version: "v1"}, dir, []string{dir, inner})
	}
	apache := readText(t, tree.root, "LICENSE")
	put("license.go", "package m")
	put("internal/borrowed/NOTICE", "By somebody.")
	if c, err := read(); err == nil || err.Error() != "example.com/m v1 has no licence" {
		t.Errorf("without a licence: %+v, %v", c, err)
	}
	put("LICENSE.md", "All mine.")
	if c, err := read(); err == nil || !strings.Contains(err.Error(), "LICENSE.md: this is the text of no licence") {
		t.Errorf("with an unknown licence: %+v, %v", c, err)
	}
	put("LICENSE.md", strings.ReplaceAll(apache, "\n", "\r\n"))
	put("internal/borrowed/COPYING", isc)
	c, err := read()
	if err != nil || expression(c.licences) != "Apache-2.0 AND ISC" {
		t.Errorf("licences: %q, %v", c.licences, err)
	}
	var files []string
	for _, x := range c.texts {
		files = append(files, x.file)
	}
	if want := []string{"LICENSE.md", "internal/borrowed/COPYING", "internal/borrowed/NOTICE"}; !slices.Equal(files, want) {
		t.Errorf("texts: %q", files)
	}
	if c.texts[0].content != strings.TrimSpace(apache) {
		t.Error("the text is not what it was")
	}
}

const isc = `Copyright (c) 2020 Somebody

Permission to use, copy, modify, and/or distribute this software for any
purpose with or without fee is hereby granted, provided that the above
copyright notice and this permission notice appear in all copies.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES
WITH REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF
MERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR
ANY SPECIAL, DIRECT, INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES
WHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN
ACTION OF CONTRACT, NEGLIGENCE OR OTHER TORTIOUS ACTION, ARISING OUT OF
OR IN CONNECTION WITH THE USE OR PERFORMANCE OF THIS SOFTWARE.
`

func TestTheNoticesHaveEachTextOnce(t *testing.T) {
	other := component{path: "example.com/other", version: "v2", licences: []string{"MIT"}, texts: []text{{"LICENSE", "Do as you like."}}}
	more := aLibrary
	more.texts = append(slices.Clone(aLibrary.texts), text{"sub/NOTICE", "By me."})
	all := union([]program{{components: []component{other, aLibrary}}, {components: []component{more}}})
	got := string(notices(all))
	const want = "\nexample.com/library v1.0.0, LICENSE\nexample.com/other v2, LICENSE\n" +
		"--------------------------------------------------------------------------------\n\nDo as you like.\n"
	if !strings.Contains(got, want) || strings.Count(got, "Do as you like.") != 1 || !strings.Contains(got, "\nBy me.\n") {
		t.Errorf("the notices:\n%s", got)
	}
}

func TestTheNotesOfAVersionAreItsSection(t *testing.T) {
	const changelog = "# Changelog\n\n## Unreleased\n\nsoon\n\n## 1.2.3 (2026-01-31)\n\n### Upgrade notes\n\n- Care.\n\n## 1.2.2\n\n"
	got, err := section(changelog, "1.2.3")
	if err != nil || got != "### Upgrade notes\n\n- Care.\n" {
		t.Errorf("%q, %v", got, err)
	}
	for _, version := range []string{"1.2.2", "1.2", "2.0.0"} {
		if got, err := section(changelog, version); err == nil {
			t.Errorf("%s has %q", version, got)
		}
	}
	real, err := section(readText(t, tree.root, "CHANGELOG.md"), "Unreleased")
	if err != nil || !strings.Contains(real, "### Upgrade notes\n") {
		t.Errorf("the changelog has no upgrade notes under Unreleased: %v", err)
	}
}

func TestWrongArgumentsAreTold(t *testing.T) {
	for _, args := range [][]string{
		{},
		{"everything"},
		{"everything", "x"},
		{"all"},
		{"all", "a", "b"},
		{"rootfs", "a"},
		{"image", "a", "b", "c"},
		{"-version", "v1.2.3", "all", "x"},
		{"-platforms", "plan9/amd64", "all", "x"},
	} {
		if err := run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%q is taken", args)
		}
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
		if got := readText(t, dir, "SHA256SUMS"); got != want {
			t.Errorf("%s", got)
		}
	}
}
