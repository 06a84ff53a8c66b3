package options

import (
	"bytes"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/golden"
)

func TestOptionsDocIsWhatTheTableSays(t *testing.T) {
	var doc bytes.Buffer
	writeOptionsDoc(&doc)
	golden.Compare(t, "../../docs/options.md", doc.String())
}
