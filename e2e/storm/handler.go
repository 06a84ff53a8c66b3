package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/release"
)

// handler is the built binary under measurement.
type handler struct {
	*storm
	cmd     *exec.Cmd
	log     release.Log
	probes  int
	metrics int

	started       time.Time
	ended         time.Time
	firstReceive  time.Duration // from the start of the process
	idleAnonymous int64
	idleMemory    int64 // bytes resident at rest, as peakMemory
	peakMemory    int64
	cpu           time.Duration // used in the storm
	cpuToEmpty    time.Duration // of it until the last node was empty
	goroutines    [2]int        // before, after
	series        [2]int        // of metrics, before, after
	// calls to AWS, until the handler leads, until the notices are sent, until all is done
	leading, before, after map[awssim.CallKey]int
	sent                   map[string]string // message of ours -> node
	foreignSent            int
}

func (h *handler) kill() {
	if h.cmd != nil && h.cmd.Process != nil && h.ended.IsZero() {
		_ = h.cmd.Process.Kill() // it may have ended
		_ = h.cmd.Wait()
		h.ended = time.Now()
	}
}

// interrupt starts the handler, lets it rest, sends all notices and waits until the
// nodes are empty and the messages deleted.
func (h *handler) interrupt(ctx context.Context, nodes []node, r *record) error {
	if err := h.start(ctx); err != nil {
		return err
	}
	h.leading = h.aws.Counts()
	if err := rest(ctx, h.keep); err != nil {
		return err
	}
	h.idleMemory, h.idleAnonymous = h.memory("VmRSS"), h.memory("RssAnon")
	h.goroutines[0], h.series[0] = h.count()
	h.before = h.aws.Counts()
	used := h.cpuTime()
	bodies := make([]string, len(nodes))
	now := time.Now().UTC().Format(time.RFC3339)
	for k, n := range nodes {
		bodies[k] = h.body(h.kind, n.instance, now)
	}
	h.sent = map[string]string{}
	for _, n := range h.named("busy", h.busy) {
		if _, err := h.aws.SendMessage(queueName, h.body(h.busyKind, n.instance, now)); err != nil {
			return err
		}
	}
	if h.busy > 0 {
		if err := rest(ctx, h.busyLead); err != nil {
			return err
		}
	}
	r.begin()
	every := 0
	if h.foreign > 0 {
		every = max(1, h.foreign/len(nodes))
	}
	for k, n := range nodes {
		id, err := h.aws.SendMessage(queueName, bodies[k])
		if err != nil {
			return err
		}
		h.sent[id] = n.name
		for f := range every {
			message := h.body(h.kind, fmt.Sprintf("i-ffffffff%09x", k*every+f), now)
			if _, err := h.aws.SendMessage(queueName, message); err != nil {
				return err
			}
			h.foreignSent++
		}
	}
	if err := h.awaitEmpty(ctx, r); err != nil {
		return err
	}
	h.cpuToEmpty = h.cpuTime() - used
	if err := h.awaitDeleted(ctx); err != nil {
		return err
	}
	h.cpu = h.cpuTime() - used
	h.after = h.aws.Counts()
	h.peakMemory = h.memory("VmHWM")
	if err := rest(ctx, h.keep); err != nil {
		return err
	}
	h.goroutines[1], h.series[1] = h.count()
	return nil
}

// start starts the handler and waits until it has received once.
func (h *handler) start(ctx context.Context) (err error) {
	if err := h.aws.CreateQueue(awssim.Queue{Name: queueName}); err != nil {
		return err
	}
	if h.latency > 0 {
		if err := h.aws.SetFault(awssim.Fault{ID: "latency", Latency: h.latency}); err != nil {
			return err
		}
	}
	if h.ec2Rate > 0 {
		if err := h.aws.SetFault(awssim.Fault{ID: "rate", Service: "ec2", Rate: h.ec2Rate, Burst: 20}); err != nil {
			return err
		}
	}
	for _, port := range []*int{&h.probes, &h.metrics} {
		if *port, err = freePort(ctx); err != nil {
			return err
		}
	}
	args := h.args
	if !h.tagCheck {
		args = append(args, "--check-tag-before-draining=false")
	}
	h.cmd = release.Replica{
		Program: h.program, Kubeconfig: h.cluster.kubeconfig(), Namespace: release.Name, QueueURL: h.aws.QueueURL(queueName),
		Endpoint: h.endpoint, AccessKeyID: "AKIDSTORM", ProbesPort: h.probes, MetricsPort: h.metrics, Args: args,
	}.Command(context.WithoutCancel(ctx))
	h.cmd.Stdout, h.cmd.Stderr = &h.log, &h.log
	if h.logFile != "" {
		follower, err := os.Create(h.logFile)
		if err != nil {
			return err
		}
		h.log.Follow(follower)
	}
	h.started = time.Now()
	if err := h.cmd.Start(); err != nil {
		return err
	}
	return h.poll(ctx, "the first receive", func() bool {
		// A long poll is recorded when it ends, so the leader's readiness stands for its beginning.
		if !strings.Contains(h.get(h.probes, "/readyz"), "leading") {
			return false
		}
		if h.firstReceive == 0 {
			h.firstReceive = time.Since(h.started)
		}
		return true
	})
}

func (h *handler) poll(ctx context.Context, what string, ok func() bool) error {
	const patience = 2 * time.Minute
	for begin := time.Now(); time.Since(begin) < patience; {
		if ok() {
			return nil
		}
		if err := rest(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("not within %s: %s", patience, what)
}

// awaitDeleted waits until the messages about our nodes are deleted, those of nodes that are not empty too.
func (h *handler) awaitDeleted(ctx context.Context) error {
	return h.poll(ctx, "all messages are deleted", func() bool {
		return len(h.deleted()) == len(h.sent)
	})
}

// deleted are the times when our messages were deleted.
func (h *handler) deleted() map[string]time.Time {
	times := map[string]time.Time{}
	for _, e := range h.aws.Effects() {
		if _, ours := h.sent[e.MessageID]; ours && e.Kind == awssim.MessageDeleted {
			times[e.MessageID] = e.Time
		}
	}
	return times
}

// received is how many messages a second the handler took from the queue, until
// it had seen each once.
func (h *handler) received(start time.Time) float64 {
	seen, last := 0, start
	for _, e := range h.aws.Effects() {
		if e.Kind == awssim.MessageReceived && e.ReceiveCount == 1 && e.Time.After(start) {
			seen, last = seen+1, e.Time
		}
	}
	return float64(seen) / max(last.Sub(start), time.Millisecond).Seconds()
}

// body is a notice.
func (h *handler) body(kind, instance, now string) string {
	detailType, detail := "EC2 Spot Instance Interruption Warning", `,"instance-action":"terminate"`
	switch kind {
	case "rebalance":
		detailType, detail = "EC2 Instance Rebalance Recommendation", ""
	case "state-change":
		detailType, detail = "EC2 Instance State-change Notification", `,"state":"stopping"`
	}
	return fmt.Sprintf(`{"version":"0","id":"storm-%s","detail-type":%q,"source":"aws.ec2",`+
		`"account":"123456789012","time":%q,"region":%q,"resources":[],"detail":{"instance-id":%q%s}}`,
		instance, detailType, now, release.Region, instance, detail)
}

func (h *handler) get(port int, path string) string {
	client := http.Client{Timeout: 10 * time.Second}
	response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path)) //nolint:noctx // bounded by the client
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return ""
	}
	return string(body)
}

// count are the goroutines, and the series of metrics that are not Go's.
func (h *handler) count() (goroutines, series int) {
	for line := range strings.Lines(h.get(h.metrics, "/metrics")) {
		if n, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			_, _ = fmt.Sscan(n, &goroutines)
		}
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "go_") {
			series++
		}
	}
	return goroutines, series
}

// memory is a field of the process's status, in bytes.
func (h *handler) memory(field string) (bytes int64) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			_, _ = fmt.Sscan(rest, &bytes)
		}
	}
	return bytes << 10
}

// cpuTime is what the process has used so far.
func (h *handler) cpuTime() time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	var user, system int64
	if len(fields) > 12 {
		_, _ = fmt.Sscan(fields[11], &user)
		_, _ = fmt.Sscan(fields[12], &system)
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux that Go runs on
	return time.Duration(user+system) * tick
}

func freePort(ctx context.Context) (int, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
