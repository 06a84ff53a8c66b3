package holdback

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestTheBoundOfUnreadyNodesIsANumberOrAPercentage(t *testing.T) {
	for _, tt := range []struct {
		max         string
		nodes, want int
	}{
		{"3", 100, 3}, {"3", 2, 3}, {"10%", 100, 10}, {"10%", 99, 9}, {"10%", 5, 1}, {"10%", 0, 1}, {"100%", 7, 7},
	} {
		if got := mostUnready(intstr.Parse(tt.max), tt.nodes); got != tt.want {
			t.Errorf("%s of %d nodes: %d, want %d", tt.max, tt.nodes, got, tt.want)
		}
	}
}
