package doctor

import (
	"cmp"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

func apiServer(f *Facts) Finding {
	if f.User.Err != nil {
		if denied(f.User.Err) {
			return unknown("who calls the API server", f.User.Err)
		}
		return fail("check --kubeconfig, or in the cluster the pod's ServiceAccount and its network",
			"the API server does not answer: %v", f.User.Err)
	}
	return ok("the API server, %s, is called as %s", f.User.Value.Version, f.User.Value.Name)
}

// A Handler is a release of this program in the cluster.
type Handler struct {
	Namespace, Name string // of its Deployment, or of what else its pods are of
	ServiceAccount  string
	Deployment      bool // there is one of that name, as far as it may be seen
	Wanted          int  // replicas of the Deployment; -1: nobody says
	QueueURL, Lease string
	Pods            []Pod
}

// subject is the name that the handler has for the API server.
func (h Handler) subject() string { return serviceAccount(h.Namespace, h.ServiceAccount) }

// exec is the argument by which kubectl exec finds one of its pods.
func (h Handler) exec() string {
	if !h.Deployment && len(h.Pods) > 0 && h.Pods[0].Owner == "" {
		return h.Pods[0].Name
	}
	return "deploy/" + h.Name
}

func serviceAccount(namespace, name string) string {
	return "system:serviceaccount:" + namespace + ":" + cmp.Or(name, "default")
}

const (
	ownName = "node-termination-handler"
	nthName = "aws-node-termination-handler"
)

// runs reports whether a pod runs an image of the repository's name.
func (p Pod) runs(repository string) bool {
	return slices.ContainsFunc(p.Images, func(image string) bool { return ImageName(image) == repository })
}

// ImageName returns the last part of an image's name, without its tag and digest.
func ImageName(image string) string {
	image, _, _ = strings.Cut(path.Base(image), "@")
	image, _, _ = strings.Cut(image, ":")
	return image
}

// isOurs reports whether a pod runs this program, whatever the name of its image: in a mirror it can have any. The
// chart and deploy/manifests always name the Lease; AWS Node Termination Handler has none.
func (p Pod) isOurs() bool {
	app := p.Labels["app.kubernetes.io/name"]
	reads := p.Env["QUEUE_URL"] != "" || p.Env["ENABLE_SQS_TERMINATION_DRAINING"] != "" || app == nthName
	return app == ownName || p.runs(ownName) || p.Env["LEADER_ELECT_RESOURCE_NAME"] != "" && reads
}

// handlers returns all releases of this program, under any name. The release that the caller
// belongs to is one of them.
func (f *Facts) handlers() []Handler {
	found := map[string]*Handler{}
	meet := func(p Pod) *Handler {
		if !p.isOurs() && serviceAccount(p.Namespace, p.ServiceAccount) != f.User.Value.Name {
			return nil
		}
		name := cmp.Or(p.Owner, p.Name)
		key := p.Namespace + "\x00" + name // in the order of the namespaces
		if found[key] == nil {
			found[key] = &Handler{
				Namespace: p.Namespace, Name: name, ServiceAccount: p.ServiceAccount, Wanted: -1,
				QueueURL: p.Env["QUEUE_URL"], Lease: cmp.Or(p.Env["LEADER_ELECT_RESOURCE_NAME"], ownName),
			}
		}
		return found[key]
	}
	for _, d := range f.Deployments.Value {
		if h := meet(d.Template); h != nil {
			h.Deployment, h.Wanted = true, d.Replicas
		}
	}
	for _, p := range f.Pods.Value {
		if h := meet(p); h != nil {
			h.Pods = append(h.Pods, p)
		}
	}
	var all []Handler
	for _, key := range slices.Sorted(maps.Keys(found)) {
		all = append(all, *found[key])
	}
	return all
}

// handler returns the release that the options are for: the caller's own, else one that reads the
// queue, and of several the one in the namespace of the options. If QUEUE_URL is not known,
// because it is in a Secret, the namespace decides.
func (f *Facts) handler() (Handler, bool) {
	var best Handler
	most := 0
	for _, h := range f.handlers() {
		own, here, reads := h.subject() == f.User.Value.Name, h.Namespace == f.Options.Namespace,
			h.QueueURL == f.Options.QueueURL
		rank := 0
		for k, yes := range []bool{h.Lease == f.Options.Lease, h.Deployment || len(h.Pods) > 0, here, reads, own} {
			if yes {
				rank += 1 << k
			}
		}
		if (own || reads || here && h.QueueURL == "") && rank > most {
			best, most = h, rank
		}
	}
	return best, most > 0
}

// handlerRuns checks that there is a handler and that it works.
func handlerRuns(f *Facts) Finding {
	if f.Pods.Err != nil {
		return unknown("whether the handler runs", f.Pods.Err)
	}
	h, installed := f.handler()
	if !installed {
		return warn("install it, or accept this line until it is: helm upgrade --install node-termination-handler "+
			"deploy/helm/node-termination-handler --namespace "+
			cmp.Or(f.Options.Namespace, ownName)+" --create-namespace --set queueURL="+f.Options.QueueURL+
			" --set image.repository=REGISTRY/NAME",
			"no handler for this queue is installed")
	}
	name := h.Namespace + "/" + h.Name
	h.Pods = slices.DeleteFunc(slices.Clone(h.Pods), func(p Pod) bool { return p.State.Leaving })
	on, crashing, stuck, starting := h.sorted()
	ready := len(on)
	severity := failedIf(ready == 0) // else another replica does its work
	switch all := overview.Count(len(h.Pods), "replica"); {
	case len(crashing) > 0:
		p := crashing[0]
		return bad(severity, "its last line says why; more lines: kubectl -n "+p.Namespace+" logs "+p.Name+" --previous",
			"%s: crashing: %d of %s: pod %s has ended %s%s", name, len(crashing), all, p.Name,
			overview.Count(p.State.Restarts, "time"), p.State.Exit)
	case len(stuck) > 0:
		p := stuck[0]
		return bad(severity, "find out why the pod does not run: kubectl -n "+p.Namespace+" describe pod "+p.Name,
			"%s: not running: %d of %s: pod %s: %s", name, len(stuck), all, p.Name,
			strings.TrimSuffix(p.State.Waiting+": "+p.State.Message, ": "))
	case len(h.Pods) == 0 && h.Wanted == 0:
		return fail("start it: kubectl -n "+h.Namespace+" scale deployment "+h.Name+" --replicas=2",
			"%s is scaled to 0 replicas: nobody drains nodes", name)
	case len(h.Pods) == 0:
		return fail("find out why its pods are not created: kubectl -n "+h.Namespace+" describe deployment,replicaset",
			"%s has no pod: nobody drains nodes", name)
	case ready == 0:
		return bad(failedIf(f.isLate(starting[0])),
			"wait, or find out why: kubectl -n "+h.Namespace+" logs "+starting[0].Name,
			"no replica of %s is ready", name)
	case slices.ContainsFunc(starting, f.isLate):
		p := starting[slices.IndexFunc(starting, f.isLate)]
		return warn("find out why: kubectl -n "+p.Namespace+" describe pod "+p.Name,
			"%s: %d of %s ready: pod %s has not been for %s", name, ready, all, p.Name,
			overview.Length(f.Now.Sub(p.State.Since)))
	case len(h.Pods) < h.Wanted:
		return warn("find out why the others are not created: kubectl -n "+h.Namespace+" describe deployment,replicaset",
			"%s has %d of %s", name, len(h.Pods), overview.Count(h.Wanted, "replica"))
	case f.together(on):
		return warn("keep them apart by an affinity, as the chart does, then: kubectl -n "+h.Namespace+
			" rollout restart "+h.exec(), "%s: all ready replicas are on one node, %s", name, on[0])
	}
	return ok("%s runs: %d of %s ready", name, ready, overview.Count(len(h.Pods), "replica"))
}

// sorted are the nodes of its pods that are ready, and the others by what keeps them.
func (h *Handler) sorted() (on []string, crashing, stuck, starting []Pod) {
	for _, p := range h.Pods {
		switch {
		case p.State.Ready:
			on = append(on, p.Node)
		case p.State.Waiting == "CrashLoopBackOff" || p.State.Restarts > 0:
			crashing = append(crashing, p)
		case p.State.Waiting != "" && p.State.Waiting != "ContainerCreating" && p.State.Waiting != "PodInitializing":
			stuck = append(stuck, p)
		default:
			starting = append(starting, p)
		}
	}
	return on, crashing, stuck, starting
}

// isLate reports whether a pod that is not ready has had the time to get ready.
func (f *Facts) isLate(p Pod) bool {
	const starts = 2 * time.Minute // at most, with a large image
	return !p.State.Since.IsZero() && f.Now.Sub(p.State.Since) > starts
}

// together reports whether these nodes of several replicas are one, though there is another that could take one.
func (f *Facts) together(on []string) bool {
	return len(on) > 1 && !slices.ContainsFunc(on, func(node string) bool { return node != on[0] }) &&
		slices.ContainsFunc(f.Nodes.Value, func(n Node) bool {
			return n.Name != on[0] && !n.Fargate && !n.Full && n.Labels["kubernetes.io/os"] != "windows"
		})
}

// isOptional reports whether the handler works without a right: Events and conditions are missing then, and drains do
// not wait for load balancers.
func isOptional(a kube.Access) bool {
	return a.Resource == "events" ||
		slices.Contains(slices.Concat(kube.Disrupting(), kube.Conditions(), kube.LoadBalancers()), a)
}

func rbac(f *Facts) Finding {
	const subject = "whether the handler has its rights in the cluster"
	if f.Rights.Err != nil {
		return unknown(subject, f.Rights.Err)
	}
	targets := f.TargetGroups
	withoutTargets := errors.Is(targets.Err, ErrAbsent) || targets.Err == nil && len(targets.Value) == 0
	var missing, useful []string
	asked := 0
	var unsure error // whether a right is there that is needed
	byName := func(a, b kube.Access) int { return cmp.Compare(a.String(), b.String()) }
	for _, a := range slices.SortedFunc(maps.Keys(f.Access), byName) {
		answer := f.Access[a]
		if withoutTargets && slices.Contains(kube.LoadBalancers(), a) {
			continue
		}
		asked++
		switch {
		case answer.Err != nil && (unsure == nil || !isOptional(a)):
			unsure = answer.Err
		case answer.Err != nil:
		case answer.Value:
		case isOptional(a):
			useful = append(useful, a.String())
		default:
			missing = append(missing, a.String())
		}
	}
	who := cmp.Or(f.Rights.Of, f.User.Value.Name)
	hint := "apply the ClusterRole and the Role of deploy/manifests, which are the chart's too: kubectl auth " +
		"reconcile -f deploy/manifests/node-termination-handler.yaml"
	if h, known := f.handler(); known && (h.Namespace != ownName || h.ServiceAccount != ownName) {
		hint = "upgrade the release with rbac.create=true: the rights are those of ServiceAccount " + h.Namespace + "/" +
			h.ServiceAccount
	}
	switch {
	case len(missing) > 0:
		return fail(hint, "%s has no permission to %s", who, list(append(missing, useful...)))
	case unsure != nil:
		return unknown(subject, unsure)
	case len(useful) > 0:
		return warn(hint, "%s has no permission to %s: the rest works", who, list(useful))
	case asked == 0:
		return unclear("", "%s was not asked", subject)
	}
	return ok("%s has the %s that the handler needs", who, overview.Count(asked, "right"))
}

func leadership(f *Facts) Finding {
	l := f.Lease.Value
	logs := "see the replicas' logs, if there are any"
	h, installed := f.handler()
	if installed {
		logs = "see the replicas' logs: kubectl -n " + h.Namespace + " logs deploy/" + h.Name + " --all-pods --tail=5"
	}
	switch {
	case f.Options.DryRun:
		return fail("turn dry-run off", "dry-run is on: no node is drained")
	case !f.Options.LeaderElect:
		return warn("leave leader-elect on: with two replicas every node would be drained by both", "leader election is off")
	case errors.Is(f.Lease.Err, ErrAbsent) && f.Pods.Err == nil && !installed:
		return unknown("which replica leads", blocked("handler", f.Lease.Err))
	case errors.Is(f.Lease.Err, ErrAbsent):
		return warn(logs, "no replica has led in namespace %s so far: there is no Lease %s", f.Options.Namespace,
			f.Options.Lease)
	case f.Lease.Err != nil:
		return unknown("the Lease", f.Lease.Err)
	case l.Paused != nil:
		return fail("kubectl nth resume, see docs/stop.md", "the handler is paused (%s): no node is drained", *l.Paused)
	case l.Holder == "":
		return warn(logs, "nobody leads in namespace %s: the last leader has released the Lease", f.Options.Namespace)
	case l.Silent > 2*l.Duration:
		return fail(logs, "nobody leads in namespace %s: %s has not renewed the Lease for %s", f.Options.Namespace, l.Holder,
			l.Silent.Round(time.Second))
	}
	return ok("%s leads", l.Holder)
}
