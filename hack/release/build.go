package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// A platform is an operating system and an architecture, as Go names them.
type platform struct{ os, arch string }

// The program runs in a cluster on Linux and, on its own node, on Windows; and against one from where its
// operators sit.
var allPlatforms = []platform{
	{"linux", "amd64"}, {"linux", "arm64"}, {"windows", "amd64"}, {"darwin", "amd64"}, {"darwin", "arm64"},
}

// ofImage is the platform of an image that names none: nodes mostly have the architecture of the machine that builds.
func ofImage() []platform {
	p := platform{"linux", runtime.GOARCH}
	if !slices.Contains(allPlatforms, p) {
		p.arch = "amd64"
	}
	return []platform{p}
}

// parsePlatforms reads names of platforms, separated by commas, or all.
func parsePlatforms(list string) ([]platform, error) {
	if list == "all" {
		return allPlatforms, nil
	}
	var all []platform
	for name := range strings.SplitSeq(list, ",") {
		system, arch, _ := strings.Cut(name, "/")
		p := platform{system, arch}
		if !slices.Contains(allPlatforms, p) {
			return nil, fmt.Errorf("%q is none of %v", name, allPlatforms)
		}
		all = append(all, p)
	}
	return all, nil
}

// String is such as linux/amd64.
func (p platform) String() string { return p.os + "/" + p.arch }

// inImage reports whether the image is for this platform too.
func (p platform) inImage() bool { return p.os == "linux" || p.os == windows }

const windows = "windows"

// file is the name of the program.
func (p platform) file() string {
	if p.os == windows {
		return programName + ".exe"
	}
	return programName
}

// fipsModule is the newest snapshot of the Go Cryptographic Module with a
// certificate among those that come with Go. A test tells when there is a newer one.
const fipsModule = "v1.0.0"

// A program is the compiled program for a platform.
type program struct {
	platform
	path       string
	info       *buildinfo.BuildInfo
	components []component // that it is linked from, without itself
}

// A builder makes programs of a source, once each.
type builder struct {
	source
	licence   []byte // of the program itself
	work      string // directory that close removes
	toolchain string // such as go1.26.8
	licences  *licences
}

func (s source) newBuilder(ctx context.Context) (*builder, error) {
	licence, err := os.ReadFile(filepath.Join(s.root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	toolchain, err := s.toolchain()
	if err != nil {
		return nil, err
	}
	known, err := newLicences()
	if err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp("", "release-")
	if err != nil {
		return nil, err
	}
	return &builder{source: s, licence: licence, work: work, toolchain: toolchain, licences: known}, ctx.Err()
}

func (b *builder) close() { _ = os.RemoveAll(b.work) }

var toolchainLine = regexp.MustCompile(`(?m)^toolchain (go\S+)$`)

// toolchain is the version of Go that releases are made with.
func (s source) toolchain() (string, error) { return toolchainOf(filepath.Join(s.root, "go.mod")) }

// toolchainOf is the version of Go that a module file names.
func toolchainOf(modfile string) (string, error) {
	text, err := os.ReadFile(modfile)
	if err != nil {
		return "", err
	}
	line := toolchainLine.FindSubmatch(text)
	if line == nil {
		return "", fmt.Errorf("%s has no toolchain line", modfile)
	}
	return string(line[1]), nil
}

// environment is that of Go's commands. What changes a binary does not come from
// whoever calls: Go itself is fetched where another version is installed.
func (b *builder) environment(p platform, fips bool) []string {
	return append(os.Environ(), b.settings(p, fips)...)
}

func (b *builder) settings(p platform, fips bool) []string {
	module := "off"
	if fips {
		module = fipsModule
	}
	return []string{
		"CGO_ENABLED=0", "GOOS=" + p.os, "GOARCH=" + p.arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFIPS140=" + module,
		"GOTOOLCHAIN=" + b.toolchain, "GOFLAGS=", "GOEXPERIMENT=", "GODEBUG=", "GOWORK=off",
	}
}

// program compiles the program for p, with the command of the Dockerfile.
func (b *builder) program(ctx context.Context, p platform, fips bool) (program, error) {
	made := program{platform: p, path: filepath.Join(b.work, fmt.Sprintf("%s-%s-fips-%t", p.os, p.arch, fips))}
	dockerfile, err := os.ReadFile(filepath.Join(b.root, "Dockerfile"))
	if err != nil {
		return program{}, err
	}
	command, err := buildCommand(string(dockerfile))
	if err != nil {
		return program{}, err
	}
	cmd := exec.CommandContext(ctx, "sh", "-euc", strings.Replace(command, "-o /"+programName, `-o "$OUTPUT"`, 1))
	fmt.Fprintf(os.Stderr, "compiling for %s: 2 to 3 minutes on 2 cores the first time\n", p)
	cmd.Dir = b.root
	cmd.Env = append(b.environment(p, fips),
		"TARGETOS="+p.os, "TARGETARCH="+p.arch, "VERSION="+b.version, "COMMIT="+b.commit, "OUTPUT="+made.path)
	if text, err := cmd.CombinedOutput(); err != nil {
		return program{}, fmt.Errorf("build for %s: %w\n%s", p, err, text)
	}
	return b.examine(ctx, made, fips)
}

// examine finds out what a program is linked from.
func (b *builder) examine(ctx context.Context, made program, fips bool) (program, error) {
	info, err := buildinfo.ReadFile(made.path)
	if err != nil {
		return program{}, fmt.Errorf("read what %s is made of: %w", made.path, err)
	}
	made.info = info
	made.components, err = b.linked(ctx, made, fips)
	if err != nil {
		return program{}, fmt.Errorf("find the licences of the program for %s: %w", made.platform, err)
	}
	return made, nil
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

// output runs a command of the go tool in dir and returns what it prints.
func output(ctx context.Context, dir string, env []string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	var stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stderr = dir, env, &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s in %s: %w\n%s", cmd, dir, err, stderr.Bytes())
	}
	return out, nil
}
