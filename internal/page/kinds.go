package page

// A kind has a colour and a shape of its own. Both are named by its class in the style sheet and the id of its
// symbol in the page.
type kind struct {
	Name  string // as the label node-termination-handler/kind has it
	Class string
	Shape string // the data of an SVG path around 0,0 that is some ten pixels wide
}

// kinds are the kinds of notice that have a drain; the last one is for those that this version does not know.
var kinds = [...]kind{
	{"spot-interruption", "k0", "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z"},
	{"rebalance-recommendation", "k1", "M-4 -4h8v8h-8z"},
	{"state-change", "k2", "M0 -5.5L5.5 0L0 5.5L-5.5 0z"},
	{"scheduled-change", "k3", "M0 -5L5.2 4H-5.2z"},
	{"asg-terminate", "k4", "M0 5L5.2 -4H-5.2z"},
	{"asg-launch", "k5", "M-1.6 -5h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4v-3.2h3.4z"},
	{"capacity-reservation-interruption", "k6", "M-5 0L-2.5 -4.4H2.5L5 0L2.5 4.4H-2.5z"},
	{"capacity-block-expiration", "k7", "M-5 -2.6h10v5.2h-10z"},
	{"instance-impaired", "k8", cross},
	{"unknown", "k9", "M-5 -1.2h10v2.4h-10z"},
}

const cross = "M-5 -2.5l2.5 -2.5l2.5 2.5l2.5 -2.5l2.5 2.5l-2.5 2.5l2.5 2.5l-2.5 2.5" +
	"l-2.5 -2.5l-2.5 2.5l-2.5 -2.5l2.5 -2.5z"

// kindNamed is the kind of a name; an empty or new one is the last kind.
func kindNamed(name string) *kind {
	for i := range kinds {
		if kinds[i].Name == name {
			return &kinds[i]
		}
	}
	return &kinds[len(kinds)-1]
}
