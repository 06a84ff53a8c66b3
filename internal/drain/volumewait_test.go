package drain

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// using gives a pod a volume of a claim.
func using(claim string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
}

// claim binds a claim to the volume pv-NAME.
func (s *stage) claim(name string) {
	s.Helper()
	_, err := s.kube.CoreV1().PersistentVolumeClaims("ns").Create(s.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
}

// attach attaches volumes to the node, and has the drain wait for volumes.
func (s *stage) attach(volumes ...string) {
	s.Helper()
	for _, name := range volumes {
		s.attachSource(name, storagev1.VolumeAttachmentSource{PersistentVolumeName: &name})
	}
	s.watchVolumes()
	synctest.Wait() // as the program does before it drains
}

func (s *stage) attachSource(name string, source storagev1.VolumeAttachmentSource) {
	s.Helper()
	_, err := s.kube.StorageV1().VolumeAttachments().Create(s.Context(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "csi-" + name}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "node", Source: source},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
}

// detachAfter detaches a volume, after a time.
func (s *stage) detachAfter(d time.Duration, volume string) {
	go func() {
		if !s.passes(d) {
			return
		}
		if err := s.kube.StorageV1().VolumeAttachments().Delete(s.Context(), "csi-"+volume, metav1.DeleteOptions{}); err != nil {
			s.Error(err)
		}
	}()
}

// A claimReader asks, before it reads a claim.
type claimReader struct {
	kube.Client
	ask func(ctx context.Context, name string) error
}

// IsWatchListSemanticsUnSupported says what its fake says.
func (claimReader) IsWatchListSemanticsUnSupported() bool { return true }

func (c claimReader) CoreV1() typedcorev1.CoreV1Interface {
	return coreReader{c.Client.CoreV1(), c.ask}
}

type coreReader struct {
	typedcorev1.CoreV1Interface
	ask func(ctx context.Context, name string) error
}

func (c coreReader) PersistentVolumeClaims(namespace string) typedcorev1.PersistentVolumeClaimInterface {
	return getter{c.CoreV1Interface.PersistentVolumeClaims(namespace), c.ask}
}

type getter struct {
	typedcorev1.PersistentVolumeClaimInterface
	ask func(ctx context.Context, name string) error
}

func (g getter) Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.PersistentVolumeClaim, error) {
	if wrong := content.IsPathSegmentName(name); len(wrong) > 0 { // client-go sends no such request
		return nil, fmt.Errorf("invalid resource name %q: %v", name, wrong)
	}
	if err := g.ask(ctx, name); err != nil {
		return nil, err
	}
	return g.PersistentVolumeClaimInterface.Get(ctx, name, o)
}

func TestADrainWaitsForTheVolumesThatItsPodsUsed(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("db-0", using("a"))
		s.claim("a")
		s.attach("pv-a", "pv-nobody's")
		s.detachAfter(40*time.Second, "pv-a")
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(2 * time.Minute)}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 1}, 40*time.Second)
	})
}

// The pods of all tenants of a node share its list of claims.
func TestAClaimThatCannotBeReadDoesNotKeepOthersFromBeingRead(t *testing.T) {
	for _, wrong := range []string{"a/b", "broken"} {
		t.Run(wrong, func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("aaa", using(wrong))
				s.pod("db-0", using("a"))
				s.claim("a")
				s.drainer.Client = claimReader{s.drainer.Client, func(_ context.Context, name string) error {
					if name == "broken" {
						return errors.New("away")
					}
					return nil
				}}
				s.attach("pv-a")
				s.detachAfter(40*time.Second, "pv-a")
				result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(2 * time.Minute)}, nil)
				s.wantEnd(result, err, evacuation.Result{Evicted: 2}, 40*time.Second)
			})
		})
	}
}

func TestADrainDoesNotWaitForVolumesThatNoneOfItsPodsUsed(t *testing.T) {
	for name, terms := range map[string]time.Duration{"with a deadline": 5 * time.Minute, "without one": 48 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("web")
				s.pod("db-0", using("a"))
				s.claim("a")
				s.attachSource("inline", storagev1.VolumeAttachmentSource{InlineVolumeSpec: &corev1.PersistentVolumeSpec{}})
				s.attach("pv-nobody's", "pv-another's")
				told := s.told()
				result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(terms)}, nil)
				s.wantEnd(result, err, evacuation.Result{Evicted: 2}, lateBindTime)
				if len(*told) > 0 {
					t.Errorf("told %q", *told)
				}
			})
		})
	}
}

func TestAVolumeIsNotWaitedForWhileAPodThatIsThereUsesIt(t *testing.T) {
	for name, set := range map[string]func(s *stage){
		"it stays": func(s *stage) { s.pod("agent", daemon, using("a")) },
		"it comes during the drain": func(s *stage) {
			time.AfterFunc(20*time.Second, func() { s.pod("again", tolerant, using("a")) })
		},
		"nobody confirms its end": func(s *stage) {
			s.pod("dead", using("a"), runsOn)
			s.node.Ready = false
		},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.drainer.Filter.IgnoreDaemonSets = true
				s.claim("a")
				s.pod("web", using("a"))
				set(s)
				s.attach("pv-a")
				result, err := s.drain(evacuation.Terms{}, nil)
				if took := time.Since(s.begin); err != nil || result.Evicted == 0 || result.Volumes > 0 || took > 3*time.Minute {
					t.Errorf("%+v after %s, %v", result, took, err)
				}
			})
		})
	}
}

// Its kubelet is there, and unmounts.
func TestTheVolumeOfAPodOfAReadyNodeIsWaitedForThoughNobodyConfirmsItsEnd(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("dead", using("a"), runsOn)
		s.claim("a")
		s.attach("pv-a")
		s.detachAfter(200*time.Second, "pv-a")
		answers, result := s.asking(evacuation.Terms{}, 190*time.Second)
		s.wantEnd(result, nil, evacuation.Result{Unconfirmed: []string{"ns/dead"}}, 200*time.Second)
		if p := answers[0]; p.Pods.Left != 1 || !p.PodsGone.IsZero() || len(p.Waits) != 1 || p.Waits[0].Cause != overview.Volume {
			t.Errorf("while the volume is waited for: %+v", p)
		}
	})
}

// The object of a pod that has ended is no pod that uses it.
func TestTheVolumeOfAPodThatFinalizersKeepIsWaitedFor(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("job", kept, using("a"))
		s.claim("a")
		s.attach("pv-a")
		s.detachAfter(50*time.Second, "pv-a")
		result, err := s.drain(evacuation.Terms{}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 1}, 50*time.Second)
	})
}

// Kubernetes detaches it by force then, if the node is dead.
func TestVolumesAreWaitedForSixMinutesAfterTheLastPodAtMost(t *testing.T) {
	for name, tt := range map[string]struct{ terms, want time.Duration }{
		"without a deadline":     {0, 20*time.Second + 6*time.Minute},
		"before a late deadline": {time.Hour, 20*time.Second + 6*time.Minute},
		"or to the deadline":     {2 * time.Minute, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("db-0", using("a"))
				s.stops["db-0"] = 20 * time.Second
				s.claim("a")
				s.attach("pv-a", "pv-nobody's")
				var terms evacuation.Terms
				if tt.terms > 0 {
					terms.Deadline = s.begin.Add(tt.terms)
				}
				result, err := s.drain(terms, nil)
				s.wantEnd(result, err, evacuation.Result{Evicted: 1, Volumes: 1}, tt.want)
			})
		})
	}
}

// The claim of an ephemeral volume is deleted with its pod.
func TestAClaimIsReadBeforeItGoesWithItsPod(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("job", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
		})
		s.claim("job-scratch")
		s.stopped = func(*corev1.Pod) {
			if err := s.kube.CoreV1().PersistentVolumeClaims("ns").Delete(s.Context(), "job-scratch", metav1.DeleteOptions{}); err != nil {
				s.Error(err)
			}
		}
		s.attach("pv-job-scratch")
		s.detachAfter(40*time.Second, "pv-job-scratch")
		result, err := s.drain(evacuation.Terms{}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 1}, 40*time.Second)
	})
}

func TestEachClaimIsReadOnceAndNoneWhereNothingIsAttached(t *testing.T) {
	for name, tt := range map[string]struct {
		attached []string
		want     int
	}{
		"a claim of each volume": {[]string{"pv-a", "pv-b"}, 2},
		"nothing is attached":    {nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("one", using("a"))
				s.pod("two", using("a"), using("b"))
				s.pod("web")
				s.pod("agent", daemon, using("c"))
				s.drainer.Filter.IgnoreDaemonSets = true
				for _, name := range []string{"a", "b", "c"} {
					s.claim(name)
				}
				reads := 0
				s.drainer.Client = claimReader{s.drainer.Client, func(context.Context, string) error {
					reads++
					return nil
				}}
				s.attach(tt.attached...)
				for k, name := range tt.attached {
					s.detachAfter(time.Duration(30+k)*time.Second, name)
				}
				if _, err := s.drain(evacuation.Terms{}, nil); err != nil {
					t.Fatal(err)
				}
				if reads != tt.want {
					t.Errorf("%d requests for claims, want %d", reads, tt.want)
				}
			})
		})
	}
}

func TestVolumesWhoseClaimsCannotBeReadAreNotWaitedFor(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, "a", errors.New("RBAC"))
	for name, tt := range map[string]struct {
		answer func(context.Context) error
		terms  time.Duration
		want   time.Duration
		reads  int // at most
	}{
		"there is no permission": {func(context.Context) error { return forbidden }, time.Hour, 20 * time.Second, 1},
		"the API server fails":   {func(context.Context) error { return errors.New("away") }, time.Hour, 20*time.Second + claimsTime, 20},
		"the API server hangs": {func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}, time.Hour, 20*time.Second + claimsTime, 4},
		// The hook is to be completed 5 s before it times out, whatever the API server does with these requests.
		"the deadline is near": {func(context.Context) error { return errors.New("away") }, 25 * time.Second, 25 * time.Second, 20},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("db-0", using("a"))
				s.stops["db-0"] = 20 * time.Second
				s.claim("a")
				reads := 0
				s.drainer.Client = claimReader{s.drainer.Client, func(ctx context.Context, _ string) error {
					reads++
					return tt.answer(ctx)
				}}
				s.attach("pv-a")
				log := s.drainLogged(evacuation.Terms{Deadline: s.begin.Add(tt.terms)})
				if took := time.Since(s.begin).Round(time.Second); took != tt.want {
					t.Errorf("took %s, want %s", took, tt.want)
				}
				said := log.Said("volumes are not waited for whose claims could not be read")
				if inTime := tt.want < tt.terms; len(said) > 1 || inTime != (len(said) == 1) {
					t.Errorf("it says %q", said)
				}
				if reads > tt.reads {
					t.Errorf("%d requests for claims", reads)
				}
			})
		})
	}
}

// Claims are read while pods leave: it costs no volume its wait that the API server fails for a while.
func TestAClaimIsReadAgainUntilThatWorks(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("db-0", using("a"))
		s.stops["db-0"] = 20 * time.Second
		s.claim("a")
		s.drainer.Client = claimReader{s.drainer.Client, func(context.Context, string) error {
			if time.Since(s.begin) < 15*time.Second {
				return apierrors.NewInternalError(errors.New("away"))
			}
			return nil
		}}
		s.attach("pv-a")
		s.detachAfter(time.Minute, "pv-a")
		result, err := s.drain(evacuation.Terms{}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 1}, time.Minute)
	})
}

func TestVolumesThatAreWaitedForAreNamedWithTheirClaims(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("db-0", using("a"))
		s.pod("db-1", using("b"))
		s.claim("a")
		s.claim("b")
		s.attach("pv-a", "pv-b", "pv-nobody's")
		told := s.told()
		asked, answer := make(chan chan<- evacuation.Progress), make(chan evacuation.Progress, 1)
		time.AfterFunc(time.Minute, func() { asked <- answer })
		log := s.drainAsked(evacuation.Terms{Deadline: s.begin.Add(2 * time.Minute)}, asked)
		const both = "pv-a (claim ns/a), pv-b (claim ns/b)"
		want := []string{`volumes=2 which="` + both + `"`, `volumes=2 which="` + both + `" left=1m0s`}
		if diff := cmp.Diff(want, log.Said("waiting for volumes to be detached")); diff != "" {
			t.Errorf("it says (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"15s node volumes volumes are still attached to the node: " + both + " first=true"}, *told); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		wait := (<-answer).Waits
		if len(wait) != 1 || wait[0].Cause != overview.Volume || !strings.Contains(wait[0].Why, both) || wait[0].Name != both ||
			!wait[0].Until.Equal(s.begin.Add(2*time.Minute)) {
			t.Errorf("it waits for %+v", wait)
		}
	})
}
