package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Variable is the environment variable that chooses the version of Kubernetes that
// Build compiles, such as 1.35. Without it the version is the default one.
const Variable = "KUBERNETES"

// A Version is a version of Kubernetes that hack/controlplane describes.
type Version struct {
	Minor   string // such as 1.36
	Release string // as the API server reports it, such as v1.36.3; without it Helm and others refuse the server
	Etcd    string // the etcd that belongs to it, such as v3.6.8
	Default bool   // whether it is the version that Build compiles if Variable is not set

	modfile string // its name in hack/controlplane
}

// defaultModfile describes the default version. The modules of the others are
// named after them, such as 1.35.mod.
const defaultModfile = "go.mod"

// Versions are the versions of Kubernetes that hack/controlplane describes, oldest first.
func Versions() ([]Version, error) {
	source, err := sourceDir()
	if err != nil {
		return nil, fmt.Errorf("find hack/controlplane: %w", err)
	}
	return versionsIn(source)
}

func versionsIn(source string) ([]Version, error) {
	files, err := filepath.Glob(filepath.Join(source, "*.mod"))
	if err != nil {
		return nil, err
	}
	versions := make([]Version, 0, len(files))
	for _, file := range files {
		v, err := versionOf(file)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		versions = append(versions, v)
	}
	slices.SortFunc(versions, func(a, b Version) int { return a.number() - b.number() })
	return versions, nil
}

var requirement = regexp.MustCompile(`(?m)^\s*(k8s\.io/kubernetes|go\.etcd\.io/etcd/server/v3) (v\S+)$`)

// versionOf reads the module file of a version.
func versionOf(file string) (Version, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return Version{}, err
	}
	v := Version{modfile: filepath.Base(file)}
	for _, match := range requirement.FindAllStringSubmatch(string(text), -1) {
		if strings.HasSuffix(match[1], "/kubernetes") {
			v.Release = match[2]
		} else {
			v.Etcd = match[2]
		}
	}
	parts := strings.Split(v.Release, ".")
	if len(parts) != 3 || parts[0] != "v1" || v.Etcd == "" {
		return Version{}, fmt.Errorf("it requires Kubernetes %q and etcd %q", v.Release, v.Etcd)
	}
	v.Minor = "1." + parts[1]
	v.Default = v.modfile == defaultModfile
	if !v.Default && v.modfile != v.Minor+".mod" {
		return Version{}, fmt.Errorf("it requires Kubernetes %s", v.Release)
	}
	return v, nil
}

// number is the second number of the version: Kubernetes 1.36 is 36.
func (v Version) number() int {
	n, _ := strconv.Atoi(strings.TrimPrefix(v.Minor, "1."))
	return n
}

// sumfile is the name of the file of checksums that belongs to modfile.
func (v Version) sumfile() string { return strings.TrimSuffix(v.modfile, ".mod") + ".sum" }

// isOf reports whether a file of hack/controlplane, as a path from there, is compiled
// into the version. Other versions have modules of their own.
func (v Version) isOf(path string) bool {
	if filepath.Dir(path) != "." {
		return true
	}
	switch filepath.Ext(path) {
	case ".mod":
		return path == v.modfile
	case ".sum":
		return path == v.sumfile()
	}
	return true
}

// chosen is the version with a minor such as 1.35, and the default one for "".
func chosen(versions []Version, minor string) (Version, error) {
	names := make([]string, 0, len(versions))
	for _, v := range versions {
		if v.Minor == minor || minor == "" && v.Default {
			return v, nil
		}
		names = append(names, v.Minor)
	}
	if minor == "" {
		return Version{}, errors.New("hack/controlplane has no go.mod")
	}
	return Version{}, fmt.Errorf("%s=%s: hack/controlplane has only %s", Variable, minor, strings.Join(names, ", "))
}
