// Command release makes what a release consists of, with Go alone: binaries,
// their SBOMs, checksums, and a multi-arch image as an OCI layout, which needs
// no container engine. The same sources give the same bytes.
//
//	release [-version V] [-commit C] binaries DIR
//	release [-version V] [-commit C] image DIR [REFERENCE]
//	release checksums DIR
//
// A REFERENCE such as registry.example.com/team/node-termination-handler:v1 is
// where the image is pushed to, with the credentials of the usual Docker
// configuration.
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

// A source is the tree that is released.
type source struct {
	root            string // where the Dockerfile is
	version, commit string
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	var s source
	flags.StringVar(&s.root, "root", filepath.Join("..", ".."), "directory of the Dockerfile")
	flags.StringVar(&s.version, "version", "dev", "version that the program tells")
	flags.StringVar(&s.commit, "commit", "unknown", "commit that it tells")
	if err := flags.Parse(args); err != nil {
		return err
	}
	what, dir, reference := flags.Arg(0), flags.Arg(1), flags.Arg(2)
	switch {
	case dir == "":
		return errors.New("say what to make (binaries, image or checksums) and in which directory")
	case what == "binaries":
		return s.binaries(ctx, dir, out)
	case what == "image":
		return s.image(ctx, dir, reference, out)
	case what == "checksums":
		return checksums(dir)
	}
	return fmt.Errorf("%q is none of binaries, image and checksums", what)
}
