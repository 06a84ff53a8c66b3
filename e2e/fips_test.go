package e2e

import (
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

// The variant differs in its cryptography alone: what it needs for the API server, for
// AWS and for its Lease has to be among what FIPS 140-3 allows.
func TestTheFIPSVariantCompletesAHookAfterItsDrain(t *testing.T) {
	tier.Full(t, "it compiles everything again")
	s := newScenario(t)
	path := filepath.Join(s.TempDir(), release.Name)
	// As hack/release builds it; make e2e-all has compiled it before.
	build := exec.CommandContext(s.ctx, "go", "build", "-trimpath", "-o", path, "../cmd/"+release.Name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFIPS140=certified")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	info, err := buildinfo.ReadFile(path)
	s.must(err)
	if !slices.ContainsFunc(info.Settings, func(b debug.BuildSetting) bool {
		return b.Key == "GOFIPS140" && strings.HasPrefix(b.Value, "v")
	}) {
		t.Fatalf("it is built with %v", info.Settings)
	}

	n := s.nodes(1)[0]
	s.hook(awssim.Terminating, 10*time.Minute, n)
	s.deployment("web", 2, grace(5, time.Second))
	h := s.replica()
	h.program = path
	h.run()
	h.awaitReady()
	h.awaitLead()
	action, message := s.transition(n, awssim.Terminating)
	s.awaitDeleted(soon, message)
	s.drainedBefore(message, n)
	s.completedOnce(action)
}
