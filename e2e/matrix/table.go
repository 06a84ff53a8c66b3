package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/suite"
)

// The table is between these lines.
const (
	begin = "<!-- Written by make matrix from here -->\n"
	end   = "<!-- to here. -->\n"
)

// rewrite puts the results into the table of a page. The row of a version without a
// result stays if it is about the same release, and says else that nobody has played it.
func rewrite(page string, versions []sandbox.Version, results map[string]suite.Result) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, old, after, err := split(text)
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	parts := [][]byte{before, []byte(begin), table(versions, results, old), []byte(end), after}
	return os.WriteFile(page, bytes.Join(parts, nil), 0o644)
}

// split cuts a page at the table.
func split(text []byte) (before, rows, after []byte, err error) {
	before, rest, found := bytes.Cut(text, []byte(begin))
	rows, after, closed := bytes.Cut(rest, []byte(end))
	if !found || !closed {
		return nil, nil, nil, errors.New("the lines around the table are missing")
	}
	return before, rows, after, nil
}

// table is the table of all versions, newest first; old is the one before it.
func table(versions []sandbox.Version, results map[string]suite.Result, old []byte) []byte {
	var b bytes.Buffer
	b.WriteString("\n| Kubernetes | release | etcd | scenarios |\n|---|---|---|---|\n")
	for _, v := range slices.Backward(versions) {
		start := rowOf(v)
		outcome := "not played"
		for line := range strings.Lines(string(old)) {
			if rest, found := strings.CutPrefix(line, start); found {
				outcome = strings.TrimSuffix(rest, " |\n")
			}
		}
		if r, played := results[v.Minor]; played {
			outcome = cell(r)
		}
		b.WriteString(start + outcome + " |\n")
	}
	b.WriteString("\n")
	return b.Bytes()
}

// rowOf is the row of a version up to its result.
func rowOf(v sandbox.Version) string {
	return fmt.Sprintf("| %s | %s | %s | ", v.Minor, strings.TrimPrefix(v.Release, "v"), strings.TrimPrefix(v.Etcd, "v"))
}
