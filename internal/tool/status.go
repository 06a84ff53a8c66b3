package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/lease"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/page"
	"github.com/node-termination-handler/node-termination-handler/internal/redact"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// Overview returns what is in progress: two requests where the leader answers within 3 s. Otherwise it is what
// the nodes carry, and Missing says why. The error says that the API server does not tell even that.
func (v *Viewer) Overview(ctx context.Context) (*overview.Overview, error) {
	l, err := v.leader(ctx)
	if err == nil {
		o := &overview.Overview{}
		if err = v.ask(ctx, l, overview.StatusPath, o); err == nil {
			return o, nil
		}
	}
	missing, ok := errors.AsType[unreachable](err)
	if !ok {
		return nil, err
	}
	o, err := v.carried(ctx, time.Now())
	if err != nil {
		return nil, fmt.Errorf("%w; the leader was not asked either: %w", err, missing)
	}
	if missing.pods != "" {
		missing = v.withPods(ctx, missing)
	}
	o.Missing, o.Leaderless, o.Paused = missing.why, missing.leaderless, missing.paused
	if l != nil && !l.expired {
		o.Leader, o.DryRun = l.pod, l.Labels[lease.DryRunLabel] == "true"
		o.Transitions = int(ptr.Deref(l.Spec.LeaseTransitions, 0))
		o.LeadsSince = ptr.Deref(l.Spec.AcquireTime, metav1.MicroTime{}).UTC()
	}
	return o, nil
}

// Page writes what is in progress, and what has happened within a day, as a page of HTML that needs no server.
func (v *Viewer) Page(ctx context.Context, out io.Writer, version string) (Health, error) {
	const day = 24 * time.Hour
	o, err := v.Overview(ctx)
	if err != nil {
		return Uncertain, err
	}
	r, err := v.Report(ctx, "", time.Now().Add(-day))
	if err != nil {
		return Uncertain, err
	}
	h := overview.History{At: r.At, Since: r.KnownSince, Episodes: r.Episodes}
	if r.Missing != "" && o.Source == overview.Leader {
		o.Unseen = append(o.Unseen, "drains that have ended, but for what nodes carry: "+r.Missing)
	}
	return healthOf(o), page.Render(out, *o, h, page.Options{Version: version})
}

// getDirectly gets a URL of a pod, without a proxy.
func getDirectly(ctx context.Context, url string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil, redact.Status(response.StatusCode)
	}
	return response.Body, nil
}

// A Status is how what is in progress is shown.
type Status struct {
	Format string // text, wide or json
	Watch  bool   // show it again and again
	// Terminal: the output is a terminal: what was shown before is overwritten.
	Terminal bool
	Colour   bool
}

// The formats.
const (
	FormatText = "text"
	FormatWide = "wide"
	FormatJSON = "json"
)

// A Health is what a script wants to know of a status.
type Health int

// The healths, the worst last.
const (
	Healthy   Health = iota // nothing is in progress, or nothing is stuck
	Uncertain               // the leader was not asked, has just begun, or does not see all
	Stuck                   // somebody should look at a node
	Deaf                    // no notice is acted on
)

// watchPause is the time between two overviews of a watch.
const watchPause = 2 * time.Second

// Run shows what is in progress until ctx ends, or once, and returns how that is. In a watch only the first
// overview has to succeed.
func (s Status) Run(ctx context.Context, v *Viewer, out io.Writer) (Health, error) {
	o, failed := v.Overview(ctx)
	if failed != nil {
		return Uncertain, failed
	}
	for {
		text, err := s.text(o, failed, out)
		if err != nil {
			return Uncertain, err
		}
		if _, err := io.WriteString(out, s.framed(text)); err != nil {
			return Uncertain, err
		}
		if !s.Watch {
			return healthOf(o), nil
		}
		if retry.Sleep(ctx, watchPause) != nil {
			return Healthy, nil
		}
		if o, failed = v.Overview(ctx); ctx.Err() != nil {
			return Healthy, nil
		}
	}
}

func healthOf(o *overview.Overview) Health {
	switch {
	case o.Deaf() != "":
		return Deaf
	case o.Stuck() > 0, o.LeftPods():
		return Stuck
	case o.Source != overview.Leader, o.Resuming, len(o.Unseen) > 0:
		return Uncertain
	}
	return Healthy
}

// framed is a text as it is written.
func (s Status) framed(text string) string {
	const home, eraseLine, eraseBelow = "\x1b[H", "\x1b[K\n", "\x1b[J"
	switch {
	case !s.Watch || s.Format == FormatJSON:
		return text
	case !s.Terminal:
		return text + "\n"
	}
	return home + strings.ReplaceAll(text, "\n", eraseLine) + eraseBelow
}

// text is the overview in the format, or the error of a watch, as it fits on the screen of out.
func (s Status) text(o *overview.Overview, err error, out io.Writer) (string, error) {
	if o != nil {
		o.Notices = o.Deaf()
	}
	switch {
	case err != nil && s.Format == FormatJSON:
		text, err := json.Marshal(map[string]string{"error": err.Error()})
		return string(text) + "\n", err
	case err != nil:
		return "No answer:   " + overview.CleanText(err.Error()) + "\n", nil
	case s.Format == FormatJSON && s.Watch:
		text, err := json.Marshal(o)
		return string(text) + "\n", err
	case s.Format == FormatJSON:
		text, err := json.MarshalIndent(o, "", "  ")
		return string(text) + "\n", err
	}
	style := overview.Style{Wide: s.Format == FormatWide, Colour: s.Colour}
	if s.Watch && s.Terminal {
		style.Columns, style.Lines = screenOf(out)
	}
	return o.Table(style), nil
}

// carried returns what the nodes carry: the drains in progress as far as one sees them without the leader.
func (v *Viewer) carried(ctx context.Context, now time.Time) (*overview.Overview, error) {
	list, err := v.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: cluster.StateLabel})
	if err != nil {
		return nil, fmt.Errorf("list the nodes with %s: %w", cluster.StateLabel, err)
	}
	o := &overview.Overview{At: now, Source: overview.Nodes, Nodes: []overview.Node{}}
	held := 0
	for k := range list.Items {
		node := carriedBy(&list.Items[k], now)
		if node == nil {
			if c, still := stillCordoned(&list.Items[k], now); still {
				o.Cordoned = append(o.Cordoned, c)
			}
			continue
		}
		if node.Stage == overview.HeldBack {
			held++
		}
		o.Nodes = append(o.Nodes, *node)
	}
	if held > 0 {
		o.HeldBack = strconv.Itoa(held)
	}
	slices.SortFunc(o.Nodes, overview.ByDeadline)
	slices.SortFunc(o.Cordoned, overview.WorstFirst)
	return o, nil
}

// stillCordoned is report.CordonedOf for any node.
func stillCordoned(node *corev1.Node, now time.Time) (overview.Cordoned, bool) {
	i, ok, err := cluster.ReadIntent(node)
	if !ok || err != nil || !node.Spec.Unschedulable || !cluster.Ready(node) {
		return overview.Cordoned{}, false
	}
	return report.CordonedOf(cluster.RefOf(node), i, now)
}

// carriedBy returns the drain of a node; nil: none is in progress.
func carriedBy(node *corev1.Node, now time.Time) *overview.Node {
	i, ok, err := cluster.ReadIntent(node)
	switch {
	case err != nil:
		return &overview.Node{
			Name: node.Name, Instance: cluster.InstanceID(node), Kind: node.Labels[cluster.KindLabel], Stage: overview.Draining,
			WaitsFor: []overview.Wait{{Cause: overview.Unreadable, Why: err.Error()}},
		}
	case !ok || i.Finished():
		return nil
	}
	i = i.Current(now)
	n := report.NodeOf(cluster.RefOf(node), i)
	n.WaitsFor = carriedWaits(i, &n, now)
	return &n
}

// carriedWaits are what a node says itself that it waits for.
func carriedWaits(i intent.Intent, n *overview.Node, now time.Time) []overview.Wait {
	switch {
	case n.NotBefore.After(now):
		return []overview.Wait{{Cause: overview.Window, Why: "the drain begins later", Until: n.NotBefore}}
	case i.HeldBack && i.Replacement.Step == intent.Marked && i.ReplacesFirst():
		return []overview.Wait{{
			Cause: overview.Replacement, Why: "group " + i.Replacement.Group + " replaces the instance first",
			Until: i.Replacement.Until,
		}}
	case i.HeldBack:
		return []overview.Wait{{Cause: overview.MaxUnready, Why: "it is held back, and only the leader knows for what"}}
	case i.Delegated() && i.DrainedAt.IsZero():
		return []overview.Wait{{Cause: overview.Karpenter, Why: "Karpenter gets the pods off the node"}}
	}
	return nil
}
