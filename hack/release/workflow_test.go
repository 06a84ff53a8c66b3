package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestTheWorkflowsHaveNoRightByDefaultAndPinTheirActions(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(tree.root, ".github", "workflows", "*.yml"))
	if err != nil || len(pages) < 2 {
		t.Fatalf("workflows: %q, %v", pages, err)
	}
	pinned := regexp.MustCompile(`^\s*(- )?uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	for _, page := range pages {
		text := readText(t, page)
		if !strings.Contains(text, "\npermissions: {}\n") {
			t.Errorf("%s does not begin without rights", page)
		}
		for line := range strings.SplitSeq(text, "\n") {
			if strings.Contains(line, "uses:") && !pinned.MatchString(line) {
				t.Errorf("%s: no commit with its version: %s", page, line)
			}
		}
	}
}

// A workflow is what the tests look at of one.
type workflow struct {
	On   map[string]any `json:"true"` // which "on" is in YAML 1.1
	Jobs map[string]job `json:"jobs"`
}

type job struct {
	If              string
	Needs           needs
	Permissions     map[string]string
	ContinueOnError any `json:"continue-on-error"`
	Steps           []step
}

type step struct {
	Name, If, Uses, Run string
	ContinueOnError     any `json:"continue-on-error"`
}

// needs is one name or a list of them.
type needs []string

func (n *needs) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*n = needs{one}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(n))
}

func (j job) runs(command string) bool {
	return slices.ContainsFunc(j.Steps, func(s step) bool { return strings.Contains(s.Run, command) })
}

func parseWorkflow(t *testing.T, text string) workflow {
	t.Helper()
	var w workflow
	if err := yaml.Unmarshal([]byte(text), &w); err != nil {
		t.Fatal(err)
	}
	return w
}

var (
	// publishers are the actions that may run where something can be published: each brings a tool, or the files.
	publishers = []string{"sigstore/cosign-installer", "oras-project/setup-oras", "actions/download-artifact"}
	// foreignCode is what would run, or fetch, more than these tools.
	foreignCode = regexp.MustCompile(`(?m)(^|[\s;&|(])(go|make|npm|npx|node|git|curl|wget|pip|helm|docker (run|build))\s|hack/|\.ci/`)
	// publishing are the rights of the job that publishes; the others may read the sources.
	publishing = map[string]string{"contents": "write", "packages": "write", "id-token": "write"}
	reading    = map[string]string{"contents": "read"}
)

// releaseFaults is what a release workflow does that lets one machine decide alone what is published, or code that
// is not needed run where something can be published.
func releaseFaults(w workflow) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	const full, vulnerabilities, build, comparison = "make test-all", "make vuln", "make release", "diff --recursive built dist"
	roles := map[string]int{}
	publish := ""
	for _, name := range slices.Sorted(maps.Keys(w.Jobs)) {
		j := w.Jobs[name]
		if j.If != "" || j.ContinueOnError != nil {
			fault("%s may be left out, or fail", name)
		}
		if _, publishes := j.Permissions["id-token"]; publishes {
			if publish != "" {
				fault("both %s and %s publish", publish, name)
			}
			publish = name
			continue
		}
		if !maps.Equal(j.Permissions, reading) {
			fault("%s has the rights %v", name, j.Permissions)
		}
		if j.runs(full) && j.runs(build) {
			fault("%s tests and builds on one machine", name)
		}
		for _, command := range []string{full, vulnerabilities, build, comparison} {
			if j.runs(command) {
				roles[command]++
			}
		}
		if j.runs(comparison) && !j.runs(build) {
			fault("%s compares what it did not build", name)
		}
	}
	for command, want := range map[string]int{full: 1, vulnerabilities: 1, build: 2, comparison: 1} {
		if roles[command] != want {
			fault("%d jobs run %s, not %d", roles[command], command, want)
		}
	}
	p := w.Jobs[publish]
	if !maps.Equal(p.Permissions, publishing) {
		fault("%s publishes with the rights %v", publish, p.Permissions)
	}
	for name := range w.Jobs {
		if name != publish && !slices.Contains(p.Needs, name) {
			fault("%s does not wait for %s", publish, name)
		}
	}
	for name, j := range w.Jobs {
		for _, s := range j.Steps {
			if s.If != "" || s.ContinueOnError != nil {
				fault("%s: a step may be left out, or fail: %q", name, s.Name+s.Uses+s.Run)
			}
		}
	}
	for _, s := range p.Steps {
		if action, _, _ := strings.Cut(s.Uses, "@"); action != "" && !slices.Contains(publishers, action) {
			fault("%s publishes and uses %s", publish, action)
		}
		if code := foreignCode.FindString(s.Run); code != "" {
			fault("%s publishes and runs %q", publish, strings.TrimSpace(code))
		}
	}
	return faults
}

func TestNoMachineAloneDecidesWhatIsPublished(t *testing.T) {
	text := readText(t, tree.root, ".github", "workflows", "release.yml")
	if faults := releaseFaults(parseWorkflow(t, text)); len(faults) > 0 {
		t.Errorf("release.yml: %q", faults)
	}
	const checkout = "      - uses: actions/checkout@de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2\n"
	for _, tt := range []struct{ change, from, to, fault string }{
		{"a checkout beside the rights", "      - uses: sigstore/", checkout + "      - uses: sigstore/", "publish publishes and uses actions/checkout"},
		{"code of the sources beside the rights", "oras cp ", "go -C hack/release run . push ", `publish publishes and runs "go"`},
		{"a script of the artifact beside the rights", "cosign sign-blob", "hack/sign", `publish publishes and runs "hack/"`},
		{"tests where the release is built", "- run: make -s notes", "- run: make test-all", "build tests and builds on one machine"},
		{"no tests but those of the gate", "- run: make test-all", "- run: .ci/run", "0 jobs run make test-all, not 1"},
		{"no tests but some", "- run: make test-all", "- run: make test", "0 jobs run make test-all, not 1"},
		{"no look at vulnerabilities", "- run: make vuln", "- run: true", "0 jobs run make vuln, not 1"},
		{"nothing compared", "run: diff --recursive built dist", "run: ls built", "0 jobs run diff --recursive built dist, not 1"},
		{"a comparison that nobody waits for", ", build, rebuild]", ", build]", "publish does not wait for rebuild"},
		{"tests that nobody waits for", "needs: [full, ", "needs: [", "publish does not wait for full"},
		{"a right too many to publish", "packages: write", "actions: write\n      packages: write", "publish publishes with the rights"},
		{"a right too many to build", "contents: read\n    outputs:", "contents: read\n      packages: write\n    outputs:", "build has the rights"},
		{"an identity for what builds", "contents: read\n    outputs:", "contents: read\n      id-token: write\n    outputs:", "both build and publish publish"},
		{"a job whose failure does not count", "  rebuild:\n", "  rebuild:\n    continue-on-error: true\n", "rebuild may be left out, or fail"},
		{"a publication in any case", "  publish:\n", "  publish:\n    if: always()\n", "publish may be left out, or fail"},
		{"a step whose failure does not count", "- name: Compare", "- continue-on-error: true\n        name: Compare", "rebuild: a step may be left out"},
	} {
		changed := strings.Replace(text, tt.from, tt.to, 1)
		if changed == text {
			t.Errorf("%s: the workflow has no %q", tt.change, tt.from)
		}
		faults := releaseFaults(parseWorkflow(t, changed))
		if !slices.ContainsFunc(faults, func(f string) bool { return strings.HasPrefix(f, tt.fault) }) {
			t.Errorf("%s: %q, not %q", tt.change, faults, tt.fault)
		}
	}
}

// The steps run with what make release writes; cosign, oras and the login are told what to do, and write it down.
func TestOnlyWhatBothBuildsMadeIsPublished(t *testing.T) {
	for _, tool := range []string{"bash", "jq", "sha256sum"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	w := parseWorkflow(t, readText(t, tree.root, ".github", "workflows", "release.yml"))
	write := func(t *testing.T, text string, path ...string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(path...), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, dist string, sums map[string]string)
		want   bool
	}{
		{"as it was built", func(*testing.T, string, map[string]string) {}, true},
		{"a file is another", func(t *testing.T, dist string, _ map[string]string) {
			write(t, "evil", dist, programName+"_1.2.3_linux_amd64.tar.gz")
		}, false},
		{"a file is added", func(t *testing.T, dist string, _ map[string]string) { write(t, "evil", dist, "evil.tar.gz") }, false},
		{"a file is added, and summed", func(t *testing.T, dist string, _ map[string]string) {
			write(t, "evil", dist, "evil.tar.gz")
			if err := checksums(dist); err != nil {
				t.Fatal(err)
			}
		}, false},
		{"the rebuild told other sums", func(_ *testing.T, _ string, sums map[string]string) { sums["REBUILT"] = strings.Repeat("0", 64) }, false},
		{"the rebuild told none", func(_ *testing.T, _ string, sums map[string]string) { sums["REBUILT"] = "" }, false},
		{"the build told none", func(_ *testing.T, _ string, sums map[string]string) { sums["BUILT"] = "" }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			work := t.TempDir()
			dist, bin, calls := filepath.Join(work, "dist"), filepath.Join(work, "bin"), filepath.Join(work, "calls")
			for _, dir := range []string{"image", "image-fips", "chart"} {
				if err := os.MkdirAll(filepath.Join(dist, dir), 0o700); err != nil {
					t.Fatal(err)
				}
				write(t, `{"manifests":[{"digest":"sha256:of-`+dir+`"}]}`, dist, dir, "index.json")
			}
			for _, name := range []string{"1.2.3_image", "1.2.3_image_fips", "1.2.3_linux_amd64.tar.gz"} {
				write(t, `{"predicate":{}}`, dist, programName+"_"+name+".provenance.json")
			}
			write(t, "", dist, programName+"_1.2.3_linux_amd64.tar.gz")
			write(t, "", dist, programName+"-1.2.3.tgz")
			write(t, `{"predicate":{}}`, dist, programName+"-1.2.3.tgz.provenance.json")
			if err := checksums(dist); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(bin, 0o700); err != nil {
				t.Fatal(err)
			}
			for _, tool := range []string{"cosign", "oras", "docker", "gh"} {
				write(t, "#!/bin/sh\necho "+tool+` "$@" >>"$CALLS"`+"\n", bin, tool)
			}
			sum := sums(t, dist)["SHA256SUMS"]
			told := map[string]string{"BUILT": sum, "REBUILT": sum}
			tt.change(t, dist, told)
			var err error
			var out []byte
			for _, s := range w.Jobs["publish"].Steps {
				if s.Run == "" {
					continue
				}
				cmd := exec.CommandContext(t.Context(), "bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", s.Run)
				cmd.Dir = work
				cmd.Env = []string{
					"PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH"), "CALLS=" + calls, "RUNNER_TEMP=" + work,
					"TAG=v1.2.3", "REGISTRY=registry.example.com/team", "GITHUB_ACTOR=somebody",
					"BUILT=" + told["BUILT"], "REBUILT=" + told["REBUILT"],
				}
				if out, err = cmd.CombinedOutput(); err != nil {
					break
				}
			}
			if (err == nil) != tt.want {
				t.Errorf("%v\n%s", err, out)
			}
			got, readErr := os.ReadFile(calls)
			if !tt.want {
				if readErr == nil {
					t.Errorf("what was done all the same:\n%s", got)
				}
				return
			}
			const repository = "registry.example.com/team/" + programName
			for _, call := range []string{
				"oras cp --recursive --from-oci-layout image:1.2.3 " + repository + ":1.2.3\n",
				"oras cp --recursive --from-oci-layout image-fips:1.2.3-fips " + repository + ":1.2.3-fips\n",
				"oras cp --recursive --from-oci-layout chart:1.2.3 registry.example.com/team/charts/" + programName + ":1.2.3\n",
				"cosign sign --yes --recursive " + repository + "@sha256:of-image\n",
				"cosign sign --yes --recursive " + repository + "@sha256:of-image-fips\n",
				programName + "_1.2.3_image_fips.cdx.json " + repository + "@sha256:of-image-fips\n",
				"cosign sign --yes --recursive registry.example.com/team/charts/" + programName + "@sha256:of-chart\n",
				"--bundle " + programName + "_1.2.3_linux_amd64.tar.gz.provenance.sigstore.json " + programName + "_1.2.3_linux_amd64.tar.gz\n",
				"cosign sign-blob --yes --bundle SHA256SUMS.sigstore.json SHA256SUMS\n",
				"gh release create v1.2.3 --verify-tag ",
			} {
				if !strings.Contains(string(got), call) {
					t.Errorf("nobody did %q:\n%s", call, got)
				}
			}
		})
	}
}

// A new advisory is noticed without a commit, and only then ends the run as failed.
func TestVulnerabilitiesAreLookedUpEachDay(t *testing.T) {
	w := parseWorkflow(t, readText(t, tree.root, ".github", "workflows", "ci.yml"))
	j := w.Jobs["vulnerabilities"]
	if w.On["schedule"] == nil || !j.runs("make vuln") || j.If != "" || j.ContinueOnError != "${{ github.event_name != 'schedule' }}" {
		t.Errorf("on %v, the job %+v", w.On, j)
	}
	if gate := w.Jobs["gate"]; gate.If != "github.event_name != 'schedule'" {
		t.Errorf("the gate runs if %q", gate.If)
	}
}

func TestTheFullRunIsPlayedEachNight(t *testing.T) {
	w := parseWorkflow(t, readText(t, tree.root, ".github", "workflows", "full.yml"))
	j := w.Jobs["full"]
	if w.On["schedule"] == nil || !j.runs("make test-all") || j.If != "" || j.ContinueOnError != nil {
		t.Errorf("on %v, the job %+v", w.On, j)
	}
	for _, s := range j.Steps {
		if s.If != "" || s.ContinueOnError != nil {
			t.Errorf("a step may be left out, or fail: %+v", s)
		}
	}
	if !strings.Contains(readText(t, tree.root, "hack", "test-all"), "\nplay gate .ci/run\n") {
		t.Error("the full run does not have the gate")
	}
}
