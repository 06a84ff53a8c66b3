package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const (
	module134 = "require (\n\tgo.etcd.io/etcd/server/v3 v3.6.4\n\tk8s.io/kubernetes v1.34.4\n)\n"
	module136 = "require (\n\tgo.etcd.io/etcd/server/v3 v3.6.8\n\tk8s.io/kubernetes v1.36.3\n)\n"
)

func TestTheVersionsAreReadFromTheModules(t *testing.T) {
	dir := sourceOf(t, map[string]string{"go.mod": module136, "1.34.mod": module134})
	got, err := versionsIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []Version{
		{Minor: "1.34", Release: "v1.34.4", Etcd: "v3.6.4", modfile: "1.34.mod"},
		{Minor: "1.36", Release: "v1.36.3", Etcd: "v3.6.8", modfile: "go.mod", Default: true},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Version{})); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
}

func TestAModuleThatIsNotOfItsNameIsAnError(t *testing.T) {
	for name, content := range map[string]string{
		"1.35.mod": module134,
		"1.34.mod": "require k8s.io/kubernetes v1.34.4\n",
		"go.mod":   "require go.etcd.io/etcd/server/v3 v3.6.4\n",
	} {
		if got, err := versionsIn(sourceOf(t, map[string]string{name: content})); err == nil {
			t.Errorf("%s with %q is %v, want an error", name, content, got)
		}
	}
}

func TestTheVariableChoosesAVersion(t *testing.T) {
	versions := []Version{{Minor: "1.34"}, {Minor: "1.35"}, {Minor: "1.36", Default: true}}
	for minor, want := range map[string]string{"": "1.36", "1.34": "1.34", "1.36": "1.36"} {
		if got, err := chosen(versions, minor); err != nil || got.Minor != want {
			t.Errorf("%q chooses %v, %v, want %s", minor, got, err, want)
		}
	}
	_, err := chosen(versions, "1.3")
	if err == nil || !strings.Contains(err.Error(), "KUBERNETES=1.3: hack/controlplane has only 1.34, 1.35, 1.36") {
		t.Errorf("1.3 is refused with %v", err)
	}
}

// A change of one version compiles that one, a change of main.go all.
func TestEachVersionHasAHashOfItsOwnFiles(t *testing.T) {
	files := map[string]string{
		"main.go": "package main\n", "go.mod": module136, "go.sum": "", "1.34.mod": module134, "1.34.sum": "", "kwok/go.mod": "module kwok\n",
	}
	hashes := func() map[string]string {
		dir := sourceOf(t, files)
		versions, err := versionsIn(dir)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, v := range versions {
			if all[v.Minor], err = sourceHash(t.Context(), dir, v); err != nil {
				t.Fatal(err)
			}
		}
		return all
	}
	before := hashes()
	if before["1.34"] == before["1.36"] {
		t.Errorf("both have the hash %s", before["1.34"])
	}
	for _, change := range []struct {
		file string
		want []string // the versions with another hash
	}{
		{"go.mod", []string{"1.36"}},
		{"go.sum", []string{"1.36"}},
		{"1.34.mod", []string{"1.34"}},
		{"1.34.sum", []string{"1.34"}},
		{"main.go", []string{"1.34", "1.36"}},
		{"kwok/go.mod", []string{"1.34", "1.36"}},
	} {
		was := files[change.file]
		files[change.file] += "// changed\n"
		var got []string
		for minor, hash := range hashes() {
			if hash != before[minor] {
				got = append(got, minor)
			}
		}
		if diff := cmp.Diff(change.want, got, cmpopts.SortSlices(strings.Compare)); diff != "" {
			t.Errorf("with another %s (-want +got):\n%s", change.file, diff)
		}
		files[change.file] = was
	}
}

// sourceOf is a directory with files.
func sourceOf(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
