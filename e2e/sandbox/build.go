package sandbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Binaries are the programs of a control plane, as paths.
type Binaries struct {
	Kubernetes   string // the version of the control plane, such as v1.36.3
	ControlPlane string // kube-apiserver, kube-controller-manager, kube-scheduler and etcd
	KWOK         string
	Stages       string // how KWOK's nodes and pods behave
}

// Build returns the binaries that hack/controlplane describes, compiling them
// unless that was done before: they are kept in the user's cache directory
// under a hash of the sources and the Go version. Variable chooses the version of
// Kubernetes. It takes Go, nothing else; the first time several minutes. What it does, and every 15 s how it goes, is
// written to out; nothing is when there is nothing to do.
//
// Any number of processes may call it at once, one of them compiles. When ctx
// ends the compiler is stopped and the cause is returned.
func Build(ctx context.Context, out io.Writer) (Binaries, error) {
	source, err := sourceDir()
	if err != nil {
		return Binaries{}, fmt.Errorf("find hack/controlplane: %w", err)
	}
	versions, err := versionsIn(source)
	if err != nil {
		return Binaries{}, fmt.Errorf("list the versions of Kubernetes: %w", err)
	}
	version, err := chosen(versions, os.Getenv(Variable))
	if err != nil {
		return Binaries{}, fmt.Errorf("choose a version of Kubernetes: %w", err)
	}
	hash, err := sourceHash(ctx, source, version)
	if err != nil {
		return Binaries{}, fmt.Errorf("hash %s: %w", source, err)
	}
	dir, err := cached(ctx, hash, "the control plane", out, func(partial string) error {
		return compile(ctx, source, version, partial, out)
	})
	if err != nil {
		return Binaries{}, err
	}
	return Binaries{
		Kubernetes:   version.Release,
		ControlPlane: filepath.Join(dir, "controlplane"),
		KWOK:         filepath.Join(dir, "kwok"),
		Stages:       filepath.Join(dir, "stages.yaml"),
	}, nil
}

// cached is keep in the user's cache directory.
func cached(
	ctx context.Context, name, what string, out io.Writer, fill func(partial string) error,
) (dir string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w", err)
	}
	return keep(ctx, filepath.Join(cache, "node-termination-handler", name), what, out, fill)
}

// keep returns a directory of the cache. If it is not there, fill fills another one, which takes
// its name when it is complete. what is what that compiles, in words.
func keep(
	ctx context.Context, dir, what string, out io.Writer, fill func(partial string) error,
) (_ string, err error) {
	if exists(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("make the cache directory: %w", err)
	}
	unlock, err := lock(ctx, dir+".lock", what, out)
	if err != nil {
		return "", fmt.Errorf("lock %s: %w", dir, err)
	}
	defer unlock()
	if exists(dir) {
		return dir, nil
	}
	partial := dir + ".partial"
	if err := os.RemoveAll(partial); err != nil { // of a build that was killed
		return "", err
	}
	if err := os.Mkdir(partial, 0o755); err != nil {
		return "", err
	}
	defer os.RemoveAll(partial)
	if err := fill(partial); err != nil {
		return "", fmt.Errorf("compile %s: %w", what, err)
	}
	if err := os.Rename(partial, dir); err != nil {
		return "", err
	}
	prune(filepath.Dir(dir), time.Now().Add(-14*24*time.Hour))
	return dir, nil
}

// prune removes from the cache what was compiled before a time. Each entry
// takes 200 MB; two weeks are longer than any cluster runs and than most
// branches wait. What cannot be removed stays for the next time.
func prune(cache string, before time.Time) {
	entries, _ := filepath.Glob(filepath.Join(cache, "controlplane-*"))
	more, _ := filepath.Glob(filepath.Join(cache, karpenterPrefix+"*"))
	for _, path := range append(entries, more...) {
		if info, err := os.Stat(path); err == nil && info.ModTime().Before(before) {
			_ = os.RemoveAll(path)
		}
	}
}

// compile compiles the control plane and KWOK into a directory.
func compile(ctx context.Context, source string, version Version, dir string, out io.Writer) error {
	const pkg = "k8s.io/component-base/version"
	ldflags := fmt.Sprintf("-s -w -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=1 -X %[1]s.gitMinor=%[3]d",
		pkg, version.Release, version.number())

	what := "compiling the control plane of Kubernetes " + version.Release
	fmt.Fprintln(out, what+": the first time takes 4 to 6 minutes on 2 cores")
	stop := progress(out, what)
	err := goBuild(ctx, source, version.modfile, ldflags, filepath.Join(dir, "controlplane"))
	stop()
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "compiling KWOK: the first time takes 1 to 2 minutes on 2 cores")
	stop = progress(out, "compiling KWOK")
	err = goBuild(ctx, filepath.Join(source, "kwok"), defaultModfile, "-s -w", filepath.Join(dir, "kwok"))
	stop()
	if err != nil {
		return err
	}
	stages, err := os.ReadFile(filepath.Join(source, "kwok", "stages.yaml"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "stages.yaml"), stages, 0o644)
}

// goBuild compiles the main package in dir to the file output, with the versions of modfile.
func goBuild(ctx context.Context, dir, modfile, ldflags, output string) error {
	cmd := goCommand(ctx, dir, "build", "-modfile="+modfile, "-ldflags", ldflags, "-o", output, ".")
	if text, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%s in %s: %w\n%s", cmd, dir, err, lastLines(text, 20))
	}
	return nil
}

// goCommand is a command of the go tool in dir that ends with ctx.
func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off") // a workspace of the main module's does not know this one
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second // the go tool waits for its compilers first
	return cmd
}

// progress writes a line to out every 15 s, until the function it returns is called.
func progress(out io.Writer, what string) (stop func()) {
	start, quit, done := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(15 * time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-quit:
				return
			case <-ticker.C:
				fmt.Fprintf(out, "%s: %s\n", what, time.Since(start).Round(time.Second))
			}
		}
	}()
	return func() { close(quit); <-done }
}

// lock takes the lock that the file at path stands for, and says on out when it
// has to wait for another process. The system lifts it when a process dies.
func lock(ctx context.Context, path, what string, out io.Writer) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for told := false; ; {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = file.Close()
			return nil, err
		}
		if !told {
			fmt.Fprintln(out, "waiting for another process that compiles "+what)
			told = true
		}
		select {
		case <-ctx.Done():
			_ = file.Close()
			return nil, context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// sourceDir is hack/controlplane of the source tree this package was compiled from.
func sourceDir() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		// With -trimpath the caller is no path: the working directory of a test is.
		dir, err := os.Getwd()
		if err != nil {
			return "", err
		}
		file = filepath.Join(dir, "unknown.go")
	}
	for dir := filepath.Dir(file); ; dir = filepath.Dir(dir) {
		if source := filepath.Join(dir, "hack", "controlplane"); exists(source) && exists(filepath.Join(dir, "go.mod")) {
			return source, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is not inside the source tree", filepath.Dir(file))
		}
	}
}

// sourceHash names what would be compiled from source: the files of the version,
// and the compiler with its target.
func sourceHash(ctx context.Context, source string, version Version) (string, error) {
	hash, err := hashOf(ctx, source, version.Release, version.isOf)
	if err != nil {
		return "", err
	}
	return "controlplane-" + hash, nil
}

// hashOf names what would be compiled from the files of source that are of it, as paths from
// there, and the compiler with its target.
func hashOf(ctx context.Context, source, name string, isOf func(path string) bool) (string, error) {
	hash := sha256.New()
	var stderr bytes.Buffer
	env := goCommand(ctx, source, "env", "GOVERSION", "GOOS", "GOARCH", "CGO_ENABLED", "GOFLAGS")
	env.Stdout, env.Stderr = hash, &stderr
	if err := env.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", env, err, stderr.Bytes())
	}
	fmt.Fprintln(hash, name)
	err := filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !slices.Contains([]string{".go", ".mod", ".sum", ".yaml"}, filepath.Ext(path)) {
			return err
		}
		relative, err := filepath.Rel(source, path)
		if err != nil || !isOf(relative) {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fmt.Fprintf(hash, "%s %d\n%s", relative, len(content), content)
		return nil
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", hash.Sum(nil)[:8]), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// lastLines is the end of text, at most n lines of it.
func lastLines(text []byte, n int) string {
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
