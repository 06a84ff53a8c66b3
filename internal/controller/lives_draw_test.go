package controller

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// What can happen. Where a step has a duration or a text, its meaning stands here.
const (
	// The machine.
	doLaunch       = "launch" // d: until its Node is there
	doStop         = "stop"
	doStart        = "start"
	doHibernate    = "hibernate" // the boot id stays
	doTerminate    = "terminate"
	doToPool       = "return to the warm pool" // text: the state there
	doFromPool     = "launch from the warm pool"
	doScaleIn      = "scale in"
	doNotReady     = "kubelet silent"      // for d
	doReboot       = "reboot"              // d: until its kubelet is there again
	doReplaceRoot  = "replace root volume" // likewise
	doDeleteNode   = "delete Node"         // and the kubelet registers it again after d
	doReplaceNode  = "replace Node"        // by one of another UID, at once
	doSecondNode   = "register under another name"
	doLateProvider = "register without provider id" // which comes after d
	// Notices that are true.
	doSpot      = "spot interruption"                 // text: the action, two minutes later
	doReserved  = "capacity reservation interruption" // likewise
	doBlock     = "capacity block expiration"         // of all machines in the block, ten minutes later
	doRebalance = "rebalance recommendation"
	doAnnounce  = "announce maintenance" // in d; text: stop or reboot, with a stranger or without
	doPutOff    = "put maintenance off"  // to d from now
	doRepeat    = "repeat maintenance"   // by another event
	doResolve   = "resolve maintenance"  // for this machine, the event goes on
	doClose     = "close maintenance"
	doMail      = "delay mail" // from now on what AWS tells of the machine comes late by d; text: twice
	// Notices that are not.
	doForge = "forge" // text: what
	// People.
	doCordon   = "cordon"
	doUncordon = "uncordon"
	doTaint    = "taint"    // text: the key
	doLabel    = "label"    // text: the key
	doRollout  = "roll out" // all pods are made anew, where there is room
	// The rest of the world.
	doLeader  = "leader stops" // and the next one leads after d
	doKill    = "leader is killed"
	doFault   = "fault"                  // text: of what; for d
	doRules   = "change the policy file" // text: to which rules
	doImpair  = "fail status checks"     // for d
	doNothing = ""
)

// draw makes a history of a seed.
type draw struct {
	*rand.Rand
	h *history
}

func drawHistory(seed uint64) *history {
	d := draw{rand.New(rand.NewPCG(seed, 13)), &history{seed: seed}}
	d.options()
	for range 1 + d.IntN(4) {
		d.h.machines = append(d.h.machines, true)
	}
	for range d.IntN(3) {
		d.h.machines = append(d.h.machines, false)
	}
	d.pods()
	from := time.Duration(0)
	for range 1 + d.IntN(4) {
		d.plot(from)
		if d.chance(0.7) {
			from += d.gap()
		}
	}
	for range d.IntN(7) {
		d.noise()
	}
	const most = 25
	d.sort()
	for len(d.h.steps) > most {
		at := d.IntN(len(d.h.steps))
		d.h.steps = slices.Delete(d.h.steps, at, at+1)
	}
	if !slices.Contains(knownLives, seed) { // these stay what they were
		draw{rand.New(rand.NewPCG(seed, 14)), d.h}.capacity()
		draw{rand.New(rand.NewPCG(seed, 15)), d.h}.returns()
	}
	if !slices.Contains(knownLives, seed) && !slices.Contains(laterLives, seed) {
		draw{rand.New(rand.NewPCG(seed, 16)), d.h}.absence()
	}
	if !slices.Contains(slices.Concat(knownLives, laterLives, recentLives), seed) {
		draw{rand.New(rand.NewPCG(seed, 17)), d.h}.polls()
		draw{rand.New(rand.NewPCG(seed, 18)), d.h}.rules()
		draw{rand.New(rand.NewPCG(seed, 19)), d.h}.modes()
		draw{rand.New(rand.NewPCG(seed, 20)), d.h}.health()
	}
	if !slices.Contains(slices.Concat(knownLives, laterLives, recentLives, ruledLives), seed) {
		d.h.options.oneProcess = draw{rand.New(rand.NewPCG(seed, 21)), d.h}.chance(0.3)
	}
	return d.h
}

// capacity is what happens to reserved capacity, among the other steps. It is drawn apart from them.
func (d draw) capacity() {
	if d.chance(0.6) {
		return
	}
	o := &d.h.options
	o.block = d.IntN(len(d.h.machines) + 1)
	at := time.Duration(0)
	if len(d.h.steps) > 0 {
		at = max(0, d.h.steps[d.IntN(len(d.h.steps))].at+d.between(0, 10*time.Minute)-5*time.Minute)
	}
	if o.block > 0 && d.chance(0.7) {
		d.add(at, step{what: doBlock, m: -1, late: d.late()})
		for range d.IntN(3) {
			d.add(at+d.between(0, 11*time.Minute), step{
				what: pick(d, doKill, doLeader, doRollout, doUncordon, doDeleteNode, doStop), m: d.machine(), d: d.between(time.Second, time.Minute),
			})
		}
	}
	for range d.IntN(3) {
		d.add(at+d.between(0, 15*time.Minute), step{what: doReserved, m: d.machine(), late: d.late()})
	}
	d.sort()
}

// returns is what makes machines come back, among the other steps. It is drawn apart from them.
func (d draw) returns() {
	o := &d.h.options
	o.sweeps = d.chance(0.4)
	o.loses = o.sweeps && d.chance(0.5)
	o.changesHappen = d.chance(0.5)
	if d.chance(0.5) {
		return
	}
	for range 1 + d.IntN(2) {
		at, m := d.between(0, 10*time.Minute), d.machine()
		if len(d.h.steps) > 0 {
			at = max(0, d.h.steps[d.IntN(len(d.h.steps))].at+d.between(0, 4*time.Minute)-time.Minute)
		}
		boot := d.between(10*time.Second, 2*time.Minute)
		switch d.IntN(4) {
		case 0:
			d.add(at, step{what: doReboot, m: m, d: boot})
		case 1, 2:
			d.add(at, step{what: doReplaceRoot, m: m, d: boot, late: d.late()})
			if d.chance(0.3) {
				d.add(at+d.between(0, 5*time.Minute), step{what: pick(d, doReboot, doNotReady, doUncordon, doCordon, doDeleteNode), m: m, d: boot})
			}
			if d.chance(0.4) {
				d.again(at+4*time.Minute+d.gap(), m)
			}
		case 3:
			d.add(at, step{what: doAnnounce, m: m, text: pick(d, "reboot", "reboot", "stop"), d: d.between(time.Minute, 20*time.Minute), late: d.late()})
			if d.chance(0.4) {
				d.again(at+25*time.Minute+d.gap(), m)
			}
		}
	}
	d.sort()
}

// absence is a time without a leader around the deadline of a drain that a budget keeps from its end.
func (d draw) absence() {
	if d.chance(0.9) {
		return
	}
	at := d.between(0, 10*time.Minute)
	d.add(at, step{what: doAnnounce, m: d.machine(), text: "stop", d: d.between(3*time.Minute, 20*time.Minute)})
	d.add(at+d.between(time.Minute, 4*time.Minute), step{what: doLeader, m: -1, d: d.between(20*time.Minute, 2*time.Hour)})
	d.sort()
}

// polls makes EC2 a source of what AWS Health tells, or does not.
func (d draw) polls() {
	o := &d.h.options
	o.polls = d.chance(0.4)
	o.losesNews = o.polls && d.chance(0.5)
}

// modes has a pod on each node beside the leader, or a load balancer.
func (d draw) modes() {
	o := &d.h.options
	o.bothModes = d.chance(0.3)
	o.losesSpot = o.bothModes && d.chance(0.5)
	if o.bothModes && d.chance(0.5) { // nobody leads when it matters
		at := d.between(0, 20*time.Minute)
		d.add(at, step{what: pick(d, doSpot, doRebalance, doAnnounce), m: d.machine(), text: "stop", d: d.between(time.Minute, 10*time.Minute)})
		d.add(max(0, at+d.between(0, 2*time.Minute)-time.Minute), step{what: doLeader, m: -1, d: d.between(0, 5*time.Minute)})
		d.sort()
	}
	if o.deregistration = d.some(0.3, d.between(5*time.Second, 10*time.Minute)); o.deregistration > 0 {
		o.marks = true
	}
}

// health makes instances fail their status checks.
func (d draw) health() {
	o := &d.h.options
	if o.drainsImpaired = o.polls && d.chance(0.5); !o.drainsImpaired {
		return
	}
	for range 1 + d.IntN(3) {
		at, m := d.between(0, 20*time.Minute), d.machine()
		d.add(at, step{what: doImpair, m: m, d: d.between(time.Minute, 20*time.Minute)})
		if d.chance(0.4) {
			d.again(at+d.gap(), m)
		}
	}
	d.sort()
}

// sort puts the steps into the order of time.
func (d draw) sort() {
	slices.SortStableFunc(d.h.steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
}

func (d draw) chance(p float64) bool { return d.Float64() < p }

func (d draw) some(p float64, value time.Duration) time.Duration {
	if d.chance(p) {
		return value
	}
	return 0
}

func pick[T any](d draw, from ...T) T { return from[d.IntN(len(from))] }

// between is a duration in whole seconds.
func (d draw) between(least, most time.Duration) time.Duration {
	return least + time.Duration(d.Int64N(int64((most-least)/time.Second)+1))*time.Second
}

// gap is what lies between two things that happen: mostly little.
func (d draw) gap() time.Duration {
	switch p := d.Float64(); {
	case p < 0.5:
		return d.between(0, time.Minute)
	case p < 0.8:
		return d.between(time.Minute, 15*time.Minute)
	case p < 0.97:
		return d.between(15*time.Minute, 2*time.Hour)
	}
	return d.between(4*time.Hour, 60*time.Hour)
}

func (d draw) options() {
	o := &d.h.options
	o.tagCheck = d.chance(0.6)
	o.deleteForeign = d.chance(0.85)
	o.heartbeats = d.chance(0.4)
	o.marks = d.chance(0.4)
	o.outOfService = d.chance(0.4)
	o.othersHook = d.chance(0.2)
	o.launchHook = d.chance(0.6)
	if d.chance(0.15) {
		o.maxUnready = 1 + d.IntN(2)
	}
	if d.chance(0.15) {
		o.workers = 1 + d.IntN(2)
	}
	o.completionDelay = d.some(0.15, d.between(time.Second, time.Minute))
	o.hookTimeout = pick(d, 5*time.Minute, 10*time.Minute, time.Hour)
	o.launchTimeout = pick(d, 5*time.Minute, 10*time.Minute, 30*time.Minute)
	o.shutdown = d.between(10*time.Second, 2*time.Minute)
	o.duplicates = pick(d, 0, 0, 0.1)
	o.disorder = d.chance(0.3)
}

func (d draw) pods() {
	for range 1 + d.IntN(3) {
		o := owner{
			kind:     pick(d, "ReplicaSet", "ReplicaSet", "StatefulSet", ""),
			replicas: 1 + d.IntN(6),
			grace:    pick(d, 0, 5*time.Second, 30*time.Second, 30*time.Second, 90*time.Second, 10*time.Minute),
			stops:    pick(d, time.Second, 3*time.Second, 20*time.Second, time.Hour),
		}
		switch p := d.Float64(); {
		case p < 0.15:
			o.budget = -1
		case p < 0.35:
			o.budget = d.between(time.Second, 5*time.Minute)
		}
		o.finalizer = d.chance(0.03)
		d.h.owners = append(d.h.owners, o)
	}
	if d.chance(0.3) {
		d.h.owners = append(d.h.owners, owner{kind: "DaemonSet", replicas: 1, grace: 30 * time.Second, stops: time.Second, tolerates: true})
	}
	if d.chance(0.15) {
		d.h.owners = append(d.h.owners, owner{kind: "ReplicaSet", replicas: 1 + d.IntN(2), grace: 5 * time.Second, stops: time.Second, tolerates: true})
	}
}

// machine is one in service, mostly: nothing can happen to one that is not launched.
func (d draw) machine() int {
	if d.chance(0.8) {
		return d.IntN(slices.Index(append(slices.Clone(d.h.machines), false), false))
	}
	return d.IntN(len(d.h.machines))
}

// late is mostly not at all.
func (d draw) late() time.Duration {
	switch p := d.Float64(); {
	case p < 0.75:
		return 0
	case p < 0.9:
		return d.between(time.Second, 2*time.Minute)
	case p < 0.98:
		return d.between(2*time.Minute, 30*time.Minute)
	}
	return d.between(30*time.Minute, 3*time.Hour)
}

func (d draw) add(at time.Duration, s step) {
	s.at = at
	d.h.steps = append(d.h.steps, s)
}

// plot is a few steps that belong together: a life that a machine may well have.
func (d draw) plot(at time.Duration) {
	m := d.machine()
	for k, inService := range d.h.machines {
		if !inService && d.chance(0.3) {
			d.add(at+d.between(0, time.Minute), step{what: doLaunch, m: k, d: d.between(20*time.Second, 3*time.Minute) + d.some(0.1, time.Hour)})
			break
		}
	}
	switch d.IntN(11) {
	case 0, 1:
		d.spot(at, m)
	case 2, 3:
		d.stopAndStart(at, m)
	case 4:
		d.add(at, step{what: doScaleIn, m: m, late: d.late()})
		if d.chance(0.4) {
			d.add(at+d.between(0, 2*time.Minute), step{what: doUncordon, m: m})
		}
	case 5:
		d.warmPool(at, m)
	case 6, 7:
		d.maintenance(at, m)
	case 8:
		d.add(at, step{what: doRebalance, m: m, late: d.late()})
		at += d.gap()
		switch d.IntN(3) {
		case 0:
			d.spot(at, m)
		case 1:
			d.add(at, step{what: doUncordon, m: m})
			d.add(at+d.between(0, 5*time.Minute), step{what: pick(d, doUncordon, doRebalance, doCordon), m: m})
		}
	case 9:
		d.registers(at, m)
		d.going(at+d.between(0, 2*time.Minute), m)
	case 10:
		d.going(at, m)
		for range 1 + d.IntN(2) {
			d.registers(at+d.between(0, 2*time.Minute), m)
		}
	}
}

// registers is a Node that comes or goes although its machine does not.
func (d draw) registers(at time.Duration, m int) {
	d.add(at, step{
		what: pick(d, doDeleteNode, doReplaceNode, doSecondNode, doLateProvider, doNotReady), m: m,
		d: d.between(time.Second, time.Minute) + d.some(0.2, d.between(time.Minute, 20*time.Minute)),
	})
}

// again is some notice that the machine goes away, after it has come back.
func (d draw) again(at time.Duration, m int) {
	if d.chance(0.8) {
		d.add(at, step{what: doRollout, m: -1})
		at += d.between(10*time.Second, 2*time.Minute)
	}
	d.going(at, m)
}

// going is some notice that the machine goes away.
func (d draw) going(at time.Duration, m int) {
	switch d.IntN(3) {
	case 0:
		d.add(at, step{what: doSpot, m: m, text: pick(d, "terminate", "terminate", "stop", "hibernate"), late: d.late()})
	case 1:
		d.add(at, step{what: doScaleIn, m: m, late: d.late()})
	case 2:
		d.add(at, step{what: doAnnounce, m: m, text: pick(d, "stop", "reboot"), d: d.between(time.Minute, 2*time.Hour), late: d.late()})
	}
}

func (d draw) spot(at time.Duration, m int) {
	s := step{what: doSpot, m: m, text: pick(d, "terminate", "terminate", "stop", "hibernate"), late: d.late()}
	d.add(at, s)
	if d.chance(0.2) {
		d.add(at+d.between(0, 90*time.Second), step{what: doUncordon, m: m})
	}
	if s.text != "terminate" {
		at += 4*time.Minute + d.gap()
		d.add(at, step{what: doStart, m: m})
		if d.chance(0.5) {
			d.add(at+2*time.Minute, step{what: doUncordon, m: m})
			at += 3*time.Minute + d.gap()
			d.again(at, m)
		}
	}
}

func (d draw) stopAndStart(at time.Duration, m int) {
	if d.chance(0.4) {
		d.add(max(0, at-time.Second), step{what: doMail, m: m, d: d.between(time.Second, 20*time.Minute), text: pick(d, "", "twice")})
	}
	d.add(at, step{what: pick(d, doStop, doStop, doHibernate), m: m})
	at += d.h.options.shutdown + d.between(0, time.Minute) + d.some(0.4, d.gap())
	d.add(at, step{what: doStart, m: m})
	if d.chance(0.6) {
		d.add(at+d.between(time.Minute, 3*time.Minute), step{what: doUncordon, m: m})
	}
	if d.chance(0.6) {
		at += 3*time.Minute + d.gap()
		if d.chance(0.3) {
			d.add(at, step{what: doRollout, m: -1})
			d.add(at+time.Minute, step{what: doRebalance, m: m})
		} else {
			d.again(at, m)
		}
	}
}

func (d draw) warmPool(at time.Duration, m int) {
	d.add(at, step{what: doToPool, m: m, text: pick(d, "Warmed:Stopped", "Warmed:Stopped", "Warmed:Running"), late: d.late()})
	if d.chance(0.2) {
		d.add(at+d.between(time.Minute, 5*time.Minute), step{what: doDeleteNode, m: m, d: 30 * time.Second})
	}
	at += d.between(3*time.Minute, 15*time.Minute) + d.some(0.3, d.gap())
	d.add(at, step{what: doFromPool, m: m})
	if d.chance(0.5) {
		d.again(at+4*time.Minute+d.gap(), m)
	}
}

func (d draw) maintenance(at time.Duration, m int) {
	kind := pick(d, "stop", "reboot") + pick(d, "", "", "", " with a stranger")
	in := d.between(time.Minute, 3*time.Hour)
	if d.chance(0.4) {
		in = d.between(24*time.Hour, 14*24*time.Hour)
	}
	for range d.IntN(2) * d.IntN(4) { // somebody has his own reasons
		d.add(max(0, at-d.between(0, time.Minute))+d.some(0.3, 2*time.Minute), step{
			what: pick(d, doCordon, doTaint, doLabel), m: m,
		})
		if s := &d.h.steps[len(d.h.steps)-1]; s.what == doTaint {
			s.text = "team/broken"
		} else if s.what == doLabel {
			s.text = "node.kubernetes.io/exclude-from-external-load-balancers"
		}
	}
	d.add(at, step{what: doAnnounce, m: m, text: kind, d: in, late: d.late()})
	for range 1 + d.IntN(3) {
		at += min(d.gap(), max(in-time.Minute, time.Second))
		switch d.IntN(7) {
		case 0:
			d.add(at, step{what: doPutOff, m: m, d: d.between(time.Hour, 14*24*time.Hour), late: d.late()})
		case 1:
			d.add(at, step{what: doRepeat, m: m, late: d.late()})
		case 2:
			d.add(at, step{what: doResolve, m: m, late: d.late()})
		case 3:
			d.add(at, step{what: doClose, m: m, late: d.late()})
		case 4:
			d.add(at, step{what: doUncordon, m: m})
			d.add(at+d.gap(), step{what: pick(d, doCordon, doRollout), m: m})
		case 5: // the usual way: a person stops and starts the machine before
			d.add(at, step{what: doStop, m: m})
			at += d.h.options.shutdown + time.Minute
			d.add(at, step{what: doStart, m: m})
		}
	}
	if d.chance(0.6) {
		at += min(d.gap(), in)
		d.add(at, step{what: doClose, m: m, late: d.late()})
		if d.chance(0.3) {
			d.add(at+d.gap(), step{what: doLeader, m: -1})
		}
	}
}

// forgeries are bodies of somebody who may send to the queue, or of AWS about others.
var forgeries = []string{
	"stopped", "terminated", "spot", "stopping", "unknown id", "other account", "hook with no token", "hook of no group", "launch of a token", "no event",
}

// faults are what fails for a while; each answers again after it.
var faults = []string{"EC2 throttled", "EC2 denied", "EC2 down", "Auto Scaling throttled", "Auto Scaling denied", "API server slow", "API server down"}

// noise is one thing that has nothing to do with the others, at any time of the
// history so far, or a little after something else.
func (d draw) noise() {
	at := time.Duration(0)
	if len(d.h.steps) > 0 {
		at = d.h.steps[d.IntN(len(d.h.steps))].at + d.between(0, time.Minute) + d.some(0.3, d.between(0, 10*time.Minute))
	}
	s := step{m: d.machine()}
	switch d.IntN(15) {
	case 14:
		s.what, s.m = doRollout, -1
	case 0:
		s.what = doCordon
	case 1:
		s.what = doUncordon
	case 2:
		s.what, s.text = doTaint, pick(d, "team/broken", "team/gpu", "node.kubernetes.io/out-of-service")
	case 3:
		s.what, s.text = doLabel, pick(d, "team/owner", "node.kubernetes.io/exclude-from-external-load-balancers")
	case 4:
		s.what, s.d = doNotReady, d.between(10*time.Second, 5*time.Minute)
	case 5, 6:
		s.what, s.m, s.d = doLeader, -1, d.between(0, 10*time.Second)+d.some(0.2, d.gap())
	case 7:
		s.what, s.m = doKill, -1
	case 8, 9:
		s.what, s.text, s.late = doForge, pick(d, forgeries...), d.late()
	case 10, 11:
		s.what, s.m, s.text, s.d = doFault, -1, pick(d, faults...), d.between(5*time.Second, 3*time.Minute)
		if !strings.HasPrefix(s.text, "API") {
			s.d += d.some(0.05, pick(d, 3*time.Hour, 9*time.Hour))
		}
	case 12:
		s.what, s.d, s.text = doMail, d.between(time.Second, 20*time.Minute), pick(d, "", "twice")
	case 13:
		s.what = pick(d, doTerminate, doRebalance)
	}
	d.add(at, s)
}
