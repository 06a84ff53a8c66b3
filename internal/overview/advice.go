package overview

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// slowCordon is longer than a notice takes to its node: its message is in the queue within seconds.
	slowCordon = 30 * time.Second
	// closeSlack is a slack that another day eats up.
	closeSlack = 15 * time.Second
)

// advice says what to change so that the next drain goes better: nothing of one that went well.
func (e *Episode) advice() (all []string) {
	if !e.wentWrong() && (e.Slack == nil || *e.Slack >= closeSlack.Seconds()) {
		return nil
	}
	for k := range e.Refused {
		if a := e.Refused[k].advice(); a != "" {
			all = append(all, a)
		}
	}
	if p := e.Pods; p != nil && p.Forced > 0 && e.graceWasTooLong() {
		all = append(all, fmt.Sprintf("Pods were forced with no budget in their way%s: their grace period is longer than "+
			"the notice. "+graceAdvice, listed(p.ForcedPods)))
	}
	if len(e.Targets) > 0 {
		all = append(all, fmt.Sprintf("The machine may have got requests to its end: shorten the deregistration delay "+
			"of the target groups%s. See `docs/load-balancers.md`.", listed(e.Targets)))
	}
	if e.Volumes > 0 {
		all = append(all, "Volumes were attached to the end: check the node part of the CSI driver, which must not leave "+
			"before the pods, or set the option `enable-out-of-service-taint`.")
	}
	if e.Uncordoned != "" {
		all = append(all, fmt.Sprintf("Node %s could not be cordoned in time: %s. "+doctorAdvice, name(e.Node),
			prose(strings.TrimSuffix(e.Uncordoned, "."))))
	}
	if a := e.lateCordon(); a != "" {
		all = append(all, a)
	}
	if len(all) == 0 && e.Known == Everything && e.Slack != nil && *e.Slack > 0 && *e.Slack < closeSlack.Seconds() {
		all = append(all, fmt.Sprintf("The drain of node %s was in time by %s only. "+graceAdvice, name(e.Node), e.slack()))
	}
	if len(all) == 0 && e.Known != Everything {
		all = append(all, fmt.Sprintf("What kept pods on node %s is not known here: search its Events for "+
			"`EvictionBlocked`, and the logs of the handler for `episode`.", name(e.Node)))
	}
	return all
}

// lateCordon says what to do about a node that was cordoned long after its notice; empty: it was not.
func (e *Episode) lateCordon() string {
	took := e.CordonedAt.Sub(e.Began)
	hurries := !e.Deadline.IsZero() && e.Deadline.Sub(e.Began) < time.Hour // each second counts
	switch {
	case e.Uncordoned != "", e.Began.IsZero(), took <= slowCordon, e.Known != Everything, e.cordonedAgain(), !hurries:
		return ""
	case e.HeldBack != "":
		return fmt.Sprintf("Node %s was held back for %s (%s): allow more nodes at once, or begin earlier.",
			name(e.Node), Length(took), prose(e.HeldBack))
	}
	return fmt.Sprintf("Node %s was cordoned %s after its notice: check the age of the queue's messages, "+
		"whether a leader was there, and whether the handler was paused.", name(e.Node), Length(took))
}

// graceWasTooLong reports whether pods were forced for their grace alone: nothing has refused them, and the machine was
// not about to stop, or impaired, when they were asked, which leaves them no grace.
func (e *Episode) graceWasTooLong() bool {
	if e.Uncordoned != "" || e.lateCordon() != "" { // they had less than the notice
		return false
	}
	return len(e.Refused) == 0 && e.Known == Everything && !slices.ContainsFunc(e.Notices, func(n Notice) bool {
		return (n.Kind == "state-change" || n.Kind == "instance-impaired") && !n.At.After(e.FirstAsked)
	})
}

const graceAdvice = "Keep `terminationGracePeriodSeconds` well below the notice (120 s for spot), and look with " +
	"`kubectl nth what-if spot --node NODE`."

const doctorAdvice = "`kubectl nth doctor` says which rights are missing; else look at webhooks and policies for it."

// advice says what to change about what kept pods; empty: nothing is known that helps.
func (r *Refusal) advice() string {
	namespace, budget, _ := strings.Cut(r.Name, "/")
	if r.Cause == Budget && budget == "" {
		return "A PodDisruptionBudget allowed too few disruptions: let each allow one (`maxUnavailable: 1`), and keep a " +
			"spare replica."
	}
	return strings.NewReplacer("{name}", name(r.Name), "{why}", prose(r.Why),
		"{describe}", name("kubectl -n "+namespace+" describe pdb "+budget),
		"{get}", name("kubectl get namespace "+r.Name+" -o yaml")).Replace(remedies[r.Cause])
}

// remedies are what to change about what kept pods. The other causes are no refusals, or end by themselves.
var remedies = map[Cause]string{
	Budget: "PodDisruptionBudget {name} allowed too few disruptions. Check that it can allow one (`maxUnavailable: 1`), " +
		"that its workload has a spare replica, and that its pods become ready fast: {describe}.",
	TwoBudgets: "Two PodDisruptionBudgets cover a pod, and the eviction API refuses it then. Delete one of them: " +
		"`kubectl get pdb -A` shows their selectors with `-o yaml`.",
	Namespace: "Namespace {name} was being deleted, and no pod of it is evicted then: {get} says what keeps it.",
	Webhook: "Admission webhook {name} refused that pods leave: let it pass evictions (`pods/eviction`) and deletions " +
		"of `pods` by the handler, or set its failurePolicy to Ignore if it was down.",
	AdmissionPolicy: "Admission policy {name} refused that pods leave: let it pass evictions (`pods/eviction`) and " +
		"deletions of `pods` by the handler.",
	Refused: "Evictions failed: {why}.",
	Grace:   "Pods were still stopping at the deadline. " + graceAdvice,
	Kubelet: "No kubelet confirmed the end of pods: the machine was overloaded or already dead, or containers did not " +
		"stop. Look at its console output, and set the option `enable-out-of-service-taint` if volumes must move.",
	List: "{why}. " + doctorAdvice, FailingList: "{why}. " + doctorAdvice,
	Gate: "A drain did not begin in time, because other requests to the API server went first: look at its load, and at " +
		"the options `kube-api-qps` and `kube-api-burst`.",
	Surge: "Replacements of single pods were not ready in time: run two replicas, or make the pods start faster.",
	Turn: "Pods that leave last, or after others, ran out of time: mark fewer pods `node-termination-handler/leave: " +
		"last`.",
}
