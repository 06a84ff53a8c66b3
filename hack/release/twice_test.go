package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
)

// The whole release, for one architecture, is made twice: from the tree as it is, and
// from a copy elsewhere, later, with another umask, time zone and environment.
func TestTheSameSourcesGiveTheSameRelease(t *testing.T) {
	arch := "amd64"
	if runtime.GOARCH == "arm64" {
		arch = "arm64"
	}
	work := t.TempDir()
	tool := filepath.Join(work, "release")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", tool, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	elsewhere := filepath.Join(work, "a copy", "of", "it")
	copyTree(t, elsewhere)
	first, second := filepath.Join(work, "first"), filepath.Join(work, "second")
	for _, build := range []struct {
		root, dir, umask string
		env              []string
	}{
		{tree.root, first, "022", nil},
		{elsewhere, second, "077", []string{"TZ=Asia/Tokyo", "GOFLAGS=-tags=other", "GOAMD64=v3", "LC_ALL=C", "TMPDIR=" + work}},
	} {
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", `umask "$0"; exec "$@"`, build.umask, tool,
			"-root="+build.root, "-version="+tree.version, "-commit="+tree.commit, "-builder="+tree.builder, "-run="+tree.run,
			"-platforms=linux/"+arch, "all", build.dir)
		cmd.Env = append(os.Environ(), build.env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
	}
	files := sums(t, first)
	if again := sums(t, second); !maps.Equal(files, again) {
		for name, sum := range files {
			if again[name] != sum {
				t.Errorf("%s is another the second time", name)
			}
		}
		t.Errorf("first %d files, then %d", len(files), len(again))
	}
	prefix := programName + "_1.2.3_linux_" + arch
	for _, name := range []string{
		prefix + ".tar.gz", prefix + "_fips.tar.gz", programName + "-1.2.3.tgz",
		programName + "_1.2.3_image", programName + "_1.2.3_image_fips",
	} {
		checkProvenance(t, first, name, files)
	}
	for _, name := range []string{prefix, prefix + "_fips", programName + "_1.2.3_image", programName + "_1.2.3_image_fips"} {
		checkBOM(t, filepath.Join(first, name+".cdx.json"))
	}
	for _, name := range []string{"LICENSE", noticesFile, "image/oci-layout", "image-fips/oci-layout", "SHA256SUMS"} {
		if files[name] == "" {
			t.Errorf("there is no %s", name)
		}
	}
	checkNotices(t, readText(t, first, noticesFile))
	plain, fips := checkArchive(t, filepath.Join(first, prefix+".tar.gz")), checkArchive(t, filepath.Join(first, prefix+"_fips.tar.gz"))
	checkRootfs(t, tool, plain)
	if runtime.GOOS != "linux" {
		return
	}
	if said := tell(t, plain); !strings.HasPrefix(said, programName+" 1.2.3\n") || !strings.Contains(said, tree.commit) ||
		!strings.Contains(said, "FIPS 140-3: off\n") {
		t.Errorf("the program says %s", said)
	}
	if said := tell(t, fips); !strings.Contains(said, "FIPS 140-3: on, Go Cryptographic Module "+fipsModule) {
		t.Errorf("the FIPS variant says %s", said)
	}
}

// copyTree copies what git knows, or would, to dir.
func copyTree(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
	cmd.Dir = tree.root
	list, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(tree.root, name))
		if os.IsNotExist(err) { // deleted, but not yet for git
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		target := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(target, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// sums are those of all files in dir, by their names.
func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		relative, err := filepath.Rel(dir, path)
		all[filepath.ToSlash(relative)] = fmt.Sprintf("%x", sha256.Sum256([]byte(readText(t, path))))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// checkProvenance expects a statement that in-toto and SLSA take, about an artefact of
// that name.
func checkProvenance(t *testing.T, dir, name string, files map[string]string) {
	t.Helper()
	var s intoto.Statement
	if err := protojson.Unmarshal([]byte(readText(t, dir, name+".provenance.json")), &s); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if err := s.Validate(); err != nil || s.PredicateType != provenanceType {
		t.Errorf("%s: %v, %s", name, err, s.PredicateType)
	}
	text, err := protojson.Marshal(s.Predicate)
	if err != nil {
		t.Fatal(err)
	}
	var p slsa.Provenance
	if err := protojson.Unmarshal(text, &p); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if err := p.Validate(); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if p.RunDetails.Builder.Id != tree.builder || p.RunDetails.Metadata.InvocationId != tree.run {
		t.Errorf("%s is made by %v", name, p.RunDetails)
	}
	code := p.BuildDefinition.ResolvedDependencies[0]
	if code.Uri != "git+"+repository+"@"+tree.commit || code.Digest["gitCommit"] != tree.commit {
		t.Errorf("%s is made from %v", name, code)
	}
	if isChart := strings.HasSuffix(name, ".tgz"); !isChart && len(p.BuildDefinition.ResolvedDependencies) < 50 {
		t.Errorf("%s is made from %d modules", name, len(p.BuildDefinition.ResolvedDependencies)-1)
	}
	got := s.Subject[0].Digest["sha256"]
	if want := files[name]; want != "" && got != want {
		t.Errorf("the statement about %s has the digest %s, the file has %s", name, got, want)
	}
	if layout := layoutOf(name); layout != "" && !strings.Contains(readText(t, dir, layout, "index.json"), got) {
		t.Errorf("%s has no image %s", layout, got)
	}
	if files[name] == "" && layoutOf(name) == "" {
		t.Errorf("there is no %s", name)
	}
}

func layoutOf(name string) string {
	switch {
	case strings.HasSuffix(name, "_image"):
		return "image"
	case strings.HasSuffix(name, "_image_fips"):
		return "image-fips"
	}
	return ""
}

// checkBOM expects each component with a licence.
func checkBOM(t *testing.T, path string) {
	t.Helper()
	var bom cyclonedx.BOM
	decoder := cyclonedx.NewBOMDecoder(strings.NewReader(readText(t, path)), cyclonedx.BOMFileFormatJSON)
	if err := decoder.Decode(&bom); err != nil {
		t.Fatal(err)
	}
	named := map[string]string{}
	for _, c := range append(*bom.Components, *bom.Metadata.Component) {
		if c.Licenses == nil || len(*c.Licenses) != 1 {
			t.Errorf("%s: %s has the licences %v", path, c.Name, c.Licenses)
			continue
		}
		of := (*c.Licenses)[0]
		named[c.Name] = of.Expression
		if of.License != nil {
			named[c.Name] = of.License.ID
		}
		if c.Type == cyclonedx.ComponentTypeLibrary && (c.Version == "" || c.PackageURL != "pkg:golang/"+c.Name+"@"+c.Version) {
			t.Errorf("%s: component %+v", path, c)
		}
	}
	for name, licence := range map[string]string{
		standardLibrary: "BSD-3-Clause", "github.com/aws/aws-sdk-go-v2": "Apache-2.0 AND BSD-3-Clause", "github.com/spf13/pflag": "BSD-3-Clause",
	} {
		if named[name] != licence {
			t.Errorf("%s: the licence of %s is %q, not %q", path, name, named[name], licence)
		}
	}
}

// checkNotices expects licences and notices that are known to be handed on.
func checkNotices(t *testing.T, text string) {
	t.Helper()
	for _, part := range []string{
		"Go standard library 1.26", "Copyright 2009 The Go Authors.", "AWS SDK for Go\nCopyright 2015 Amazon.com", "Apache License",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("the notices lack %q", part)
		}
	}
	if size := len(text); size > 500_000 {
		t.Errorf("the notices have %d bytes: is each text in them once?", size)
	}
}

// checkArchive expects a program with its licences, and returns its path.
func checkArchive(t *testing.T, path string) string {
	t.Helper()
	packed, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	files, err := unpack(packed)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, fmt.Sprintf("%s %o", f.name, f.mode))
	}
	if want := []string{programName + " 755", licenceFile + " 644", noticesFile + " 644"}; !slices.Equal(names, want) {
		t.Fatalf("%s has %q", path, names)
	}
	program := filepath.Join(t.TempDir(), programName)
	if err := os.WriteFile(program, files[0].content, 0o700); err != nil {
		t.Fatal(err)
	}
	return program
}

// checkRootfs expects that the image of the Dockerfile has the files of ours.
func checkRootfs(t *testing.T, tool, program string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "rootfs")
	if out, err := exec.CommandContext(t.Context(), tool, "-root="+tree.root, "rootfs", dir, program).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"licenses/LICENSE", "licenses/" + noticesFile, "etc/passwd", "etc/group", "etc/ssl/certs/ca-certificates.crt"} {
		if readText(t, dir, name) == "" {
			t.Errorf("%s is empty", name)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "tmp")); err != nil || info.Mode() != fs.ModeDir|fs.ModeSticky|0o777 {
		t.Errorf("/tmp: %v, %v", info, err)
	}
}

// tell is what a program says about its version.
func tell(t *testing.T, program string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, "version").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// A statement has what verifiers look for, by the names of the specification.
func TestTheProvenanceIsWrittenAsTheSpecificationSays(t *testing.T) {
	b := newTestBuilder(t)
	text, err := json.Marshal(b.provenance([]resource{{Name: "x", Digest: map[string]string{"sha256": strings.Repeat("0", 64)}}}, nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		`"_type":"https://in-toto.io/Statement/v1"`, `"predicateType":"https://slsa.dev/provenance/v1"`,
		`"externalParameters":{"source":"git+` + repository + `@` + tree.commit + `","version":"1.2.3"}`, `"invocationId":"` + tree.run + `"`,
	} {
		if !bytes.Contains(text, []byte(part)) {
			t.Errorf("%s lacks %s", text, part)
		}
	}
	// The example of the specification of digests.
	got := dirHash("h1:Khu2En+0gcYPZ2kuIihfswbzxv/mIHXgzPZ018Oty48=")
	if want := "2a1bb6127fb481c60f67692e22285fb306f3c6ffe62075e0ccf674d7c3adcb8f"; got["dirHash"] != want {
		t.Errorf("dirHash %v", got)
	}
	if _, err := hex.DecodeString(got["dirHash"]); err != nil {
		t.Error(err)
	}
}
