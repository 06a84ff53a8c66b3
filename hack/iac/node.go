package iac

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// scripts ask what only npm has.
//
//go:embed package.json package-lock.json *.mjs
var scripts embed.FS

// Node runs the scripts, with the packages that the lock file names. They are
// installed once, in the user's cache directory.
type Node struct{ dir string }

// ErrNoNode says that this machine has no Node.js or no npm.
var ErrNoNode = errors.New("node or npm is missing")

// NewNode installs the packages if they are not there yet.
func NewNode(ctx context.Context) (Node, error) {
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			return Node{}, fmt.Errorf("%w: %w", ErrNoNode, err)
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return Node{}, err
	}
	files, err := scripts.ReadDir(".")
	if err != nil {
		return Node{}, err
	}
	contents := map[string][]byte{}
	sum := sha256.New()
	for _, file := range files {
		if contents[file.Name()], err = scripts.ReadFile(file.Name()); err != nil {
			return Node{}, err
		}
		sum.Write(contents[file.Name()])
	}
	dir := filepath.Join(cache, "node-termination-handler", fmt.Sprintf("iac-%x", sum.Sum(nil)[:8]))
	if _, err := os.Stat(dir); err == nil {
		return Node{dir}, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return Node{}, err
	}
	// Another process may do the same: the first that is ready is taken.
	temporary, err := os.MkdirTemp(filepath.Dir(dir), "iac-")
	if err != nil {
		return Node{}, err
	}
	defer os.RemoveAll(temporary)
	for name, content := range contents {
		if err := os.WriteFile(filepath.Join(temporary, name), content, 0o644); err != nil {
			return Node{}, err
		}
	}
	install := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	install.Dir = temporary
	if out, err := install.CombinedOutput(); err != nil {
		return Node{}, fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	if err := os.Rename(temporary, dir); err != nil {
		if _, there := os.Stat(dir); there != nil {
			return Node{}, err
		}
	}
	return Node{dir}, nil
}

// Validate returns what CloudFormation finds wrong with resources.
func (n Node) Validate(ctx context.Context, resources map[string]Resource) (problems []string, err error) {
	return problems, n.run(ctx, "validate.mjs", resources, &problems)
}

// Taggable returns those of some types that CloudFormation can give tags.
func (n Node) Taggable(ctx context.Context, types []string) (taggable []string, err error) {
	return taggable, n.run(ctx, "taggable.mjs", types, &taggable)
}

// Simulate returns what IAM says to each request.
func (n Node) Simulate(ctx context.Context, requests []Request) (verdicts []string, err error) {
	return verdicts, n.run(ctx, "simulate.mjs", requests, &verdicts)
}

func (n Node) run(ctx context.Context, script string, input, output any) error {
	text, err := json.Marshal(input)
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "node", script)
	command.Dir = n.dir
	command.Stdin = bytes.NewReader(text)
	var complaint bytes.Buffer
	command.Stderr = &complaint
	answer, err := command.Output()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", script, err, complaint.Bytes())
	}
	return json.Unmarshal(answer, output)
}

// Request is a question to IAM: whether a principal may take an action, given the
// policies of the principal and of the resource.
type Request struct {
	Request struct {
		Principal string `json:"principal"`
		Action    string `json:"action"`
		Resource  struct {
			Resource  string `json:"resource"`
			AccountID string `json:"accountId"`
		} `json:"resource"`
		Context map[string]string `json:"contextVariables"`
	} `json:"request"`
	IdentityPolicies        []NamedPolicy `json:"identityPolicies"`
	ResourcePolicy          any           `json:"resourcePolicy,omitempty"`
	ServiceControlPolicies  []any         `json:"serviceControlPolicies"`
	ResourceControlPolicies []any         `json:"resourceControlPolicies"`
}

// NamedPolicy is a policy document with a name.
type NamedPolicy struct {
	Name   string `json:"name"`
	Policy any    `json:"policy"`
}
