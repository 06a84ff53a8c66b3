package e2e

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/proxy"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

var (
	everyFault = flag.Bool("faults", false, "let every call fail in every way, not only some of them at random")
	faultSeed  = flag.Uint64("fault-seed", 1, "seed of the random faults, the same each time so that no gate fails by chance; 0: one of its own; it is printed")
)

// faultsLast is how long calls fail in a play, from its notices on.
const faultsLast = 20 * time.Second

// ways are those in which a call can fail, on the way or by its answer.
var ways = map[string]proxy.Fault{
	"throttled":          {Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}},
	"500":                {Status: http.StatusInternalServerError},
	"503":                {Status: http.StatusServiceUnavailable},
	"reset":              {Reset: true},
	"answer lost":        {Reset: true, AfterEffect: true},
	"half a response":    {Half: true},
	"no answer":          {Latency: 15 * time.Second, Reset: true}, // three quarters of the time
	"slow":               {Latency: 5 * time.Second},
	"wrong content type": {Header: http.Header{"Content-Type": {"text/html"}}},
	"clock ahead":        {Skew: 4 * time.Minute}, // of the Date alone: by five the simulator would refuse what is signed by it
}

// calledActions are what a play calls, without the names of what it is about.
var calledActions = []string{
	"sqs ReceiveMessage", "sqs DeleteMessageBatch", "sqs ChangeMessageVisibilityBatch", "sqs GetQueueAttributes", "ec2 DescribeInstances",
	"autoscaling DescribeLifecycleHooks", "autoscaling RecordLifecycleActionHeartbeat", "autoscaling CompleteLifecycleAction",
	"get leases", "create leases", "update leases", "list nodes", "watch nodes", "get nodes", "patch nodes", "patch nodes/status",
	"watch volumeattachments", "list pods", "watch pods", "delete pods", "create pods/eviction", "create events", "patch events",
}

// A saboteur lets calls of all replicas fail.
type saboteur struct {
	mu    sync.Mutex
	harm  func(call string) proxy.Fault
	until time.Time
	tries map[string][]time.Time // of calls that were made to fail
}

func (f *saboteur) hooks(*handler) proxy.Hooks {
	return proxy.Hooks{Before: func(_ context.Context, c proxy.Call) proxy.Fault {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.harm == nil || !f.until.IsZero() && time.Now().After(f.until) {
			return proxy.Fault{}
		}
		fault := f.harm(kindOf(c.String()))
		if fault.Status != 0 || fault.Reset || fault.Hang || fault.Half {
			f.tries[c.Namespace+" "+c.String()] = append(f.tries[c.Namespace+" "+c.String()], time.Now())
		}
		return fault
	}}
}

// begin lets calls fail for a while; for ever, if it is not positive.
func (f *saboteur) begin(lasts time.Duration, harm func(call string) proxy.Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.harm, f.tries = harm, map[string][]time.Time{}
	if lasts > 0 {
		f.until = time.Now().Add(lasts)
	}
}

// check judges that nothing that failed was tried more than ten times in a second
// by the replicas, each. More than that on average, and two seconds' worth, is an error on any
// machine. Receivers and watches of several nodes are several things.
func (f *saboteur) check(p *pulse) {
	p.s.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	const most = 2 * 10
	for call, times := range f.tries {
		if strings.Contains(call, "watch pods") || strings.Contains(call, "events") {
			continue // of several nodes and pods, without their names
		}
		if span := times[len(times)-1].Sub(times[0]).Seconds(); float64(len(times)) > most*(span+2) {
			p.s.Errorf("%s failed %d times within %.1f s", call, len(times), span)
			continue
		}
		for k := most; k < len(times); k++ {
			if span := times[k].Sub(times[k-most]); span < time.Second {
				p.judge("%s failed %d times within %s", call, most+1, span)
				break
			}
		}
	}
}

// sabotage performs the play of the chaos with two replicas whose calls begin to
// fail with the notices, and checks that nothing was lost, that no replica has
// ended, and that none has kept what it needed for the faults.
func sabotage(s *scenario, lasts time.Duration, harm func(call string) proxy.Fault, during ...func(*play)) {
	s.Helper()
	p := &play{scenario: s}
	p.setUp()
	f := &saboteur{}
	// A poll of EC2 is a call of some plays only, because it comes after a minute.
	args := []string{"--heartbeat-interval=30", "--taint-node", "--exclude-from-load-balancers", "--status-interval=-1"}
	replicas := []*handler{s.launchBehind(f.hooks, args...), s.launchBehind(f.hooks, args...)}
	for _, h := range replicas {
		h.awaitReady()
	}
	s.eventually("one of them leads", func() bool { return replicas[0].leads() || replicas[1].leads() })
	before := make([]float64, len(replicas))
	for k, h := range replicas {
		before[k] = h.metric("go_goroutines")
	}
	if harm != nil {
		f.begin(lasts, harm)
	}
	p.pulse = s.feel()
	about := p.notices()
	for _, d := range during {
		d(p)
		p.pulse = s.feel() // what it did to the control plane was no stall of this machine
	}
	for message := range about {
		s.awaitDeleted(soon, message)
	}
	p.nothingIsLost(about)
	f.check(p.pulse)
	for k, h := range replicas {
		if h.isExited() {
			s.Fatalf("replica %d has exited", k)
		}
		// Leading takes some more than standing by, and either may lead now.
		const leading = 40
		s.eventually("the goroutines of the faults are gone", func() bool { return h.metric("go_goroutines") < before[k]+leading })
		if heap := h.metric("go_memstats_heap_inuse_bytes"); heap > 64<<20 {
			s.Errorf("replica %d uses %.0f MB", k, heap/(1<<20))
		}
		s.eventually("all is well with the replicas", func() bool {
			return h.get(h.probes, "/readyz") == http.StatusOK && h.get(h.probes, "/healthz") == http.StatusOK
		})
	}
}

// Of all calls some fail, each in a way of its own.
func TestNothingIsLostThoughCallsFailAtRandom(t *testing.T) {
	tier.Full(t, "75 s; internal/controller plays faults in virtual time")
	seed := *faultSeed
	if seed == 0 {
		seed = rand.Uint64N(1e9)
	}
	random := rand.New(rand.NewPCG(seed, 0))
	type misfortune struct {
		way   string
		share float64
	}
	plan := map[string]misfortune{}
	names := slices.Sorted(maps.Keys(ways))
	for _, call := range calledActions {
		plan[call] = misfortune{names[random.IntN(len(names))], 0.1 + 0.4*random.Float64()}
	}
	s := newScenario(t)
	t.Logf("fault-seed=%d: %v", seed, plan)
	hits := map[string]int{}
	sabotage(s, faultsLast, func(call string) proxy.Fault {
		m := plan[call]
		if rand.Float64() >= m.share || hits[call] > 0 && hides(call, ways[m.way]) {
			return proxy.Fault{}
		}
		hits[call]++
		return ways[m.way]
	})
}

// hides reports whether the fault of a call hides messages for 20 s, as a receive does
// whose answer is lost. Each time takes as much of what the spot warning leaves: it happens once.
func hides(call string, fault proxy.Fault) bool {
	return call == "sqs ReceiveMessage" && (fault.AfterEffect || fault.Half)
}

// make faults. The story of virtual time in internal/controller has them all in
// each run; here they pass through real connections.
func TestNothingIsLostWhateverCallFailsInWhateverWay(t *testing.T) {
	if !*everyFault {
		t.Skip("with -faults")
	}
	t.Parallel()
	results := &outcomes{rows: map[string]*outcome{}}
	t.Cleanup(func() { t.Logf("\n%s", results) })
	for _, way := range slices.Sorted(maps.Keys(ways)) {
		for _, call := range calledActions {
			t.Run(call+" "+way, func(t *testing.T) {
				s := newScenario(t)
				begin, hits := time.Now(), 0
				t.Cleanup(func() { results.add(way, hits, t.Failed(), time.Since(begin)) })
				fault := ways[way]
				sabotage(s, faultsLast, func(called string) proxy.Fault {
					if called != call || hits > 0 && hides(call, fault) {
						return proxy.Fault{}
					}
					hits++
					return fault
				})
			})
		}
	}
}

// outcomes sum up, a line for each way.
type outcomes struct {
	mu   sync.Mutex
	rows map[string]*outcome
}

type outcome struct {
	plays, calls, failures int
	slowest                time.Duration
}

func (o *outcomes) add(way string, hits int, failed bool, took time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, name := range []string{way, all} {
		if o.rows[name] == nil {
			o.rows[name] = &outcome{}
		}
		r := o.rows[name]
		r.plays++
		r.calls += hits
		r.slowest = max(r.slowest, took)
		if failed {
			r.failures++
		}
	}
}

func (o *outcomes) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var text strings.Builder
	text.WriteString("| way to fail | plays | calls that failed | failures | slowest |\n|---|---|---|---|---|\n")
	for _, way := range slices.Sorted(maps.Keys(o.rows)) {
		r := o.rows[way]
		fmt.Fprintf(&text, "| %s | %d | %d | %d | %.0f s |\n", strings.TrimPrefix(way, "~ "), r.plays, r.calls, r.failures, r.slowest.Seconds())
	}
	return text.String()
}

func TestNothingIsLostThoughTheAPIServerIsDifficult(t *testing.T) {
	tier.Full(t, "three plays of 75 s; internal/controller plays faults in virtual time")
	t.Parallel()
	for name, test := range map[string]struct {
		lasts time.Duration // 0: to the end
		harm  func(call string) proxy.Fault
	}{
		"every watch ends after a second": {0, func(call string) proxy.Fault {
			if strings.HasPrefix(call, "watch ") {
				return proxy.Fault{EndAfter: time.Second}
			}
			return proxy.Fault{}
		}},
		"each patch is a conflict": {faultsLast, func(call string) proxy.Fault {
			if strings.HasPrefix(call, "patch ") {
				return status(http.StatusConflict, metav1.StatusReasonConflict)
			}
			return proxy.Fault{}
		}},
		"every resourceVersion has expired": {faultsLast, func(call string) proxy.Fault {
			if strings.HasPrefix(call, "watch ") {
				return status(http.StatusGone, metav1.StatusReasonExpired)
			}
			return proxy.Fault{}
		}},
	} {
		t.Run(name, func(t *testing.T) { sabotage(newScenario(t), test.lasts, test.harm) })
	}
}

// status is an answer of the API server.
func status(code int, reason metav1.StatusReason) proxy.Fault {
	return proxy.Fault{
		Status: code, Header: http.Header{"Content-Type": {"application/json"}},
		Body: fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":"a fault of the test"}`, code, reason),
	}
}

// In a cluster of its own, since others need theirs.
func TestNothingIsLostThoughTheControlPlaneIsAway(t *testing.T) {
	tier.Full(t, "two minutes and two control planes of its own")
	t.Parallel()
	away := map[string]func(*play){
		"the API server is restarted": func(p *play) {
			p.cluster.APIServer.Kill()
			p.must(p.cluster.APIServer.Start(p.ctx))
		},
		"etcd stops for 30 seconds": func(p *play) {
			p.must(p.cluster.Etcd.Pause())
			after := time.NewTimer(30 * time.Second)
			defer after.Stop()
			<-after.C
			p.must(p.cluster.Etcd.Resume())
		},
	}
	for name, goAway := range away {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster, err := sandbox.Start(t.Context(), sandbox.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cluster.Stop() })
			sabotage(newScenarioIn(t, cluster), 0, nil, func(p *play) {
				p.away = true
				goAway(p)
			}, func(p *play) {
				p.eventually("the API server is back", func() bool {
					_, err := p.kube.CoreV1().Nodes().Get(p.ctx, p.spare.name, metav1.GetOptions{})
					return err == nil
				})
			})
		})
	}
}

// Somebody refuses evictions for good.
func TestWhoDeniesEvictionsIsToldByItsNameAndPassedBeforeTheDeadline(t *testing.T) {
	tier.Full(t, "45 s each; internal/drain plays it in virtual time")
	for name, tt := range map[string]struct {
		deny  func(*scenario) (name string)
		cause overview.Cause
		words string // of the API server
	}{
		"a policy":               {(*scenario).denyByPolicy, overview.AdmissionPolicy, "ValidatingAdmissionPolicy '%s'"},
		"a webhook":              {(*scenario).denyByWebhook, overview.Webhook, `admission webhook "%s" denied the request: ` + nobody},
		"a webhook that is away": {(*scenario).denyByAbsence, overview.Webhook, `failed calling webhook "%s"`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScenario(t)
			otherRights.Store(s.name, true) // it refuses what the roles grant
			n := s.nodes(1)[0]
			s.pod("guarded", n.name, stopping(5*time.Second, 0))
			denier := tt.deny(s)
			words := fmt.Sprintf(tt.words, denier)
			h := s.leader("--emit-kubernetes-events=true")
			pulse, sent := s.feel(), time.Now()
			message, deadline := s.warn(n, 40*time.Second)
			if w := h.awaitWait(n, tt.cause, words); w.Name != denier || w.Pod != s.name+"/guarded" {
				t.Errorf("the status names %q and the pod %q, want %q and guarded", w.Name, w.Pod, denier)
			}
			s.awaitDeleted(soon, message)
			for _, about := range []struct{ namespace, kind, name string }{{s.name, "Pod", "guarded"}, {"default", "Node", n.name}} {
				s.eventually("an Event of "+about.kind+" "+about.name+" names it", func() bool {
					return slices.ContainsFunc(s.told(about.namespace, about.kind, about.name), func(e corev1.Event) bool {
						is := e.Reason == "EvictionBlocked" && strings.Contains(e.Message, words)
						if is {
							pulse.atMost(e.CreationTimestamp.Sub(sent), 30*time.Second, "the Event")
						}
						return is
					})
				})
			}
			pulse.refusedThenDeleted("guarded", deadline)
			s.drainedBefore(message, n)
		})
	}
}

// refusedThenDeleted checks that the evictions of a pod were refused, some times, and that it was deleted then with all
// of its grace.
func (p *pulse) refusedThenDeleted(pod string, deadline time.Time) {
	p.s.Helper()
	deletion := p.forced(pod, 0, 2, 29)
	if deletion.grace < 1 {
		p.s.Errorf("the deletion is %v, want all of the pod's grace", deletion) // on any machine
	} else if deletion.grace < 4 {
		p.judge("the deletion is %v, want all of the pod's grace", deletion)
	}
	p.before(deletion.at, deadline, "deleted")
}

// A namespace is being deleted, and its controller does not get on with it: the API server refuses evictions there, and
// Events too. In a cluster of its own, whose controllers stand still.
func TestAPodOfANamespaceThatEndsIsToldOnItsNodeAndDeletedBeforeTheDeadline(t *testing.T) {
	tier.Full(t, "40 s and a control plane of its own; internal/drain plays it in virtual time")
	t.Parallel()
	cluster, err := sandbox.Start(t.Context(), sandbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Stop() })
	s := newScenarioIn(t, cluster)
	n := s.nodes(1)[0]
	h := s.leader("--emit-kubernetes-events=true")
	const ending = "ending"
	_, err = s.kube.CoreV1().Namespaces().Create(s.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ending}}, metav1.CreateOptions{})
	s.must(err)
	pod := s.newPod("web", n.name, stopping(5*time.Second, 0))
	pod.Namespace = ending
	s.eventually("the pod is there", func() bool { // its ServiceAccount comes a moment later
		_, err := s.kube.CoreV1().Pods(ending).Create(s.ctx, pod, metav1.CreateOptions{})
		return err == nil
	})
	cluster.ControllerManager.Kill()
	s.must(s.kube.CoreV1().Namespaces().Delete(s.ctx, ending, metav1.DeleteOptions{}))

	pulse, sent := s.feel(), time.Now()
	message, deadline := s.warn(n, 40*time.Second)
	if w := h.awaitWait(n, overview.Namespace, "namespace "+ending+" is being deleted"); w.Name != ending || w.Pod != ending+"/web" {
		t.Errorf("the status names the namespace %q and the pod %q, want %q and web", w.Name, w.Pod, ending)
	}
	s.eventually("an Event of the node names the pod and its namespace", func() bool {
		return slices.ContainsFunc(s.told("default", "Node", n.name), func(e corev1.Event) bool {
			return e.Reason == "EvictionBlocked" && strings.Contains(e.Message, ending+"/web") && strings.Contains(e.Message, "is being deleted")
		})
	})
	pulse.atMost(time.Since(sent), 30*time.Second, "the Event")
	s.awaitDeleted(soon, message)
	requests := s.requests("web")
	last := requests[len(requests)-1]
	if !last.accepted() || last.evicts || len(requests) < 2 || requests[0].code != http.StatusForbidden {
		t.Errorf("requests %v, want evictions that are forbidden and then one deletion", requests)
	}
	pulse.before(last.at, deadline, "deleted")
	if forced := h.metric(`node_termination_handler_pods_total{how="forced",kind="SpotInterruption"}`); forced != 1 {
		t.Errorf("%g pods are counted as forced, want 1:\n%s", forced, h.log.String())
	}
}

// nobody is what people say who deny evictions.
const nobody = "nobody is evicted here"

func (s *scenario) denyByPolicy() (name string) {
	s.Helper()
	policies := s.kube.AdmissionregistrationV1()
	_, err := policies.ValidatingAdmissionPolicies().Create(s.ctx, &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: evictionsAlone()[0]}},
			},
			Validations: []admissionregistrationv1.Validation{{Expression: "false", Message: nobody}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	_, err = policies.ValidatingAdmissionPolicyBindings().Create(s.ctx, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: s.name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			MatchResources: &admissionregistrationv1.MatchResources{NamespaceSelector: s.namespaceAlone()},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	s.awaitDenial(nobody)
	return s.name
}

// denyByWebhook has an admission webhook, which serves TLS as the API server demands.
func (s *scenario) denyByWebhook() (name string) {
	name, _ = s.denyingWebhook()
	return name
}

// denyByAbsence has one that is gone, and must not be passed over.
func (s *scenario) denyByAbsence() (name string) {
	name, server := s.denyingWebhook()
	server.Close()
	s.awaitDenial("failed calling webhook")
	return name
}

func (s *scenario) denyingWebhook() (name string, server *httptest.Server) {
	s.Helper()
	server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Result: &metav1.Status{Code: http.StatusForbidden, Message: nobody},
		}
		_ = json.NewEncoder(w).Encode(review) // the API server reports it
	}))
	s.Cleanup(server.Close)
	name = s.name + ".example.com"
	_, err := s.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(s.ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: name,
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: &server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: evictionsAlone(), NamespaceSelector: s.namespaceAlone(),
			FailurePolicy: new(admissionregistrationv1.Fail), SideEffects: new(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	s.must(err)
	s.awaitDenial(nobody)
	return name, server
}

func evictionsAlone() []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}},
	}}
}

func (s *scenario) namespaceAlone() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: s.name}}
}

// awaitDenial waits until a denial counts: the API server learns of it a moment later.
func (s *scenario) awaitDenial(words string) {
	s.Helper()
	const name = "canary"
	if !s.podExists(name) {
		s.pod(name, s.node(s.name+"-canary", s.id(99)).name)
	}
	canary, err := s.kube.CoreV1().Pods(s.name).Get(s.ctx, name, metav1.GetOptions{})
	s.must(err)
	s.eventually("evictions are denied", func() bool {
		err := s.kube.PolicyV1().Evictions(s.name).Evict(s.ctx, dryRunEviction(canary))
		return err != nil && strings.Contains(err.Error(), words)
	})
}

// The queue does not answer for a hundred seconds: the probes tell, and nothing
// else happens.
func TestTheProbesTellThatTheQueueIsAway(t *testing.T) {
	tier.Full(t, "two minutes; internal/app plays it in virtual time")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("plain", n.name)
	h := s.leader()
	s.eventually("the queue is asked", func() bool { return s.calls("sqs", "GetQueueAttributes") > 0 })
	pulse, away := s.feel(), time.Now()
	s.must(s.aws.SetFault(awssim.Fault{ID: "away", Service: "sqs", Hang: true}))
	s.eventually("/readyz names the queue", func() bool {
		status, text := h.fetch(h.probes, "/readyz")
		return status == http.StatusServiceUnavailable && strings.HasPrefix(text, "queue: no answer for ")
	})
	s.eventually("/healthz turns bad", func() bool {
		status, text := h.fetch(h.probes, "/healthz")
		rest, bad := strings.CutPrefix(text, "the queue has not answered for ")
		if status != http.StatusServiceUnavailable {
			return false
		}
		if quiet, err := time.ParseDuration(strings.TrimSpace(rest)); !bad || err != nil || quiet < 90*time.Second {
			t.Errorf("/healthz says %q, want it after 90 s", text)
		}
		if took := time.Since(away); took < time.Minute { // 90 s after the last answer, less a long poll
			pulse.judge("/healthz is bad %s after the queue went away", took)
		}
		return true
	})
	goroutines := h.metric("go_goroutines")
	message, _ := s.warn(n, 2*time.Minute)
	s.aws.RemoveFault("away")
	s.eventually("both probes are good again", func() bool {
		return h.get(h.probes, "/healthz") == http.StatusOK && h.get(h.probes, "/readyz") == http.StatusOK
	})
	s.awaitDeleted(soon, message)
	s.drainedBefore(message, n)
	if h.isExited() {
		t.Error("the handler has exited")
	}
	s.eventually("no goroutine is left behind", func() bool { return h.metric("go_goroutines") <= goroutines+10 })
}

func TestAPermissionThatIsTakenAwayAndGivenBackCostsNothing(t *testing.T) {
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("slow", n.name, stopping(time.Minute, 10*time.Second))
	h := s.leader()
	message := s.reserve(n)
	s.eventually("the drain is under way", func() bool { return len(s.requests("slow")) > 0 })
	s.must(s.aws.SetFault(awssim.Fault{ID: "taken", Service: "sqs", Status: http.StatusForbidden, Code: "AccessDenied"}))
	s.eventually("the drain ends and the message cannot be deleted", func() bool {
		return s.aws.Counts()[awssim.CallKey{Service: "sqs", Action: "DeleteMessageBatch", Code: "AccessDenied"}] > 0
	})
	s.gone("slow")
	s.aws.RemoveFault("taken")
	s.awaitDeleted(soon, message)
	s.askedOnce("slow")
	if h.isExited() {
		t.Error("the handler has exited")
	}
}

// dryRunEviction asks whether a pod would be evicted.
func dryRunEviction(pod *corev1.Pod) *policyv1.Eviction {
	return &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
		DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
	}
}
