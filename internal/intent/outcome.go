package intent

// An Outcome says how the drain of a node ended. Empty: it has not.
type Outcome string

// The outcomes.
const (
	Drained     Outcome = "drained"     // all pods that had to leave have left
	Missed      Outcome = "missed"      // some were still there at the deadline
	Gone        Outcome = "gone"        // some were still there when the machine was gone
	Unconfirmed Outcome = "unconfirmed" // some should have ended, and no kubelet says that they have
	Cordoned    Outcome = "cordoned"    // none was asked to leave: the node is only cordoned
	CalledOff   Outcome = "called-off"  // nobody wanted it drained any more; the node has no such state
)
