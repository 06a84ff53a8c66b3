// Package browser has a headless Chromium look at a page, by the program of hack/browser, and judges what it saw.
package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// ErrMissing is the error of New where no Chromium is installed.
var ErrMissing = errors.New("no Chromium is installed: make chromium installs it")

// A Browser is a Chromium and the program that looks through it. It may be used concurrently.
type Browser struct{ program, chromium string }

// New finds Chromium and compiles the program, unless that is in Go's build cache: the first time takes some
// 20 s on 2 cores. Root is the source tree.
func New(ctx context.Context, root string) (*Browser, error) {
	chromium := ""
	for _, name := range []string{"chromium", "chromium-browser", "chromium-headless-shell", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			chromium = path
			break
		}
	}
	if chromium == "" {
		return nil, ErrMissing
	}
	cmd := exec.CommandContext(ctx, "go", "tool", "-n", "browser")
	cmd.Dir = filepath.Join(root, "hack", "browser")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := output(cmd)
	if err != nil {
		return nil, fmt.Errorf("compile hack/browser: %w", err)
	}
	return &Browser{program: strings.TrimSpace(string(out)), chromium: chromium}, nil
}

// A Look says at what to look, and how.
type Look struct {
	URL   string
	Count map[string]string // selectors of elements to count, by any names
	// Refresh: wait until the page has refreshed itself, and see whether it can be paused.
	Refresh bool
	Says    string // wait until the page says what begins with this; empty: do not wait
	// Pictures is an existing directory for light.png, dark.png and phone.png; empty: none are taken.
	Pictures string
	At       string // a selector: what the pictures begin with; empty: the page
}

// A Sight is what was seen. hack/browser says what each field means.
type Sight struct {
	Status   int
	Title    string
	Errors   []string
	Requests []string
	Count    map[string]int
	Harmed   bool
	Schemes  []struct {
		Name           string
		Text, Graphics Contrast
		Overflow       float64
	}
	Roles                                  map[string]int
	Unnamed                                []string
	Headings                               []int
	Language                               string
	Tabs                                   int
	NoOutline                              []string
	Refreshed, KeptFocus, KeptOpen, Pauses bool
	LiveRegion                             string
}

// A Contrast is the lowest of a page, of so many pieces.
type Contrast struct {
	Ratio float64
	Of    int
	Where string
}

// Look looks at a page.
func (b *Browser) Look(ctx context.Context, l Look) (Sight, error) {
	args := []string{"-program", b.chromium}
	for _, name := range slices.Sorted(maps.Keys(l.Count)) {
		args = append(args, "-count", name+"="+l.Count[name])
	}
	if l.Refresh {
		args = append(args, "-refresh")
	}
	if l.Says != "" {
		args = append(args, "-says", l.Says)
	}
	if l.Pictures != "" {
		args = append(args, "-pictures", l.Pictures)
	}
	if l.At != "" {
		args = append(args, "-at", l.At)
	}
	out, err := output(exec.CommandContext(ctx, b.program, append(args, l.URL)...))
	if err != nil {
		return Sight{}, err
	}
	var s Sight
	if err := json.Unmarshal(out, &s); err != nil {
		return Sight{}, fmt.Errorf("read what the browser has seen: %w", err)
	}
	return s, nil
}

const (
	// https://www.w3.org/TR/WCAG22/#contrast-minimum
	leastText = 4.5
	// https://www.w3.org/TR/WCAG22/#non-text-contrast
	leastGraphics = 3
)

// Problems are what must not be so on any page of ours, whatever it shows: origin is all that it may ask.
func (s Sight) Problems(origin string) (problems []string) {
	add := func(bad bool, format string, args ...any) {
		if bad {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	for _, e := range s.Errors {
		add(true, "error: %s", e)
	}
	for _, url := range s.Requests {
		add(!strings.HasPrefix(url, origin), "request to elsewhere: %s", url)
	}
	add(s.Harmed, "a script of somebody else has run")
	add(len(s.Schemes) != 4, "%d colour schemes were seen", len(s.Schemes))
	for _, scheme := range s.Schemes {
		add(scheme.Text.Of == 0 || scheme.Text.Ratio < leastText, "%s: contrast of text: %+v", scheme.Name, scheme.Text)
		add(scheme.Graphics.Ratio < leastGraphics, "%s: contrast of graphics: %+v", scheme.Name, scheme.Graphics)
		add(scheme.Overflow > 0, "%s: %v pixels too wide", scheme.Name, scheme.Overflow)
	}
	for _, role := range []string{"banner", "main", "contentinfo", "status"} {
		add(s.Roles[role] != 1, "%d landmarks %s", s.Roles[role], role)
	}
	for _, role := range s.Unnamed {
		add(true, "%s without a name", role)
	}
	level := 0
	for _, h := range s.Headings {
		add(h > level+1, "a heading of level %d after one of level %d", h, level)
		level = h
	}
	ones := len(slices.DeleteFunc(slices.Clone(s.Headings), func(level int) bool { return level != 1 }))
	add(ones != 1 || s.Headings[0] != 1, "headings: %v", s.Headings)
	add(s.Language != "en", "language %q", s.Language)
	add(s.Title == "", "no title")
	add(s.LiveRegion == "", "nothing is said to who cannot see")
	add(s.Tabs == 0, "the tab key gets nowhere")
	for _, where := range s.NoOutline {
		add(true, "it does not show that it has the focus: %s", where)
	}
	return problems
}

func output(cmd *exec.Cmd) ([]byte, error) {
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(errOut.String()))
	}
	return out.Bytes(), nil
}
