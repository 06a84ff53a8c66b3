package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
)

// Names of files that say under which terms the program may be used.
const (
	licenceFile = "LICENSE"
	noticesFile = "THIRD_PARTY_NOTICES.txt"
)

// A component is a module of somebody else, at a version, and what its authors
// want to be handed on with it.
type component struct {
	path, version, sum string   // the sum is empty for Go's own library
	licences           []string // SPDX ids, sorted; all of them apply
	texts              []text   // in the order of their files
}

// A text is a licence or a notice.
type text struct{ file, content string }

// name is such as golang.org/x/net v0.62.0.
func (c component) name() string {
	if c.path == standardLibrary {
		return "Go standard library " + c.version
	}
	return c.path + " " + c.version
}

// standardLibrary is the path of Go's own library in a package URL.
const standardLibrary = "stdlib"

// licences tells licences by their texts.
type licences struct {
	classifier *classifier.Classifier
	known      map[string][]string // ids, by text
}

// loadTexts takes seconds.
var loadTexts = sync.OnceValues(assets.DefaultClassifier)

func newLicences() (*licences, error) {
	c, err := loadTexts()
	if err != nil {
		return nil, fmt.Errorf("load the texts of licences: %w", err)
	}
	return &licences{classifier: c, known: map[string][]string{}}, nil
}

// ids are the SPDX ids of the licences in a text, sorted. A text without any is an
// error: somebody has to read it.
func (l *licences) ids(content string) ([]string, error) {
	if ids, ok := l.known[content]; ok {
		return ids, nil
	}
	found := map[string]bool{}
	for _, m := range l.classifier.Match([]byte(content)).Matches {
		// A header is the short form of a licence that is put above sources.
		if (m.MatchType == "License" || m.MatchType == "Header") && m.Confidence >= 0.9 {
			found[m.Name] = true
		}
	}
	if len(found) == 0 {
		return nil, errors.New("this is the text of no licence that is known")
	}
	l.known[content] = slices.Sorted(maps.Keys(found))
	return l.known[content], nil
}

var (
	licenceName = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying)([._-].*)?$`)
	noticeName  = regexp.MustCompile(`(?i)^(notice|patents)([._-].*)?$`)
)

// read returns a component with the texts of the directories, of which root is the
// first. Others are those of packages with code of a third party.
func (l *licences) read(c component, root string, dirs []string) (component, error) {
	ids := map[string]bool{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return component{}, err
		}
		for _, entry := range entries {
			name := entry.Name()
			isLicence := licenceName.MatchString(name)
			if !isLicence && !noticeName.MatchString(name) || !entry.Type().IsRegular() || filepath.Ext(name) == ".go" {
				continue
			}
			path := filepath.Join(dir, name)
			content, err := os.ReadFile(path)
			if err != nil {
				return component{}, err
			}
			file, err := filepath.Rel(root, path)
			if err != nil {
				return component{}, err
			}
			t := text{filepath.ToSlash(file), strings.TrimSpace(strings.ReplaceAll(string(content), "\r\n", "\n"))}
			if isLicence {
				of, err := l.ids(t.content)
				if err != nil {
					return component{}, fmt.Errorf("%s, %s: %w", c.name(), t.file, err)
				}
				for _, id := range of {
					ids[id] = true
				}
			}
			c.texts = append(c.texts, t)
		}
		if dir == root && len(ids) == 0 {
			return component{}, fmt.Errorf("%s has no licence", c.name())
		}
	}
	c.licences = slices.Sorted(maps.Keys(ids))
	return c, nil
}

// A listed package is one as go list tells it.
type listed struct {
	Dir    string
	Module *listedModule
}

type listedModule struct {
	Path, Version, Sum, Dir string
	Main                    bool
	Replace                 *listedModule
}

// linked are the components of a program: Go's own library first, then the modules
// that the linker has noted in it. A licence counts that is in the root of
// a module, or on the way from there to a package of the program.
func (b *builder) linked(ctx context.Context, made program, fips bool) ([]component, error) {
	env := b.environment(made.platform, fips)
	out, err := output(ctx, b.root, env, "list", "-deps", "-json=Dir,Module", "./cmd/"+programName)
	if err != nil {
		return nil, err
	}
	roots, dirs := map[string]string{}, map[string][]string{} // by module
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read what go list says: %w", err)
		}
		if p.Module == nil || p.Module.Main {
			continue
		}
		m := *p.Module
		if m.Replace != nil {
			m = *m.Replace
		}
		key := m.Path + "@" + m.Version
		roots[key] = m.Dir
		for dir := p.Dir; len(dir) >= len(m.Dir); dir = filepath.Dir(dir) {
			dirs[key] = append(dirs[key], dir)
		}
	}
	goroot, err := output(ctx, b.root, env, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	standard := component{path: standardLibrary, version: strings.TrimPrefix(made.info.GoVersion, "go")}
	root := strings.TrimSpace(string(goroot))
	if standard, err = b.licences.read(standard, root, []string{root}); err != nil {
		return nil, err
	}
	all := []component{standard}
	for _, m := range made.info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		key := m.Path + "@" + m.Version
		root, known := roots[key]
		if !known {
			return nil, fmt.Errorf("%s is in the program, but go list does not know it", key)
		}
		slices.Sort(dirs[key])
		c, err := b.licences.read(component{path: m.Path, version: m.Version, sum: m.Sum}, root, slices.Compact(dirs[key]))
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// certificates is the module that the roots in the image come from.
const certificates = "golang.org/x/crypto/x509roots/fallback"

// roots is the component of the certificates in the image.
func (b *builder) roots(ctx context.Context) (component, error) {
	dir, env := filepath.Join(b.root, "hack", "release"), append(os.Environ(), "GOWORK=off")
	out, err := output(ctx, dir, env, "list", "-m", "-json", certificates)
	if err != nil {
		return component{}, err
	}
	var m listedModule
	if err := json.Unmarshal(out, &m); err != nil {
		return component{}, err
	}
	return b.licences.read(component{path: m.Path, version: m.Version, sum: m.Sum}, m.Dir, []string{m.Dir})
}

// union are the components of all programs, each version once, sorted. Which packages
// of a module are linked can differ by platform, and so can its texts.
func union(programs []program) []component {
	all := map[string]component{}
	for _, p := range programs {
		for _, c := range p.components {
			seen, ok := all[c.name()]
			if !ok {
				seen = component{path: c.path, version: c.version, sum: c.sum}
			}
			seen.licences = slices.Compact(slices.Sorted(slices.Values(slices.Concat(seen.licences, c.licences))))
			seen.texts = slices.Concat(seen.texts, c.texts)
			slices.SortFunc(seen.texts, func(a, b text) int { return cmp.Compare(a.file, b.file) })
			seen.texts = slices.Compact(seen.texts)
			all[c.name()] = seen
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b component) int {
		return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.version, b.version))
	})
}

// notices is the file that is handed on with the program: which components it has,
// under which licences, and each text of theirs once.
func notices(components []component) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "Third-party software in %s\n\n", programName)
	fmt.Fprint(&b, `The program and its image contain this software of others, under the licences
that their SPDX ids name. Below are the texts of these licences and the notices
of the authors, each with the software that it belongs to.

`)
	of := map[string][]string{}
	var texts []string
	for _, c := range components {
		fmt.Fprintf(&b, "  %s: %s\n", c.name(), expression(c.licences))
		for _, t := range c.texts {
			if of[t.content] == nil {
				texts = append(texts, t.content)
			}
			of[t.content] = append(of[t.content], c.name()+", "+t.file)
		}
	}
	for _, t := range texts {
		fmt.Fprintf(&b, "\n%s\n", strings.Repeat("-", 80))
		for _, name := range of[t] {
			fmt.Fprintln(&b, name)
		}
		fmt.Fprintf(&b, "%s\n\n%s\n", strings.Repeat("-", 80), t)
	}
	return b.Bytes()
}

// expression is the SPDX expression of licences that all apply.
func expression(ids []string) string { return strings.Join(ids, " AND ") }
