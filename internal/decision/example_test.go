package decision_test

import (
	"fmt"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// A spot warning for a node of this cluster means a drain by the deadline of the warning. The
// same warning for an unknown instance is left to other readers of the queue.
func ExampleDecide() {
	now := time.Date(2026, time.November, 20, 10, 15, 30, 0, time.UTC)
	policy := decision.Policy{NodeGracePeriod: 2 * time.Minute}
	warning := notice.Notice{Kind: notice.SpotInterruption, Time: now, Deadline: now.Add(2 * time.Minute), Instances: []string{"i-0123456789abcdef0"}}

	d := decision.Decide(warning, decision.Facts{Ownership: decision.Ours, Now: now}, policy)
	fmt.Println(d.Action, "because of", d.Why, "by", d.Deadline.Format(time.TimeOnly))

	d = decision.Decide(warning, decision.Facts{Ownership: decision.Foreign, Now: now}, policy)
	fmt.Println(d.Action, "because of", d.Why)
	// Output:
	// drain because of spot-interruption by 10:17:30
	// leave because of instance-not-in-cluster
}
