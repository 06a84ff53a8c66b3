// Browser looks at a page in a headless Chromium, and prints what it has seen as JSON: errors, requests, how many
// elements there are of some, contrast in both colour schemes, what a screen reader is told, where the keyboard
// gets to, and whether the page refreshes itself. It judges nothing: that is for the test that has started it.
//
//	browser [-count NAME=SELECTOR]... [-refresh] [-says TEXT] [-pictures DIR [-at SELECTOR]] URL
//
// It is a module of its own: nothing of what it needs is part of the product.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"time"
)

// patience is how long all of it may take, on a machine that has more to do.
const patience = 3 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "browser:", err)
		os.Exit(1)
	}
}

type options struct {
	program  string
	count    map[string]string // selectors, by names
	refresh  bool
	says     string // what the polite region begins with before anything is looked at; empty: anything
	pictures string // a directory
	at       string // a selector: what the pictures begin with; empty: the page
	url      string
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o := options{count: map[string]string{}}
	flags := flag.NewFlagSet("browser", flag.ContinueOnError)
	flags.StringVar(&o.program, "program", "", "path of Chromium; default: the one that is installed")
	flags.BoolVar(&o.refresh, "refresh", false, "wait until the page has refreshed itself")
	flags.StringVar(&o.says, "says", "", "wait until the polite region begins with this text")
	flags.StringVar(&o.pictures, "pictures", "", "directory to write light.png, dark.png and phone.png to")
	flags.StringVar(&o.at, "at", "", "selector of the element that the pictures begin with; default: the page")
	flags.Func("count", "NAME=SELECTOR of elements to count", func(text string) error {
		for i := range text {
			if text[i] == '=' {
				o.count[text[:i]] = text[i+1:]
				return nil
			}
		}
		return errors.New("is not NAME=SELECTOR")
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("one URL is needed")
	}
	o.url = flags.Arg(0)
	if o.program == "" {
		program, err := find()
		if err != nil {
			return err
		}
		o.program = program
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	seen, err := look(ctx, o)
	if err != nil {
		return fmt.Errorf("look at %s: %w", o.url, err)
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(seen)
}

// find is the path of a Chromium that is installed.
func find() (string, error) {
	for _, name := range []string{"chromium", "chromium-browser", "chromium-headless-shell", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("no Chromium is installed")
}
