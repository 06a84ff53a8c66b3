package drain

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// nodePods are the pods of the node of a drain. It belongs to the goroutine of Drain.
type nodePods struct {
	drainer *Drainer
	request *evacuation.Request
	store   *podStore
	result  *evacuation.Result

	// The pods, by UID. Each is in one of these at most.
	leaving map[types.UID]*podState // have to leave
	// Had to leave, and are gone, or have ended and count as gone. The store may have them: finalizers keep them, or the
	// watch is behind.
	departed  map[types.UID]*podState
	staying   map[types.UID]bool // do not have to leave
	newcomers newcomers          // came during the drain, and stay
	listed    bool               // the pods of the first list are in these maps

	settledAt time.Time // when the first pod of those that have ended counts as gone; zero: none has
	kubelet   kubelet
	obstacles obstacles
	claims    claims          // of the pods that have to leave
	mistakes  map[string]bool // of annotations that the log has warned of
}

// nodeState returns the present state of the node.
func (n *nodePods) nodeState() evacuation.NodeState {
	if n.request.NodeState == nil {
		return evacuation.NodeState{Ready: true, Cordoned: true}
	}
	return n.request.NodeState()
}

// refresh updates the pods from the store. It returns the lowest tier with pods that are waited
// for; above own if there are none.
func (n *nodePods) refresh(now time.Time) tier {
	node := n.nodeState()
	n.kubelet.note(node.Ready, now)
	pods := n.store.list()
	if leave := n.newcomers.cordonedAgain(n.request.Terms.CordonedAt, node.Cordoned, pods); len(leave) > 0 {
		n.request.Log.Info("the node was cordoned again: pods that came in the meantime have to leave after all",
			"pods", len(leave))
		for _, pod := range leave {
			n.claims.note(pod)
			n.leaving[pod.UID] = n.newPodState(pod, now)
		}
	}
	pods = slices.DeleteFunc(pods, func(pod *corev1.Pod) bool { return n.departed[pod.UID] != nil }) // the watch is behind
	n.classify(pods, now)
	seen := map[types.UID]bool{}
	front := own + 1
	n.settledAt = time.Time{}
	var kept []string
	for _, pod := range pods {
		p := n.leaving[pod.UID]
		if p == nil {
			seen[pod.UID] = true
			continue
		}
		n.update(p, pod, now)
		if at := p.end.countsAsGoneAt(); !at.IsZero() && !now.Before(at) {
			kept = append(kept, strings.TrimSuffix(nameOf(pod)+": "+p.end.keptBy, ": "))
			continue
		}
		seen[pod.UID] = true
		if p.turn.Stays && n.mayStay(pod, p) {
			continue
		}
		n.settledAt = earlier(n.settledAt, p.end.countsAsGoneAt())
		if !p.unconfirmed && p.end.keptBy == "" {
			front = min(front, p.countsAs(now))
		}
	}
	if len(kept) > 0 {
		n.request.Log.Info("pods are not waited for any more: they have ended, and their objects are still there",
			"pods", len(kept), "which", strings.Join(evacuation.Names(kept, maxNames), "; "))
	}
	n.listed = true
	n.removeDeparted(seen, now)
	return front
}

// update brings a pod that has to leave up to date, and reports what keeps it.
func (n *nodePods) update(p *podState, pod *corev1.Pod, now time.Time) {
	p.update(pod, now)
	p.reconsider(pod, n.request.Rules, n.request.Terms, now)
	if !p.mustForce(n.request.Terms, now) {
		p.lateUnheard = 0 // if the deadline was put off, the budget is asked again before the next one
	}
	n.warnOfMistake(pod, p.turn)
	if p.end.note(pod, now); p.end.keptBy != "" {
		p.unconfirmed, p.blocks = false, nil
		return
	}
	unconfirmed := n.kubelet.isUnconfirmed(p, now)
	if unconfirmed && !p.unconfirmed {
		logging.Warn(n.request.Log,
			"a pod is not waited for any more: it should have ended, but its kubelet has not confirmed it",
			"pod", nameOf(pod), "end", p.stopsAt(),
		)
	}
	p.unconfirmed = unconfirmed
	if !unconfirmed {
		p.noteLast(n.request.Terms, now)
		p.noteRollout(now)
		n.obstacles.report(pod, p, now)
	}
}

// removeDeparted takes the pods out that are not among those seen: they are gone, or count as gone.
func (n *nodePods) removeDeparted(seen map[types.UID]bool, now time.Time) {
	for uid, p := range n.leaving {
		if !seen[uid] {
			delete(n.leaving, uid)
			n.depart(uid, p, now)
			p.dequeue()
			p.surge.stop()
		}
	}
	maps.DeleteFunc(n.staying, func(uid types.UID, _ bool) bool { return !seen[uid] })
	maps.DeleteFunc(n.newcomers.staying, func(uid types.UID, _ newcomer) bool { return !seen[uid] })
}

// depart notes that a pod is gone, or counts as gone.
func (n *nodePods) depart(uid types.UID, p *podState, now time.Time) {
	n.departed[uid] = p
	if p.idle {
		return
	}
	left := now
	if p.end.hasCome() {
		left = p.end.at
	}
	n.result.Record.LastLeft = later(n.result.Record.LastLeft, left)
	if p.wasCutShort(left) {
		had := p.killedAt.Sub(p.firstAcceptedAt).Round(time.Second)
		told := p.name + " after " + overview.Length(had) + " of " + overview.Length(p.wholeGrace())
		n.result.Record.CutShort = append(n.result.Record.CutShort, told)
	}
}

// wasCutShort reports whether a pod that has left then was killed before its grace period was over.
func (p podState) wasCutShort(left time.Time) bool {
	const blink = time.Second // the API server cuts times to seconds
	had := p.killedAt.Sub(p.firstAcceptedAt)
	if p.killedAt.IsZero() || had >= p.wholeGrace()-blink {
		return false
	}
	return !left.Before(p.killedAt.Add(-min(blink, had/2)))
}

// wholeGrace is how long a pod would have had to stop if its machine stayed.
func (p podState) wholeGrace() time.Duration {
	if p.others.grace > 0 {
		return min(p.grace, p.others.grace)
	}
	return p.grace
}

// classify decides which of the pods that are seen for the first time have to leave.
func (n *nodePods) classify(pods []*corev1.Pod, now time.Time) {
	var candidates []candidate
	var states []*podState
	for _, pod := range pods {
		if n.leaving[pod.UID] != nil || n.staying[pod.UID] || n.newcomers.contains(pod.UID) {
			continue
		}
		p := n.newPodState(pod, now)
		if p.tier == own {
			n.leaving[pod.UID] = p
			continue
		}
		n.warnOfMistake(pod, p.turn)
		turn := p.turn
		kept := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name} == n.drainer.Keep
		if ofDaemonSet(pod) && (n.listed || kept) { // if one that comes during the drain were asked, there would be another
			turn.Stays = true
		}
		candidates, states = append(candidates, candidate{pod, turn}), append(states, p)
	}
	if len(candidates) == 0 {
		return
	}
	answers, warnings := n.drainer.Filter.mustLeave(candidates)
	if warnings != "" && !n.listed {
		n.request.Log.Info("kubectl's drain warns of pods", "says", truncate(warnings))
	}
	for k, c := range candidates {
		n.assign(c.pod, states[k], answers[k], now)
	}
}

// assign puts a pod to those that have to leave, or to those that stay.
func (n *nodePods) assign(pod *corev1.Pod, p *podState, answer chosen, now time.Time) {
	if !answer.leaves {
		n.stay(pod, answer.why)
		return
	}
	if n.listed { // the pods of the first list have to leave, whatever they tolerate
		stays, replaces, why := n.newcomers.admit(pod, n.nodeState(), now)
		if stays {
			if why != "" {
				n.request.Log.Info("a pod that came during the drain stays on the node", "pod", nameOf(pod), "why", why)
			}
			return
		}
		p.replaces = replaces
	}
	n.claims.note(pod)
	n.leaving[pod.UID] = p
}

// newPodState returns the state of a pod that was not asked to leave yet.
func (n *nodePods) newPodState(pod *corev1.Pod, now time.Time) *podState {
	p := newPodState(pod, n.drainer.Grace, n.drainer.Self, now)
	p.reconsider(pod, n.request.Rules, n.request.Terms, now)
	if n.request.Resumed {
		p.noteEarlier(pod, n.request.Terms.CordonedAt)
	}
	return p
}

// stay notes that a pod does not have to leave. It is not looked at again. why is empty where that is no news.
func (n *nodePods) stay(pod *corev1.Pod, why string) {
	n.staying[pod.UID] = true
	if why != "" && len(n.result.Stayed) < maxStayed {
		n.result.Stayed = append(n.result.Stayed, nameOf(pod))
		logging.Warn(n.request.Log, "a pod stays on the node, and is lost with it", "pod", nameOf(pod), "why", why)
	}
}

// mayStay lets a pod stay whose annotations or labels had it leave, if they have changed before the
// pod was asked. It reports whether it stays.
func (n *nodePods) mayStay(pod *corev1.Pod, p *podState) bool {
	if p.requested || p.stopping() {
		return false
	}
	answers, _ := n.drainer.Filter.mustLeave([]candidate{{pod, p.turn}})
	if answers[0].leaves {
		return false
	}
	p.dequeue()
	p.surge.stop()
	delete(n.leaving, pod.UID)
	n.stay(pod, answers[0].why)
	return true
}

// warnOfMistake logs what is wrong with the annotation of a pod, once for all pods that share it.
func (n *nodePods) warnOfMistake(pod *corev1.Pod, turn decision.Turn) {
	if turn.Mistake == "" || n.mistakes[turn.Mistake] || len(n.mistakes) == maxMistakes {
		return
	}
	n.mistakes[turn.Mistake] = true
	logging.Warn(n.request.Log, "a pod cannot leave as its owner wants", "pod", nameOf(pod), "why", turn.Mistake)
}

// sorted returns the pods that have to leave: lower tiers first, then by name.
func (n *nodePods) sorted() []*corev1.Pod {
	var pods []*corev1.Pod
	for _, pod := range n.store.list() {
		if n.leaving[pod.UID] != nil {
			pods = append(pods, pod)
		}
	}
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		return int(n.leaving[a.UID].tier) - int(n.leaving[b.UID].tier)
	})
	return pods
}

// nameOf returns a pod's namespace/name, as logs and results have it.
func nameOf(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// newcomers are the pods that come to a node while it is drained, and stay there. Some tolerate the
// cordon, and some are made for this very node. If somebody uncordons the node, the scheduler even
// prefers it, because it is the emptiest. The owner of such a pod makes another one on the same node
// as soon as the pod is asked to leave. If all of them had to leave, one drain would delete hundreds
// of pods of one Deployment. As it is, at most twice as many are asked as were there when the node
// was cordoned.
//
// It belongs to the goroutine of Drain.
type newcomers struct {
	cordonedAt time.Time
	// replaceable is set for each owner with a pod that was asked to leave: how many replacements
	// may still be asked to leave, too.
	replaceable map[owner]int
	staying     map[types.UID]newcomer
}

// A newcomer is a pod that came during the drain, and stays.
type newcomer struct {
	seen       time.Time
	owner      owner
	uncordoned bool // it came because the node was not cordoned
}

// An owner makes a new pod when one is gone: the pod's controller, or, if it has none, whoever gives
// another pod the same name.
type owner string

func ownerOf(pod *corev1.Pod) owner {
	if controller := metav1.GetControllerOfNoCopy(pod); controller != nil {
		return owner(controller.UID)
	}
	return owner(nameOf(pod))
}

// noteRequest notes that a pod is asked to leave, and whether it is the replacement of one that was.
func (n *newcomers) noteRequest(pod *corev1.Pod, replacement bool) {
	if replacement {
		n.replaceable[ownerOf(pod)]--
	} else {
		n.replaceable[ownerOf(pod)]++
	}
}

// admit decides whether a pod stays that was not in the first list. If it does not, replacement
// says whether it replaces a pod that was asked to leave. why is empty if another pod of the same
// owner stays already.
//
//	                         | first seen later than 5 s | before: the scheduler, or our
//	                         | after the cordon          | watch of the node, may be behind
//	tolerates the cordon     | stays                     | stays
//	it stays uncordoned      | stays                     | stays
//	is a replacement         | stays                     | leaves, unless as many as were asked
//	                         |                           | have come back and were asked too
//	the node is not cordoned | stays                     | leaves
//	otherwise                | leaves                    | leaves
//
// The first list is made after the cordon. A pod that tolerates the cordon and is not in that list
// was sent here in spite of the cordon, and would be again.
//
// Pods and the node come from two watches. So a pod of the last seconds before the node was uncordoned for good is not
// told from one of the first seconds after that: it leaves if it is seen before the uncordon is, and stays otherwise.
func (n *newcomers) admit(pod *corev1.Pod, node evacuation.NodeState, now time.Time) (
	stays, replacement bool, why string,
) {
	tolerates := toleratesCordon(pod)
	c := newcomer{seen: now, owner: ownerOf(pod), uncordoned: !tolerates && !node.Cordoned}
	remaining, replacement := n.replaceable[c.owner]
	if now.After(n.cordonedAt.Add(lateBindTime)) {
		stays = tolerates || replacement || !node.Cordoned
	} else {
		stays = tolerates || node.StaysUncordoned || replacement && remaining <= 0
	}
	if !stays {
		return false, replacement, ""
	}
	switch {
	case tolerates:
		why = "it tolerates the cordon"
	case replacement:
		why = "it replaces one that was asked to leave"
	default:
		why = "the node is not cordoned at the moment"
	}
	for _, other := range n.staying {
		if other.owner == c.owner {
			why = ""
		}
	}
	n.staying[pod.UID] = c
	return true, replacement, why
}

// contains reports whether a pod stays.
func (n *newcomers) contains(pod types.UID) bool {
	_, stays := n.staying[pod]
	return stays
}

// cordonedAgain notes when we have last cordoned the node. It returns those of the pods that have to leave after all.
// They came because the node was not cordoned, and now it is, whoever has done that; or they came before a cordon of
// ours that is newer than the last call. A replacement that tolerates the cordon stays: there would be another one.
func (n *newcomers) cordonedAgain(at time.Time, cordoned bool, pods []*corev1.Pod) (leave []*corev1.Pod) {
	again := !at.Equal(n.cordonedAt)
	n.cordonedAt = at
	if len(n.staying) == 0 || !again && !cordoned {
		return nil
	}
	for _, pod := range pods {
		c, stays := n.staying[pod.UID]
		_, replaces := n.replaceable[c.owner]
		before := again && !c.seen.After(at.Add(lateBindTime)) && (!replaces || !toleratesCordon(pod))
		if stays && (before || cordoned && c.uncordoned) {
			delete(n.staying, pod.UID)
			leave = append(leave, pod)
		}
	}
	return leave
}

// awaitCordon reports whether pods stay only until the node is cordoned again, which nothing else may tell of.
func (n *newcomers) awaitCordon() bool {
	for _, c := range n.staying {
		if c.uncordoned {
			return true
		}
	}
	return false
}

// takeNewcomers returns the names of the newcomers that have not ended, of all or of those that came because the node
// was not cordoned, sorted. It takes them out.
func (n *nodePods) takeNewcomers(all bool) (names []string) {
	for _, pod := range n.store.list() {
		c, stays := n.newcomers.staying[pod.UID]
		if stays && (all || c.uncordoned) && !evacuation.Ended(pod) {
			names = append(names, nameOf(pod))
			delete(n.newcomers.staying, pod.UID)
		}
	}
	slices.Sort(names)
	return names
}

// cordonTolerated is all that [Trim] keeps of the tolerations of a pod that tolerates a cordon. All
// such pods share it.
var cordonTolerated = []corev1.Toleration{{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists}}

// toleratesCordon reports whether the scheduler puts a pod on a cordoned node, too.
// https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
func toleratesCordon(pod *corev1.Pod) bool {
	cordon := &corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		return t.ToleratesTaint(klog.Logger{}, cordon, false)
	})
}
