package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/imds"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/kube/kubetest"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
	"github.com/node-termination-handler/node-termination-handler/internal/webhook"
)

const (
	ownID   = "i-0123456789abcdef0"
	ownNode = "node-1"
)

// A machine is an instance with its metadata, its Node and one pod, in virtual time.
type machine struct {
	*testing.T
	metadata *awssim.Metadata
	kube     *fake.Clientset
	options  *options.Options
	log      logtest.Log
	stops    []func()
	app      *App // of the last process
	cordon   cluster.CordonOptions

	transport http.RoundTripper // of the next process, to the metadata
	endTerm   func()            // of the last process, which goes on

	mu      sync.Mutex
	refuses bool // the budget does
	evicted int
}

func onMachine(t *testing.T, story func(m *machine)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := &machine{
			T: t, metadata: awssim.NewMetadata(awssim.MetadataOptions{Instance: ownID, Started: time.Now().Add(-time.Hour)}),
			options: &options.Options{
				IMDS: true, NodeName: ownNode, NodeGracePeriod: 2 * time.Minute, PodGracePeriod: -1, IgnoreDaemonSets: true,
				SpotDraining: true, ScheduledDraining: true, LifecycleDraining: true, RebalanceDraining: true,
			},
		}
		m.kube = fake.NewClientset(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: ownNode, UID: "uid-1", ResourceVersion: "1"},
			Spec:       corev1.NodeSpec{ProviderID: "aws:///us-east-1a/" + ownID},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
				NodeInfo:   corev1.NodeSystemInfo{BootID: "boot-1"},
			},
		}, m.pod())
		m.transport = m.metadata.Transport()
		m.kube.PrependReactor("create", "selfsubjectaccessreviews", mayAll)
		defer func() {
			for _, stop := range m.stops {
				stop()
			}
		}()
		story(m)
	})
}

func (m *machine) pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pod", Namespace: "ns", UID: "uid-2",
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "rs", APIVersion: "apps/v1", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: ownNode},
	}
}

// mayAll is the API server's answer to a question about rights.
func mayAll(action clienttesting.Action) (bool, runtime.Object, error) {
	review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
	review.Status.Allowed = true
	return true, review, nil
}

// evict is the API server's answer to an eviction. The pod goes a moment later: the fake does not
// tell a watch what happened between the list and its beginning.
func (m *machine) evict(context.Context, *policyv1.Eviction) (*metav1.Status, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	status := &metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Code: http.StatusCreated, Status: metav1.StatusSuccess,
	}
	if m.refuses {
		status.Code, status.Status, status.Reason = http.StatusTooManyRequests, metav1.StatusFailure, metav1.StatusReasonTooManyRequests
		return status, nil
	}
	m.evicted++
	time.AfterFunc(10*time.Millisecond, func() {
		_ = m.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", "pod") // it may have gone
	})
	return status, nil
}

// start starts a process, and gives it a second. stop is SIGTERM.
func (m *machine) start() (stop func()) {
	m.Helper()
	stop = m.begin()
	m.after(time.Second)
	return stop
}

func (m *machine) begin() (stop func()) {
	m.Helper()
	ctx, cancel := context.WithCancelCause(m.Context())
	nodes, err := cluster.NewOfNode(m.kube, nil, intent.OfMetadata, m.cordon, ownNode)
	if err != nil {
		m.Fatal(err)
	}
	metrics := telemetry.New()
	a := &App{
		options: m.options, log: m.log.Logger(), metrics: metrics, health: newHealth(),
		lookout: newLookout("", nil, logr.Discard()),
		kube:    kubetest.Evictable{Interface: m.kube, Evict: m.evict}, nodes: nodes,
		drainer: &drain.Drainer{
			Client: kubetest.Evictable{Interface: m.kube, Evict: m.evict}, Filter: Filter(m.options), Grace: -1, Observe: metrics.Pod, Blocked: func(evacuation.Blocked) {},
		},
	}
	a.observers = a.newObservers(ctx, webhook.Template{}, nil) // the options ask for metrics alone
	term, end := context.WithCancelCause(ctx)
	m.app, m.endTerm, a.lookout.dryRun = a, func() { end(errStory) }, m.options.DryRun
	a.serveNode()
	a.own.metadata = imds.New("", m.transport)
	var all sync.WaitGroup
	all.Go(func() { nodes.Run(ctx) })
	all.Go(func() {
		if err := a.checkNode(ctx); errors.Is(err, errStory) {
			return
		} else if err != nil {
			m.Errorf("the start: %v", err)
		}
		if err := a.stand(term); !errors.Is(err, errStory) {
			m.Errorf("the end: %v", err)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel(errStory)
		all.Wait()
	})
	m.stops = append(m.stops, stop)
	return stop
}

var errStory = errors.New("the story stops the process")

func (m *machine) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (m *machine) node() (*corev1.Node, intent.Intent) {
	m.Helper()
	node, err := m.kube.CoreV1().Nodes().Get(m.Context(), ownNode, metav1.GetOptions{})
	if err != nil {
		m.Fatal(err)
	}
	i, _, err := cluster.ReadIntent(node)
	if err != nil {
		m.Fatal(err)
	}
	return node, i
}

func (m *machine) want(what string, cordoned bool, outcome intent.Outcome, evicted int) {
	m.Helper()
	node, i := m.node()
	m.mu.Lock()
	defer m.mu.Unlock()
	if node.Spec.Unschedulable != cordoned || i.Outcome != outcome || m.evicted != evicted {
		m.Errorf("%s: cordoned %v, outcome %q, %d evicted; the log:\n%s", what, node.Spec.Unschedulable, i.Outcome, m.evicted, m.log.String())
	}
}

// wantTaints checks the kinds of notice that the node's taints name, as NTH calls them.
func (m *machine) wantTaints(what string, kinds ...string) {
	m.Helper()
	var got []string
	node, _ := m.node()
	for _, taint := range node.Spec.Taints {
		got = append(got, strings.TrimPrefix(taint.Key, "aws-node-termination-handler/"))
	}
	if !slices.Equal(got, kinds) {
		m.Errorf("%s: taints %v, want %v", what, got, kinds)
	}
}

// overview is what the last process tells of itself.
func (m *machine) overview() overview.Overview {
	m.Helper()
	o, err := m.app.lookout.Overview(m.Context())
	if err != nil {
		m.Fatal(err)
	}
	return o
}

func (m *machine) refuse(refuses bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refuses = refuses
}

func TestASpotActionDrainsTheNodeWithinSeconds(t *testing.T) {
	onMachine(t, func(m *machine) {
		m.start()
		m.want("before", false, "", 0)
		m.metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute))
		m.after(3 * time.Second)
		if node, _ := m.node(); !node.Spec.Unschedulable {
			t.Error("it is not cordoned within three seconds")
		}
		m.after(5 * time.Second)
		m.want("after", true, intent.Drained, 1)
		if _, i := m.node(); i.Queue != intent.OfMetadata || len(i.Entries) != 1 {
			t.Errorf("the intent: %+v", i)
		}
	})
}

func TestATerminationByAutoScalingForcesNothing(t *testing.T) {
	onMachine(t, func(m *machine) {
		m.refuse(true)
		m.start()
		m.metadata.SetLifecycleState("Terminated")
		m.after(time.Hour)
		m.want("an hour later", true, "", 0)
		m.refuse(false)
		m.after(time.Minute)
		m.want("the budget allows it", true, intent.Drained, 1)
	})
}

func TestARecommendationCordonsOrDrainsAsTheOptionsSay(t *testing.T) {
	tainted := []string{"rebalance-recommendation"}
	for name, tt := range map[string]struct {
		monitoring, draining, cordoned bool
		outcome                        intent.Outcome
		evicted                        int
		taints                         []string
	}{
		"neither":    {},
		"monitoring": {monitoring: true, cordoned: true, outcome: intent.Cordoned, taints: tainted},
		"draining":   {draining: true, cordoned: true, outcome: intent.Drained, evicted: 1, taints: tainted},
		"both":       {monitoring: true, draining: true, cordoned: true, outcome: intent.Drained, evicted: 1, taints: tainted},
	} {
		onMachine(t, func(m *machine) {
			m.cordon.TaintEffect = corev1.TaintEffectNoSchedule
			m.options.RebalanceMonitoring, m.options.RebalanceDraining = tt.monitoring, tt.draining
			m.start()
			m.metadata.Recommend(time.Now())
			m.after(time.Minute)
			m.want(name, tt.cordoned, tt.outcome, tt.evicted)
			m.wantTaints(name, tt.taints...)
			m.metadata.InterruptSpot("stop", time.Now().Add(2*time.Minute))
			m.after(10 * time.Second)
			m.want(name+", and a warning", true, intent.Drained, 1)
		})
	}
}

func TestAKindThatIsSwitchedOffDoesNothing(t *testing.T) {
	onMachine(t, func(m *machine) {
		m.options.SpotDraining, m.options.ScheduledDraining, m.options.LifecycleDraining = false, false, false
		m.start()
		m.metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute))
		m.metadata.SetLifecycleState("Terminated")
		m.metadata.Schedule(awssim.MaintenanceEvent{ID: "instance-event-0d59937288b749b32", Code: "instance-stop", State: "active", NotBefore: time.Now().Add(time.Hour)})
		m.after(time.Minute)
		m.want("after", false, "", 0)
	})
}

func TestTheEndOfAScheduledChangeUncordonsTheNode(t *testing.T) {
	for _, restart := range []bool{false, true} {
		onMachine(t, func(m *machine) {
			stop := m.start()
			e := awssim.MaintenanceEvent{ID: "instance-event-00000000000000001", Code: "instance-stop", State: "active", NotBefore: time.Now().Add(time.Hour)}
			m.metadata.Schedule(e)
			m.after(time.Minute)
			m.want("announced", true, intent.Drained, 1)
			if restart {
				stop()
			}
			e.State = "canceled"
			m.metadata.Schedule(e)
			if restart {
				m.start()
			}
			m.after(5 * time.Second)
			m.want("called off", false, "", 1)
			m.after(time.Hour)
			if log := m.log.String(); strings.Count(log, "why=scheduled-change-ended") != 2 { // decided, uncordoned
				t.Errorf("it is undone more than once:\n%s", log)
			}
		})
	}
}

func TestARestartGoesOnWithTheDrainOfTheNode(t *testing.T) {
	onMachine(t, func(m *machine) {
		m.refuse(true)
		stop := m.start()
		m.metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute))
		m.after(3 * time.Second)
		m.want("in the middle", true, "", 0)
		stop()
		m.refuse(false)
		m.metadata.SetFault(awssim.MetadataFault{Prefix: "/meta-data", Hang: true}) // what the node carries is enough
		m.start()
		m.after(10 * time.Second)
		m.want("after the restart", true, intent.Drained, 1)
		if m.app.lookout.term().resumed == nil || m.overview().Resuming {
			t.Error("its status does not say when it has read what the node carries")
		}
		m.metadata.SetFault(awssim.MetadataFault{})
		m.after(time.Minute)
		if _, i := m.node(); len(i.Entries) != 1 || len(i.Past) != 0 || i.FinishedAt.IsZero() {
			t.Errorf("the same notice has begun another drain: %+v", i)
		}
	})
}

// The last write of a term fails. The next one resumes the drain, and comes to its end again.
func TestADrainThatTwoTermsOfAProcessEndIsCountedOnce(t *testing.T) {
	onMachine(t, func(m *machine) {
		var answers atomic.Bool
		var refused atomic.Int32 // last writes
		m.kube.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if answers.Load() || !strings.Contains(string(action.(clienttesting.PatchAction).GetPatch()), "finishedAt") {
				return false, nil, nil
			}
			refused.Add(1)
			return true, nil, apierrors.NewInternalError(errors.New("not now"))
		})
		m.start()
		m.metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute))
		m.after(10 * time.Second)
		m.want("the first term", true, "", 1)
		if refused.Load() == 0 {
			t.Fatal("no last write has failed")
		}
		m.endTerm()
		m.after(time.Second)
		answers.Store(true)
		ctx, end := context.WithCancelCause(m.Context())
		ended := make(chan error, 1)
		go func() { ended <- m.app.onNode(ctx) }()
		m.after(10 * time.Second)
		m.want("the second term", true, intent.Drained, 1)
		const ours = "node_termination_handler_"
		for name, want := range map[string]float64{
			ours + "drains_total": 1, ours + "pods_total": 1, ours + "deadline_slack_seconds_count": 1, ours + "notice_to_cordon_seconds_count": 1,
			"actions_total": 3, // pre-drain, cordon, cordon-and-drain
		} {
			if got := m.counted(name); got != want {
				t.Errorf("%s is %v, want %v; the log:\n%s", name, got, want, m.log.String())
			}
		}
		end(errStory)
		if err := <-ended; !errors.Is(err, errStory) {
			t.Errorf("the end: %v", err)
		}
	})
}

// counted is the sum of a counter of the last process, over its labels.
func (m *machine) counted(name string) (sum float64) {
	m.Helper()
	page := httptest.NewRecorder()
	m.app.metrics.Handler().ServeHTTP(page, httptest.NewRequestWithContext(m.Context(), http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if series, value, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(series, name+"{") {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				m.Error(err)
			}
			sum += n
		}
	}
	return sum
}

// A reboot ends the process. The kubelet tells another boot id then. It is what a reboot was announced for; where a stop or a
// retirement was, the machine still goes. The metadata may list the change no more.
func TestANodeThatWasRebootedForAChangeIsUncordoned(t *testing.T) {
	for code, reboots := range map[string]bool{
		"system-reboot": true, "instance-reboot": true, "instance-stop": false, "instance-retirement": false, "system-maintenance": false,
	} {
		for _, listed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, still listed: %t", code, listed), func(t *testing.T) {
				onMachine(t, func(m *machine) { m.rebootsFor(code, time.Minute, reboots, listed) })
			})
		}
	}
	for begins, reboots := range map[time.Duration]bool{-time.Minute: true, time.Hour: false} { // of a change that is ahead, the reboot was none
		t.Run("begins in "+begins.String(), func(t *testing.T) {
			onMachine(t, func(m *machine) { m.rebootsFor("system-reboot", begins, reboots, true) })
		})
	}
}

func (m *machine) rebootsFor(code string, begins time.Duration, reboots, listed bool) {
	m.Helper()
	m.cordon.TaintEffect = corev1.TaintEffectNoSchedule
	change := awssim.MaintenanceEvent{ID: "instance-event-0d59937288b749b32", Code: code, State: "active", NotBefore: time.Now().Add(begins)}
	stop := m.start()
	m.metadata.Schedule(change)
	m.after(time.Minute)
	m.want("announced", true, intent.Drained, 1)
	m.wantTaints("announced", "scheduled-maintenance")
	stop()
	m.after(time.Minute)
	node, _ := m.node()
	node.Status.NodeInfo.BootID = "boot-2"
	if _, err := m.kube.CoreV1().Nodes().Update(m.Context(), node, metav1.UpdateOptions{}); err != nil {
		m.Fatal(err)
	}
	if !listed {
		m.metadata.SetFault(awssim.MetadataFault{Prefix: "/meta-data/events", Status: http.StatusNotFound})
	}
	m.start()
	m.after(30 * time.Second)
	if node, _ := m.node(); node.Spec.Unschedulable == reboots || (len(node.Spec.Taints) == 0) != reboots {
		m.Errorf("after the reboot cordoned is %t, taints %v; the log:\n%s", !reboots, node.Spec.Taints, m.log.String())
	}
	m.metadata.SetFault(awssim.MetadataFault{})
	change.State = "completed"
	m.metadata.Schedule(change)
	m.after(30 * time.Second)
	if node, _ := m.node(); node.Spec.Unschedulable || len(node.Spec.Taints) > 0 {
		m.Errorf("after the change it is still cordoned, or has the taints %v; the log:\n%s", node.Spec.Taints, m.log.String())
	}
}

func TestANodeWithoutAProviderIDOfEC2IsFoundByItsName(t *testing.T) {
	for _, id := range []string{"", "k3s://" + ownNode} {
		onMachine(t, func(m *machine) {
			node, _ := m.node()
			node.Spec.ProviderID = id
			if _, err := m.kube.CoreV1().Nodes().Update(m.Context(), node, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			m.start()
			m.metadata.Schedule(awssim.MaintenanceEvent{ID: "instance-event-0d59937288b749b32", Code: "instance-stop", State: "active", NotBefore: time.Now().Add(time.Hour)})
			m.after(time.Minute)
			m.want("announced", true, intent.Drained, 1)
			m.metadata.Schedule(awssim.MaintenanceEvent{ID: "instance-event-0d59937288b749b32", Code: "instance-stop", State: "completed", NotBefore: time.Now()})
			m.after(10 * time.Second)
			m.want("over", false, "", 1)
		})
	}
}

// eachNotice are the ways in which the metadata announces something.
var eachNotice = map[string]func(m *machine){
	"spot interruption": func(m *machine) { m.metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute)) },
	"recommendation":    func(m *machine) { m.metadata.Recommend(time.Now()) },
	"termination":       func(m *machine) { m.metadata.SetLifecycleState("Terminated") },
	"scheduled change": func(m *machine) {
		m.metadata.Schedule(awssim.MaintenanceEvent{
			ID: "instance-event-0d59937288b749b32", Code: "system-maintenance", State: "active", NotBefore: time.Now().Add(time.Hour),
		})
	},
}

func TestADryRunOnTheNodeChangesNothing(t *testing.T) {
	for name, announce := range eachNotice {
		t.Run(name, func(t *testing.T) {
			onMachine(t, func(m *machine) {
				m.options.DryRun = true
				m.start()
				announce(m)
				m.after(time.Minute)
				m.want("after", false, "", 0)
				if got := len(m.log.Entries("decided")); got != 1 {
					t.Errorf("it is told %d times:\n%s", got, m.log.String())
				}
				if o := m.overview(); !o.DryRun || len(o.Nodes) != 0 {
					t.Errorf("its status: %+v", o)
				}
			})
		})
	}
}

func TestWithCordonOnlyTheNodeIsCordonedAndItsPodStays(t *testing.T) {
	for name, announce := range eachNotice {
		t.Run(name, func(t *testing.T) {
			onMachine(t, func(m *machine) {
				m.options.CordonOnly = true
				m.start()
				announce(m)
				m.after(time.Minute)
				m.want("after", true, intent.Cordoned, 0)
			})
		})
	}
}

func TestTheMetadataOfAnotherInstanceEndsTheStart(t *testing.T) {
	onMachine(t, func(m *machine) {
		nodes, err := cluster.NewOfNode(m.kube, nil, intent.OfMetadata, cluster.CordonOptions{}, ownNode)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(m.Context())
		defer stop()
		go nodes.Run(ctx)
		if err := nodes.WaitForSync(ctx); err != nil {
			t.Fatal(err)
		}
		other := awssim.NewMetadata(awssim.MetadataOptions{Instance: "i-00000000000000bad"})
		own := &ownInstance{metadata: imds.New("", other.Transport()), node: ownNode}
		if _, err := own.identify(ctx); err != nil {
			t.Fatal(err)
		}
		c := nodeCheck(nodes, own)
		if err := c.try(ctx); !errors.Is(err, errOtherInstance) || c.heals(err) {
			t.Errorf("%v", err)
		}
		own.node = "node-2"
		if err := c.try(ctx); err == nil || !c.heals(err) {
			t.Errorf("without a Node: %v", err)
		}
	})
}

func TestAStartThatReachesNoMetadataEndsOrWaits(t *testing.T) {
	for name, tt := range map[string]struct {
		fault awssim.MetadataFault
		hops  int
		heals bool
		tries int
	}{
		"turned off":      {awssim.MetadataFault{Status: 403}, 1, false, 1},
		"too far away":    {awssim.MetadataFault{}, 2, false, 3},
		"busy":            {awssim.MetadataFault{Status: 503}, 1, true, 5},
		"another service": {awssim.MetadataFault{Prefix: "/dynamic", Status: 404}, 1, true, 5},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := awssim.NewMetadata(awssim.MetadataOptions{Instance: ownID})
			m.SetFault(tt.fault)
			m.SetHops(tt.hops)
			c := metadataCheck(&ownInstance{metadata: imds.New("", m.Transport())})
			tries, heals := 0, true
			for heals && tries < 5 {
				err := c.try(t.Context())
				if err == nil {
					t.Fatalf("%s: it works", name)
				}
				tries++
				heals = c.heals(err)
			}
			if heals != tt.heals || tries != tt.tries {
				t.Errorf("%s: heals %v after %d tries", name, heals, tries)
			}
		})
	}
}

func TestTheRightsOnTheNodeHaveNoVolumesAndNoLease(t *testing.T) {
	for _, a := range accesses(&options.Options{IMDS: true, LeaderElect: true, LeaseName: "lease"}) {
		if slices.Contains([]string{"volumeattachments", "persistentvolumeclaims", "leases"}, a.Resource) {
			t.Errorf("%s", a)
		}
	}
}
