// Command release makes what a release consists of, with Go alone: archives
// with the program, their SBOMs, the chart, multi-arch images as OCI layouts,
// the licences of all that is in them, the manifest of kubectl's plugin, statements
// of their provenance and checksums. It needs no container engine. The same sources give the same bytes.
//
//	release [flags] all DIR               everything
//	release [flags] image DIR [REFERENCE] the image; pushed if there is a REFERENCE
//	release [flags] chart DIR             the packed chart
//	release [flags] rootfs DIR PROGRAM    the files of the image, for a PROGRAM
//	release [flags] notes                 print the changelog of the version
//
// A REFERENCE is such as registry.example.com/team/node-termination-handler:v1.
// It is pushed to with the credentials of the usual Docker configuration.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		stop()
		os.Exit(1)
	}
}

const (
	programName = "node-termination-handler"
	repository  = "https://github.com/node-termination-handler/node-termination-handler"
)

// A source is the tree that is released, and what is made of it.
type source struct {
	root            string // where go.mod is
	version, commit string
	builder, run    string // URIs of what builds, and of its run; the run may be empty
	fips            bool   // make the image with the certified cryptographic module
	// Of the program; the images have those of Linux and Windows, with FIPS those of Linux.
	platforms []platform
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	var s source
	flags.StringVar(&s.root, "root", filepath.Join("..", ".."), "directory of the source tree")
	flags.StringVar(&s.version, "version", "0.0.0-dev", "version that the program tells, without v")
	flags.StringVar(&s.commit, "commit", "unknown", "commit that it tells")
	flags.StringVar(&s.builder, "builder", repository+"/tree/main/hack/release", "URI of what builds, for the provenance")
	flags.StringVar(&s.run, "run", "", "URI of this run of it, for the provenance")
	flags.BoolVar(&s.fips, "fips", false, "make the image with Go's certified FIPS 140-3 module")
	const platforms = "these, such as linux/amd64,darwin/arm64, or all; " +
		"without it an image is for the architecture of this machine, and a release for all"
	flags.Func("platforms", platforms, func(list string) (err error) {
		s.platforms, err = parsePlatforms(list)
		return err
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	root, err := filepath.Abs(s.root)
	if err != nil {
		return err
	}
	s.root = root
	words := flags.Args()
	if len(words) == 0 {
		return errors.New("say what to make: all, image, chart, rootfs or notes")
	}
	what, rest := words[0], words[1:]
	least, most := 1, 1
	switch what {
	case "notes":
		least, most = 0, 0
	case "image":
		most = 2
	case "rootfs":
		least, most = 2, 2
	}
	if len(rest) < least || len(rest) > most {
		return fmt.Errorf("%s takes %d to %d arguments, not %q", what, least, most, rest)
	}
	if len(s.platforms) == 0 {
		if s.platforms = allPlatforms; what == "image" {
			s.platforms = ofImage()
		}
	}
	if strings.HasPrefix(s.version, "v") {
		return fmt.Errorf("the version is %q: leave out the v, charts and tags of images have none", s.version)
	}
	switch what {
	case "all":
		return s.all(ctx, rest[0], out)
	case "image":
		return s.image(ctx, rest[0], strings.Join(rest[1:], ""), out)
	case "chart":
		path, err := s.chart(ctx, rest[0])
		if err == nil {
			fmt.Fprintln(out, path)
		}
		return err
	case "rootfs":
		return s.rootfs(ctx, rest[0], rest[1])
	case "notes":
		text, err := s.notes()
		fmt.Fprint(out, text)
		return err
	}
	return fmt.Errorf("%q is none of all, image, chart, rootfs and notes", what)
}

// all writes the whole release to dir, which is emptied first.
func (s source) all(ctx context.Context, dir string, out io.Writer) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b, err := s.newBuilder(ctx)
	if err != nil {
		return err
	}
	defer b.close()
	var programs []program
	for _, fips := range []bool{false, true} {
		made, err := b.variant(ctx, dir, fips, out)
		if err != nil {
			return err
		}
		programs = append(programs, made...)
	}
	chart, err := s.chart(ctx, dir)
	if err != nil {
		return err
	}
	if err := b.attest(chart, nil); err != nil {
		return err
	}
	if err := b.chartLayout(chart, filepath.Join(dir, "chart")); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, noticesFile), notices(union(programs)), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, licenceFile), b.licence, 0o644); err != nil {
		return err
	}
	if err := s.plugin(dir); err != nil {
		return err
	}
	// A commit between releases has no notes; of a release the workflow demands them.
	if text, err := s.notes(); err == nil {
		if err := os.WriteFile(filepath.Join(dir, "notes.md"), []byte(text), 0o644); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, dir)
	return checksums(dir)
}

// variant writes the archives and the image of the programs to dir, and returns the programs.
func (b *builder) variant(ctx context.Context, dir string, fips bool, out io.Writer) (programs []program, err error) {
	suffix := ""
	if fips {
		suffix = "_fips"
	}
	var ofImage []program
	for _, p := range b.platforms {
		if fips && p.os != "linux" {
			continue
		}
		made, err := b.program(ctx, p, fips)
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("%s_%s_%s_%s%s", programName, b.version, p.os, p.arch, suffix)
		if err := b.archive(made, filepath.Join(dir, name)); err != nil {
			return nil, err
		}
		programs = append(programs, made)
		if p.inImage() {
			ofImage = append(ofImage, made)
		}
	}
	if len(ofImage) == 0 {
		return programs, nil
	}
	i, err := b.compose(ctx, ofImage, fips)
	if err != nil {
		return nil, err
	}
	layout := filepath.Join(dir, "image"+strings.ReplaceAll(suffix, "_", "-"))
	if err := i.write(layout); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%s_%s_image%s", programName, b.version, suffix)
	if err := b.describeImage(i, filepath.Join(dir, name)); err != nil {
		return nil, err
	}
	digest, err := i.index.Digest()
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(out, layout, digest)
	return programs, nil
}
