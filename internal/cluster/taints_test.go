package cluster

import (
	"os"
	"strings"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// With the effect NoExecute the handler would evict itself, and after its removal a taint would stay.
func TestTheChartToleratesAndTheDocsRemoveEachTaint(t *testing.T) {
	for _, path := range []string{"../../deploy/helm/node-termination-handler/templates/_pods.tpl", "../../docs/upgrade.md"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range notice.Kinds {
			name := strings.TrimPrefix(taintKey(kind), taintPrefix)
			if !strings.Contains(string(text), name) {
				t.Errorf("%s does not name %s", path, name)
			}
		}
	}
}
