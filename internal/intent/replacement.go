package intent

import "time"

// A Replacement is what has been done so that another instance stands ready before the node is drained. It
// is written down before each call to AWS whose effect must not come twice, so that the next leader
// knows what may have happened.
//
//	choosing ─▶ marking ─▶ marked: the Auto Scaling group replaces the instance by itself
//	         ─▶ launching ─▶ launched ─▶ ending ─▶ over: we launch another, drain, and terminate this one
//	                                  ─▶ returning ─▶ over: it is called off, and we terminate the other
//	         ─▶ over: there is none
type Replacement struct {
	Step ReplacementStep `json:"step"`
	// Group is the Auto Scaling group of the instance, and Zone the Availability Zone in which another one
	// is launched.
	Group string `json:"group,omitempty"`
	Zone  string `json:"zone,omitempty"`
	// For names what the replacement is for, and so the launch: see package replacement.
	For string `json:"for,omitempty"`
	// Since is when the step before all others was chosen, and Until is how long the replacement is awaited.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// Desired is the desired capacity of the group before the launch. Raised: the launch has raised it.
	Desired int  `json:"desired,omitempty"`
	Raised  bool `json:"raised,omitempty"`
	// Instance is the one that was launched.
	Instance string `json:"instance,omitempty"`
	// Why is why there is none, or why it is not awaited any more; for people.
	Why string `json:"why,omitempty"`
}

// A ReplacementStep says how far a replacement has come.
type ReplacementStep string

// The steps.
const (
	NotReplacing ReplacementStep = ""          // nothing was chosen
	Marking      ReplacementStep = "marking"   // the group may have been asked to replace the instance
	Marked       ReplacementStep = "marked"    // the group replaces it, and tells of its termination
	Launching    ReplacementStep = "launching" // another instance may have been launched
	Launched     ReplacementStep = "launched"  // Instance was launched
	Ending       ReplacementStep = "ending"    // the node's own instance may have been terminated
	Returning    ReplacementStep = "returning" // Instance may have been terminated, because it is not needed
	Over         ReplacementStep = "over"      // nothing is left to do
)

// Open reports whether something is left that somebody has to do, or the launched instance would stay for
// nothing.
func (r Replacement) Open() bool {
	switch r.Step {
	case Launching, Launched, Ending, Returning:
		return true
	case NotReplacing, Marking, Marked, Over:
	}
	return false
}

// EndsOwn reports whether we terminate the node's own instance after its drain, if nobody calls that off.
func (r Replacement) EndsOwn() bool {
	switch r.Step {
	case Launching, Launched, Ending:
		return true
	case NotReplacing, Marking, Marked, Returning, Over:
	}
	return false
}

// Awaited reports whether the drain may have to wait for the replacement.
func (r Replacement) Awaited() bool {
	switch r.Step {
	case NotReplacing, Marking, Marked, Launching, Launched, Returning:
		return r.Why == ""
	case Ending, Over:
	}
	return false
}

// ReplacesFirst reports whether the node gets a replacement before its drain begins, or is to get one:
// all its notices ask for that.
func (i Intent) ReplacesFirst() bool {
	return len(i.Entries) > 0 && !i.Finished() && i.Terms().ReplaceFirst && i.Replacement.Awaited()
}
