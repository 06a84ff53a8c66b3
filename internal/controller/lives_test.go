package controller

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/race"
)

var (
	lives       = flag.Int("lives", 20, "how many histories of nodes to play, besides those that have found something")
	livesFirst  = flag.Bool("lives-first", false, "play no more histories after the first that fails")
	livesShrink = flag.Int("lives-shrink", 2, "how many histories to shrink of those that violate the same")
	livesSeed   = flag.Uint64("lives-seed", 1, "seed of the first history, the same each time so that no gate fails by chance; 0: one of its own; it is printed")
)

// A history is what happens to a few machines: nothing in it is left to chance but
// the order in which goroutines run.
type history struct {
	seed     uint64
	options  livesOptions
	machines []bool // in service from the beginning; the others may be launched
	owners   []owner
	steps    []step
	policies [][]lifeRule // of the policy file; the first from the beginning; none: there is no file
}

// livesOptions are those of the program, the group and the queue.
type livesOptions struct {
	tagCheck, deleteForeign, heartbeats, marks, outOfService bool
	othersHook, launchHook                                   bool
	maxUnready, workers                                      int
	block                                                    int // the machines of a Capacity Block, the first ones
	completionDelay                                          time.Duration
	hookTimeout, launchTimeout                               time.Duration
	shutdown                                                 time.Duration // of an instance
	duplicates                                               float64
	disorder                                                 bool
	sweeps                                                   bool
	loses                                                    bool // half of the events of termination hooks
	changesHappen                                            bool // a scheduled change reboots or stops its machine
	polls                                                    bool // EC2 lists the scheduled changes
	losesNews                                                bool // then, half of their announcements by AWS Health
	bothModes                                                bool // a pod in IMDS mode is on each node
	losesSpot                                                bool // then, half of the events of what the metadata tells too
	drainsImpaired                                           bool
	oneProcess                                               bool          // leads again and again, until it is killed
	deregistration                                           time.Duration // of a load balancer's target; 0: there is none
}

// An owner keeps pods running.
type owner struct {
	kind      string // ReplicaSet, StatefulSet, DaemonSet; empty: nobody makes them anew
	replicas  int
	grace     time.Duration
	stops     time.Duration // what a pod takes to stop
	budget    time.Duration // for which evictions of a pod are refused; negative: until the end of the history
	tolerates bool          // the cordon, and every taint: the pods come back to the node that they left
	finalizer bool
}

func (o livesOptions) String() string {
	on := []string{fmt.Sprintf("hooks time out after %s and %s, instances stop in %s", o.hookTimeout, o.launchTimeout, o.shutdown)}
	for name, set := range map[string]bool{
		"one process leads again": o.oneProcess, "both modes": o.bothModes, "events of spot are lost": o.losesSpot, "impaired instances are drained": o.drainsImpaired,
		fmt.Sprint("targets leave in ", o.deregistration): o.deregistration > 0, "tag check": o.tagCheck, "delete foreign messages": o.deleteForeign, "heartbeats": o.heartbeats, "taints and labels": o.marks,
		"sweeps": o.sweeps, "events are lost": o.loses, "polls": o.polls, "announcements are lost": o.losesNews, "changes happen": o.changesHappen,
		"out-of-service taint": o.outOfService, "a hook of others": o.othersHook, "a launch hook": o.launchHook, "disorder": o.disorder,
		fmt.Sprintf("the first %d machines in a block", o.block): o.block > 0,
		fmt.Sprint("max unready ", o.maxUnready):                 o.maxUnready > 0, fmt.Sprint("workers ", o.workers): o.workers > 0,
		fmt.Sprint("completion delay ", o.completionDelay): o.completionDelay > 0, fmt.Sprint("duplicates ", o.duplicates): o.duplicates > 0,
	} {
		if set {
			on = append(on, name)
		}
	}
	slices.Sort(on[1:])
	return strings.Join(on, ", ")
}

func (o owner) String() string {
	s := fmt.Sprintf("%s, grace %s, stop in %s", cmp.Or(o.kind, "no owner"), o.grace, o.stops)
	switch {
	case o.budget < 0:
		s += ", a budget refuses"
	case o.budget > 0:
		s += fmt.Sprintf(", a budget refuses for %s", o.budget)
	}
	if o.tolerates {
		s += ", tolerate everything"
	}
	if o.finalizer {
		s += ", have a finalizer"
	}
	return s
}

// A step is one thing that happens. What it cannot happen to is not affected.
type step struct {
	at   time.Duration
	what string
	m    int           // the machine
	d    time.Duration // of whatever the step is about
	late time.Duration // by which its notice comes late
	text string
}

func (s step) String() string {
	line := fmt.Sprintf("%12s  %s", s.at.Round(time.Second), s.what)
	if s.m >= 0 {
		line += " " + machineName(s.m)
	}
	if s.text != "" {
		line += " " + s.text
	}
	if s.d != 0 {
		line += " " + s.d.String()
	}
	if s.late != 0 {
		line += fmt.Sprintf(", the notice %s late", s.late)
	}
	return line
}

// A violation is an invariant that did not hold.
type violation struct {
	check invariant
	step  int // the last one before it; -1: none
	at    time.Duration
	text  string
}

func (v violation) String() string {
	return fmt.Sprintf("%s [%s, after step %d]: %s", v.check, v.at.Round(time.Millisecond), v.step, v.text)
}

// String is a history to read, and to play with pencil and paper.
func (h *history) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "options: %s\n", h.options)
	for k, inService := range h.machines {
		fmt.Fprintf(&b, "machine %s, in service: %t\n", machineName(k), inService)
	}
	for k, o := range h.owners {
		fmt.Fprintf(&b, "%d pods of %s: %s\n", o.replicas, ownerName(k), o)
	}
	for k, rules := range h.policies {
		fmt.Fprintf(&b, "rules %d: %s\n", k, rules)
	}
	for k, s := range h.steps {
		fmt.Fprintf(&b, "%3d %s\n", k, s)
	}
	return b.String()
}

// knownLives are seeds that have found something.
var knownLives = []uint64{
	31, 206, 537, 568, 612, 749, 777, 921, 5275, 5305, 5453, 5498, 20179, 20333, 20390, 20965, 60093, 80225, 80327, 301672, 400201,
	1001688, 1001840, 447619462649, 447619462765, 447619462931, 447619462939, 172761720324,
	239615719952, 239615729517, 239615728333, 239615727954, 239615725616, 239615725488, 239615721962, 239615726823, 239615724753, 239615720183,
	942780663031, 942780662126, 76570306184, 453659213444, 202993839611, 202993839000, 202993835946,
	741654302152, 741654298156, 741654295387, 264257743815, 264257736869,
}

// laterLives are such seeds too, from the time since which machines come back.
var laterLives = []uint64{
	3, 5123, 40226, 40461, 731000009525, 731000009309, 731000007631, 731000007428, 731000007146, 731000005192, 731000003730, 731000003491,
	731000003319, 731000009904, 731000001464, 731000000571, 5500000000597,
	220357450677, 220357448533, 220357448207, 220357445912, 220357444935, 220357443288, 15124039037, 21520392434,
}

// recentLives are such seeds too, from the time since which leaders are absent.
var recentLives = []uint64{
	67634447352, 67634455956, 67634451469, 67634450952, 337184492795, 337184492489, 827699228394, 827699228336, 363034274714,
	363034266300, 363034265501, 487257592424, 110931798952, 110931798284,
	110931793879, 110931789440, 110931789731, 444299994280, 397510210483, 110931797628, 110931797993, 110931796098,
	6830, 5732, 327611720655, 186162165679, 186162165187, 800766783084, 800766790995, 549653400344, 549653401815, 579286129202,
	145, // finds a defect of hack/lives-mutants that hardly any other seed finds
}

// ruledLives are such seeds too, from the time since which there are rules, load balancers and pods on nodes.
var ruledLives = []uint64{
	2020, 2088, 2096, 2108, 2210, 2413, 2498, 4075, 4119, 4712, 4737, 4771, 5028, 5180, 5246, 5368, 5428, 7531, 7583, 7907, 8194, 11151,
	201, 30346, 31541, 40204, 40359, 726226141476, 726226143653, 726226144539, 726226139424, 726226140600, 726226139608,
	910119, 910623, 864454320214, 864454321885, 864454322731, 864454325076, 698148059842, 698148057505,
	698148056594, 698148059145, 698148057853, 205038189659, 205038187921, 205038184783, 349520334161,
	478419877075, 478419876533, 478419875392, 478419875132, 231317, 231498, 2611920, 2611775,
	308017601941,
}

// Whatever lives the machines of a cluster have, and whatever AWS and people tell
// of them, the invariants hold; see their list.
func TestLives(t *testing.T) {
	race.Long(t)
	t.Parallel()
	first := *livesSeed
	if first == 0 {
		first = 1 + rand.Uint64N(1e12)
	}
	t.Logf("lives-seed=%d", first)
	var seeds []uint64
	if *lives > 1 {
		seeds = slices.Concat(knownLives, laterLives, recentLives, ruledLives)
	}
	for k := range *lives {
		seeds = append(seeds, first+uint64(k))
	}
	if race.Enabled() {
		seeds = slices.DeleteFunc(seeds, func(seed uint64) bool { return seed%25 != 0 })
	}
	record := &livesRecord{shrunk: map[invariant]int{}, failed: map[invariant][]uint64{}}
	t.Cleanup(func() { record.log(t) })
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("lives-seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			if *livesFirst && record.any() {
				t.SkipNow()
			}
			h := drawHistory(seed)
			found := play(t, h, "", *lives == 1 && testing.Verbose())
			if len(found) == 0 {
				return
			}
			if record.add(seed, found) {
				h, found = shrink(t, h, found)
			}
			lines := make([]string, len(found))
			for k, v := range found {
				lines[k] = v.String()
			}
			t.Errorf("%s\n%s\nagain: go test ./internal/controller -run TestLives -lives 1 -lives-seed %d -v", strings.Join(lines, "\n"), h, seed)
		})
	}
}

// livesRecord is what many histories have found.
type livesRecord struct {
	mu     sync.Mutex
	shrunk map[invariant]int
	failed map[invariant][]uint64
}

// add reports whether the history is worth to be shrunk: the first few of each kind are.
func (r *livesRecord) add(seed uint64, found []violation) (worth bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range found {
		if r.shrunk[v.check] < *livesShrink {
			r.shrunk[v.check]++
			worth = true
		}
		if !slices.Contains(r.failed[v.check], seed) {
			r.failed[v.check] = append(r.failed[v.check], seed)
		}
	}
	return worth
}

func (r *livesRecord) any() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failed) > 0
}

func (r *livesRecord) log(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, check := range invariants {
		if seeds := r.failed[check]; len(seeds) > 0 {
			t.Logf("%d histories violate %q, such as those of %v", len(seeds), check, seeds[:min(len(seeds), 5)])
		}
	}
}

// A history of days takes a fraction of a second. One that takes this long does not
// go on: something is tried again and again without a pause.
const (
	longestHistory = 5 * time.Minute
	longestEnd     = 5 * time.Minute
)

// play lets a history happen in a bubble of its own. It ends when the invariant
// until, if there is one, is violated.
func play(t *testing.T, h *history, until invariant, verbose bool) (found []violation) {
	t.Helper()
	var stuck atomic.Bool
	var last *time.Timer
	var mu sync.Mutex
	guard := time.AfterFunc(longestHistory, func() {
		stuck.Store(true) // the next request ends it
		mu.Lock()
		defer mu.Unlock()
		last = time.AfterFunc(longestEnd, func() {
			debug.SetTraceback("all")
			panic(fmt.Sprintf("the history of seed %d does not go on, without any request\n%s", h.seed, h))
		})
	})
	defer func() {
		guard.Stop()
		mu.Lock()
		defer mu.Unlock()
		if last != nil {
			last.Stop()
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, h, &stuck, verbose)
		w.until = until
		w.play()
		found = w.found()
	})
	return found
}

// shrink looks for a shorter history that violates the same: without steps, without
// machines, without pods, in less time.
func shrink(t *testing.T, h *history, found []violation) (*history, []violation) {
	t.Helper()
	const patience = 20 * time.Second
	begin := time.Now()
	want := found[0].check
	fails := func(candidate *history) bool {
		if time.Since(begin) > patience {
			return false
		}
		now := play(t, candidate, want, false)
		if !slices.ContainsFunc(now, func(v violation) bool { return v.check == want }) {
			return false
		}
		h, found = candidate, now
		return true
	}
	if last := found[0].step + 1; last < len(h.steps) { // what came later did not cause it
		candidate := *h
		candidate.steps = h.steps[:last]
		fails(&candidate)
	}
	for size := (len(h.steps) + 1) / 2; size > 0; size /= 2 {
		for at := 0; at < len(h.steps); {
			candidate := *h
			candidate.steps = slices.Delete(slices.Clone(h.steps), at, min(at+size, len(h.steps)))
			if !fails(&candidate) {
				at += size
			}
		}
	}
	for m := len(h.machines) - 1; m > 0; m-- {
		candidate := *h
		candidate.machines = slices.Clone(h.machines)
		candidate.machines[m] = false
		candidate.steps = slices.DeleteFunc(slices.Clone(h.steps), func(s step) bool { return s.m == m })
		if h.machines[m] {
			fails(&candidate)
		}
	}
	for k := len(h.owners) - 1; k >= 0; k-- {
		candidate := *h
		candidate.owners = slices.Clone(h.owners)
		candidate.owners[k].replicas = 0
		if h.owners[k].replicas > 0 && h.owners[k].kind != "DaemonSet" {
			fails(&candidate)
		}
	}
	for _, simpler := range []func(o *livesOptions){
		func(o *livesOptions) { o.duplicates, o.disorder = 0, false },
		func(o *livesOptions) { o.maxUnready, o.workers, o.completionDelay = 0, 0, 0 },
		func(o *livesOptions) { o.marks, o.outOfService = false, false },
		func(o *livesOptions) { o.othersHook = false },
		func(o *livesOptions) { o.oneProcess = false },
		func(o *livesOptions) { o.losesSpot = false },
		func(o *livesOptions) { o.bothModes = o.losesSpot },
		func(o *livesOptions) { o.deregistration = 0 },
		func(o *livesOptions) { o.loses = false },
		func(o *livesOptions) { o.sweeps = o.loses },
		func(o *livesOptions) { o.losesNews = false },
		func(o *livesOptions) { o.polls = o.losesNews },
		func(o *livesOptions) { o.changesHappen = false },
		func(o *livesOptions) { o.launchHook = false },
		func(o *livesOptions) { o.heartbeats = false },
		func(o *livesOptions) { o.deleteForeign = true },
		func(o *livesOptions) { o.tagCheck = false },
	} {
		candidate := *h
		if simpler(&candidate.options); candidate.options != h.options {
			fails(&candidate)
		}
	}
	if len(h.policies) > 0 {
		candidate := *h
		candidate.policies = nil
		candidate.steps = slices.DeleteFunc(slices.Clone(h.steps), func(s step) bool { return s.what == doRules })
		fails(&candidate)
	}
	for again := true; again; {
		again = false
		for k := range h.steps {
			before := time.Duration(0)
			if k > 0 {
				before = h.steps[k-1].at
			}
			gap := h.steps[k].at - before
			if gap < 2*time.Minute {
				continue
			}
			candidate := *h
			candidate.steps = slices.Clone(h.steps)
			for j := k; j < len(candidate.steps); j++ {
				candidate.steps[j].at -= gap / 2
			}
			again = fails(&candidate) || again
		}
	}
	slices.SortStableFunc(found, func(a, b violation) int { return cmp.Compare(a.at, b.at) })
	return h, found
}
