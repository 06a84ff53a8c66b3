package kubesim

import (
	"math"
	"time"
)

// A Tier is the capacity of a control plane. The zero value has no limits.
type Tier struct {
	// Seats are how many requests of width 1 the API server works on at once, all priority levels together.
	Seats int
	// PodsPerSecond are how many pods the scheduler binds.
	PodsPerSecond float64
}

// Tiers are the control planes that can be simulated, by name.
//
// xl, 2xl and 4xl are the tiers of EKS Provisioned Control Plane, as AWS announced them in November 2025:
// https://aws.amazon.com/blogs/containers/amazon-eks-introduces-provisioned-control-plane. The user guide gives more
// seats to clusters from Kubernetes 1.34 on (2,000, 4,000 and 8,000), and the same rates of the scheduler:
// https://docs.aws.amazon.com/eks/latest/userguide/eks-provisioned-control-plane.html.
//
// default is what is released: 400 and 200 requests in flight for one kube-apiserver, and 50 requests a second for
// the scheduler, which makes one to bind a pod.
// https://kubernetes.io/docs/reference/command-line-tools-reference/kube-apiserver/ and
// https://kubernetes.io/docs/reference/config-api/kube-scheduler-config.v1/.
var Tiers = map[string]Tier{
	"none":    {},
	"default": {Seats: 600, PodsPerSecond: 50},
	"xl":      {Seats: 1700, PodsPerSecond: 167},
	"2xl":     {Seats: 3400, PodsPerSecond: 283},
	"4xl":     {Seats: 6800, PodsPerSecond: 400},
}

// A Level is a priority level of API Priority and Fairness, as far as one client sees it. Seats that other levels
// lend are left out: in a storm they have work of their own.
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/
type Level struct {
	Shares, AllShares int // of the seats
	HandSize          int // queues that one client's requests are put into
}

// The levels of a cluster without further ones, from k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap.
var (
	// ServiceAccounts is workload-low, the level of all service accounts outside kube-system.
	ServiceAccounts = Level{Shares: 100, AllShares: 245, HandSize: 6}
	// KubeSystem is workload-high, that of the service accounts in kube-system.
	KubeSystem = Level{Shares: 40, AllShares: 245, HandSize: 6}
	// Own is the level of deploy/manifests/flowschema.yaml.
	Own = Level{Shares: 30, AllShares: 275, HandSize: 4}
)

// seats are those of a level; 0: no limit.
func (l Level) seats(t Tier) int {
	return int(math.Ceil(float64(t.Seats) * float64(l.Shares) / float64(l.AllShares)))
}

// What a request costs besides the time that it takes, from k8s.io/apiserver/pkg/util/flowcontrol: request/config.go,
// request/mutating_work_estimator.go and apf_controller.go.
const (
	watchesPerSeat  = 10
	eventDuration   = 5 * time.Millisecond // for which the watches of a write take their seats
	widest          = 10                   // seats of one request
	widestShare     = 0.15                 // of the level's seats
	queueLength     = 50
	bytesPerSeat    = 100_000 // of a list
	mostBytesOfList = 1_000_000
)

// A cost is what a request takes of the seats: some while it is worked on, and some for a while after. All that it
// ever needs are reserved at once.
type cost struct {
	seats int
	after int // seats
	lasts time.Duration
}

// read is the cost of what has one object.
var read = cost{seats: 1}

// width is how many seats one request of a level takes at most.
func width(levelSeats, handSize int) int {
	return min(widest, max(1, min(int(math.Ceil(float64(levelSeats)*widestShare)), levelSeats/max(1, handSize))))
}

// writeCost is the cost of a write that so many watches get. Each takes a tenth of a seat for 5 ms. Where that is
// more seats than one request may take, it takes them for longer: with 15,000 watches 10 for 0.75 s.
func writeCost(watches, width int) cost {
	if watches < watchesPerSeat {
		return read
	}
	seats := (watches + watchesPerSeat - 1) / watchesPerSeat
	work := time.Duration(seats) * eventDuration
	seats = min(seats, width)
	return cost{seats: 1, after: seats, lasts: work / time.Duration(seats)}
}

// listCost is the cost of a list from the watch cache, which does not count that an index finds what is asked for.
func listCost(objects, bytesEach, width int) cost {
	bytes := min(objects*bytesEach, mostBytesOfList)
	return cost{seats: max(1, min(width, (bytes+bytesPerSeat-1)/bytesPerSeat))}
}
