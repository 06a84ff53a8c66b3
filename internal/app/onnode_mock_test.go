package app

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
)

// The mock is https://github.com/aws/amazon-ec2-metadata-mock. It gives a spot action the time of each answer and two minutes, or
// the one that it is told.
func TestASpotActionOfTheMetadataMockIsOneDrain(t *testing.T) {
	const hasPassed = "has passed"
	for _, action := range []string{"terminate", "stop", "hibernate"} {
		for name, at := range map[string]func(begin time.Time) time.Time{
			"moves":        func(time.Time) time.Time { return time.Now().Add(2 * time.Minute) },
			"is fixed":     func(begin time.Time) time.Time { return begin.Add(2 * time.Minute) },
			"is far ahead": func(begin time.Time) time.Time { return begin.Add(time.Hour) },
			hasPassed:      func(begin time.Time) time.Time { return begin.Add(-10 * time.Minute) },
		} {
			t.Run(action+", its time "+name, func(t *testing.T) {
				onMachine(t, func(m *machine) {
					m.start()
					begin := time.Now()
					for range 90 {
						m.metadata.InterruptSpot(action, at(begin))
						m.after(time.Second)
					}
					node, i := m.node()
					pods, err := m.kube.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{})
					want := intent.Drained
					if name == hasPassed && action != "hibernate" { // EC2 gives the time of a hibernation, which begins at once
						want = intent.Missed
					}
					if err != nil || !node.Spec.Unschedulable || i.Outcome != want || len(pods.Items) > 0 {
						t.Errorf("%v: outcome %q, %d pods; the log:\n%s", err, i.Outcome, len(pods.Items), m.log.String())
					}
					if len(i.Entries) != 1 || len(i.Past) != 0 {
						t.Errorf("it is more than one notice: %+v", i)
					}
				})
			})
		}
	}
}

// The mock has no history: what is over is still among what is scheduled. Its change begins when the mock does.
func TestAChangeThatIsOverIsUndoneThoughItIsListedAsScheduled(t *testing.T) {
	for _, state := range []string{"canceled", "completed"} {
		t.Run(state, func(t *testing.T) {
			onMachine(t, func(m *machine) {
				lists := func(state string) {
					m.metadata.SetFault(awssim.MetadataFault{
						Prefix: "/meta-data/events/maintenance/scheduled", Method: http.MethodGet, Status: http.StatusOK,
						Body: fmt.Sprintf(`[{"Code":"system-reboot","Description":"The instance is scheduled for system-reboot",`+
							`"EventId":"instance-event-1234567890abcdef0","NotBefore":%q,"State":%q}]`,
							time.Now().UTC().Format("2 Jan 2006 15:04:05 GMT"), state),
					})
				}
				m.cordon.TaintEffect = corev1.TaintEffectNoSchedule
				m.start()
				lists("active")
				m.after(30 * time.Second)
				m.want("announced", true, intent.Drained, 1)
				lists(state)
				m.after(10 * time.Second)
				m.want("over", false, "", 1)
				if node, _ := m.node(); len(node.Spec.Taints) > 0 {
					t.Errorf("taints are left: %v", node.Spec.Taints)
				}
				m.after(time.Hour)
				m.want("an hour later", false, "", 1)
			})
		})
	}
}
