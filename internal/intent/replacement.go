package intent

import "time"

// A Replacement is what was done so that another instance stands ready before the node is drained. It is written down
// before the call to AWS, so that the next leader knows what may have happened.
//
//	choosing ─▶ marking ─▶ marked: the Auto Scaling group replaces the instance
//	         ─▶ over: there is none
type Replacement struct {
	Step ReplacementStep `json:"step"`
	// Group is the Auto Scaling group of the instance.
	Group string `json:"group,omitempty"`
	// Until is how long the replacement is awaited.
	Until time.Time `json:"until,omitzero"`
	// Why is why there is none, or why it is not awaited any more; for people.
	Why string `json:"why,omitempty"`
}

// A ReplacementStep says how far a replacement has come.
type ReplacementStep string

// The steps.
const (
	NotReplacing ReplacementStep = ""        // nothing was chosen
	Marking      ReplacementStep = "marking" // the group may have been asked to replace the instance
	Marked       ReplacementStep = "marked"  // the group replaces it, and tells of its termination
	Over         ReplacementStep = "over"    // nothing is awaited
)

// ReplacesFirst reports whether the node gets a replacement before its drain begins, or is to get one:
// all its notices ask for that.
func (i Intent) ReplacesFirst() bool {
	return len(i.Entries) > 0 && !i.Finished() && i.Terms().ReplaceFirst &&
		i.Replacement.Step != Over && i.Replacement.Why == ""
}
