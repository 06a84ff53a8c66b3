package main

import (
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

const programName = "node-termination-handler"

// A platform is an operating system and an architecture, as Go names them.
type platform struct{ os, arch string }

// The program runs in a cluster on Linux, and against one from where its
// operators sit.
var (
	imagePlatforms  = []platform{{"linux", "amd64"}, {"linux", "arm64"}}
	binaryPlatforms = append(slices.Clone(imagePlatforms), platform{"darwin", "amd64"}, platform{"darwin", "arm64"})
)

// binaries writes to dir a binary for each platform, and beside it what it is
// made of.
func (s source) binaries(ctx context.Context, dir string, out io.Writer) error {
	for _, p := range binaryPlatforms {
		path := filepath.Join(dir, fmt.Sprintf("%s_%s_%s_%s", programName, s.version, p.os, p.arch))
		if err := s.build(ctx, p, path); err != nil {
			return err
		}
		if err := writeSBOM(path, s.version); err != nil {
			return err
		}
		fmt.Fprintln(out, path)
	}
	return nil
}

// build compiles the program for p to path, with the command of the Dockerfile.
func (s source) build(ctx context.Context, p platform, path string) error {
	dockerfile, err := os.ReadFile(filepath.Join(s.root, "Dockerfile"))
	if err != nil {
		return err
	}
	command, err := buildCommand(string(dockerfile))
	if err != nil {
		return err
	}
	path, err = filepath.Abs(path)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "sh", "-euc", strings.Replace(command, "-o /"+programName, `-o "$OUTPUT"`, 1))
	cmd.Dir = s.root
	cmd.Env = append(os.Environ(), "TARGETOS="+p.os, "TARGETARCH="+p.arch, "VERSION="+s.version, "COMMIT="+s.commit, "OUTPUT="+path)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build for %s/%s: %w\n%s", p.os, p.arch, err, text)
	}
	return nil
}

// buildCommand is the command of the Dockerfile that builds the program.
func buildCommand(dockerfile string) (string, error) {
	_, command, found := strings.Cut(dockerfile, "\nRUN CGO_ENABLED=0")
	if !found {
		return "", errors.New("the Dockerfile has no line RUN CGO_ENABLED=0")
	}
	command = strings.ReplaceAll(command, "\\\n", " ")
	command, _, _ = strings.Cut(command, "\n")
	if strings.Count(command, "-o /"+programName+" ") != 1 {
		return "", fmt.Errorf("the Dockerfile does not build /%s with %s", programName, command)
	}
	return "CGO_ENABLED=0" + command, nil
}

// writeSBOM writes what the binary at path is made of, as CycloneDX, to
// path.cdx.json. The linker has noted it in the binary.
func writeSBOM(path, version string) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read what %s is made of: %w", path, err)
	}
	module := func(path, version, sum string) cyclonedx.Component {
		url := fmt.Sprintf("pkg:golang/%s@%s", path, version)
		c := cyclonedx.Component{BOMRef: url, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: url}
		if sum != "" {
			c.Properties = &[]cyclonedx.Property{{Name: "go:sum", Value: sum}}
		}
		return c
	}
	program := module(info.Main.Path, version, "")
	program.Type = cyclonedx.ComponentTypeApplication
	libraries := []cyclonedx.Component{module("stdlib", strings.TrimPrefix(info.GoVersion, "go"), "")}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		libraries = append(libraries, module(m.Path, m.Version, m.Sum))
	}
	bom := cyclonedx.NewBOM() // without a serial number and a time: the same binary gives the same file
	bom.Metadata = &cyclonedx.Metadata{Component: &program}
	bom.Components = &libraries
	file, err := os.Create(path + ".cdx.json")
	if err != nil {
		return err
	}
	err = cyclonedx.NewBOMEncoder(file, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	return errors.Join(err, file.Close())
}

// checksums writes the SHA-256 sums of the files in dir to dir/SHA256SUMS, as
// sha256sum -c reads them.
func checksums(dir string) error {
	const name = "SHA256SUMS"
	var lines strings.Builder
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error { // in lexical order
		if err != nil || !entry.Type().IsRegular() || entry.Name() == name {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256(content), filepath.ToSlash(relative))
		return nil
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), []byte(lines.String()), 0o644)
}
