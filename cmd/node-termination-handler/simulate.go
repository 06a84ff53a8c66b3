package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/notice/sample"
	"github.com/node-termination-handler/node-termination-handler/internal/simulate"
	"github.com/node-termination-handler/node-termination-handler/internal/timeline"
)

// The ways of a simulated notice.
const (
	viaQueue = "queue"
	viaBus   = "eventbridge"
)

// simulation is what the flags of simulate say.
type simulation struct {
	kind sample.Kind
	node string
	via  string
	yes  bool
}

func (p *program) simulateCommand() *cobra.Command {
	var s simulation
	cmd := &cobra.Command{
		Use:   "simulate " + kindWords() + " --node NAME",
		Short: "Send a notice for a node, and follow its drain.",
		Long: `Sends a notice such as AWS sends for the node's instance, and follows what the handler that reads the
queue makes of it, to the end. THIS DRAINS THE NODE: it says what will happen, and asks before. The
instance is not touched; a lifecycle action is made up, so that completing it does nothing. With
--dry-run it prints the notice and sends nothing. The node stays cordoned.

Exit status: 0 the node was drained in time; 1 it was not, or nothing was sent.`,
	}
	flags := cmd.Flags()
	node := nodeFlag(cmd)
	flags.StringVar(&s.via, "via", viaQueue, "How to send it: queue, straight to the queue; eventbridge, through the default bus with the source "+
		notice.SimulatedSource+", which a rule of the queue has to let through.")
	flags.BoolVar(&s.yes, "yes", false, "Do not ask.")
	check := func(args []string) (wrong mistakes) {
		s.kind, wrong = parseKind(args)
		s.node = *node
		wrong = append(wrong, missingNode(s.node)...)
		if s.via != viaQueue && s.via != viaBus {
			wrong = append(wrong, mistake{"via", "takes queue or eventbridge"})
		}
		return wrong
	}
	p.withOptionsAnd(cmd, &config{}, check, func(ctx context.Context, c *config) error {
		return s.run(ctx, c, cmd.InOrStdin(), cmd.OutOrStdout())
	})
	return cmd
}

func (sim simulation) run(ctx context.Context, c *config, in io.Reader, out io.Writer) error {
	s, err := setScene(ctx, c, sim.kind, sim.node)
	if err != nil {
		return err
	}
	if err := s.lookUp(ctx); err != nil {
		return err
	}
	if sim.via == viaBus {
		s.notice.Source = notice.SimulatedSource
		if err := s.letThrough(ctx); err != nil {
			return err
		}
	}
	if c.dryRun {
		_, err := io.WriteString(out, s.at(time.Now()).Body())
		return err
	}
	if err := s.unmanaged(); err != nil {
		return err
	}
	if !sim.yes {
		_, answer, err := s.rehearse(ctx, time.Now())
		if err != nil {
			return err
		}
		question := fmt.Sprintf("this will drain %s: %s; go on?", sim.node, answer.Brief())
		if c.cordonOnly {
			question = fmt.Sprintf("this will cordon %s; go on?", sim.node)
		}
		if err := confirm(in, out, question); err != nil {
			return err
		}
	}
	return s.sendAndFollow(ctx, sim.via, out)
}

// letThrough checks that a rule lets the simulated notice through to the queue.
func (s *scene) letThrough(ctx context.Context) error {
	rules, err := s.gatherer.RulesTaking(ctx, s.at(time.Now()).Body())
	switch {
	case doctor.IsDenied(err):
		return nil // the end of the story tells
	case err != nil:
		return fmt.Errorf("look at the rules: %w", err)
	case len(rules) == 0:
		return fmt.Errorf("no rule with the queue as its target takes the source %s: add it to the pattern, or send without --via eventbridge", notice.SimulatedSource)
	}
	return nil
}

var errNotConfirmed = errors.New("nothing was sent: answer y, or give --yes")

func confirm(in io.Reader, out io.Writer, question string) error {
	if _, err := fmt.Fprintf(out, "%s [y/N] ", question); err != nil {
		return err
	}
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		return errNotConfirmed
	}
	return nil
}

// sendAndFollow sends the notice and prints its story to the end.
func (s *scene) sendAndFollow(ctx context.Context, via string, out io.Writer) error {
	// The times of events are whole seconds: one that is sent between two of them
	// has lost a part of its time already.
	sent := time.Now().Truncate(time.Second).Add(time.Second)
	outcome, planned, err := s.rehearse(ctx, sent)
	if err != nil {
		return err
	}
	told := timeline.Notice{
		Name: string(s.notice.Kind), Instance: s.notice.Instance, Node: s.node.Name, Sent: sent, Deadline: outcome.Terms.Deadline,
	}
	var leaving []*corev1.Pod
	var namespaces []string
	for _, f := range planned.Fates {
		if f.Stays || f.Self || s.cordonOnly {
			continue
		}
		leaving = append(leaving, f.Pod)
		told.Pods = append(told.Pods, simulate.PodName(f.Pod))
		if !slices.Contains(namespaces, f.Pod.Namespace) {
			namespaces = append(namespaces, f.Pod.Namespace)
		}
	}
	var event atomic.Pointer[string] // the bus gives it another
	event.Store(&s.notice.ID)
	controllers := simulate.Controllers(leaving)
	watches, err := commandClients(s.config, 0)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	events := make(chan timeline.Event)
	watching, err := simulate.Watch{
		Client: watches.core, Namespaces: namespaces,
		Event: func() string { return aws.ToString(event.Load()) },
		Replaces: func(pod *corev1.Pod) bool {
			owner := metav1.GetControllerOf(pod)
			return owner != nil && controllers[owner.UID]
		},
	}.Run(ctx, events)
	if err != nil {
		stop()
		return err
	}
	defer func() { stop(); watching.Wait() }()
	if err := sleep(ctx, time.Until(sent)); err != nil {
		return err
	}
	id, err := s.send(ctx, via, s.at(sent))
	if err != nil {
		return err
	}
	event.Store(&id)
	printer := timeline.Printer{Out: out, Colour: timeline.ColourWanted(isTerminal(out), os.Getenv)}
	printer.Heading(fmt.Sprintf("%s %s: %s", s.notice.Kind, id, until(outcome.Terms.Deadline, sent)))
	const taken, late = time.Minute, 15 * time.Second
	end := outcome.Terms.Deadline.Add(late)
	if outcome.Terms.Deadline.IsZero() {
		end = sent.Add(s.nodeGracePeriod + late)
	}
	if err := (simulate.Story{Notice: told, Out: printer, Taken: taken, End: end}).Follow(ctx, events); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s is still cordoned: kubectl uncordon %[1]s\n", s.node.Name)
	return err
}

// until says when a node has to be empty.
func until(deadline, now time.Time) string {
	if deadline.IsZero() {
		return "nothing is forced"
	}
	return fmt.Sprintf("the node has to be empty in %.0f s", deadline.Sub(now).Seconds())
}

// send returns the id of the event.
func (s *scene) send(ctx context.Context, via string, n sample.Notice) (string, error) {
	const patience = 20 * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %s", patience))
	defer cancel()
	if via == viaBus {
		return putOnBus(ctx, eventbridge.NewFromConfig(s.aws).PutEvents, n.Body())
	}
	in := &sqs.SendMessageInput{QueueUrl: aws.String(s.queue.text), MessageBody: aws.String(n.Body())}
	if strings.HasSuffix(s.queue.name, ".fifo") {
		in.MessageGroupId, in.MessageDeduplicationId = aws.String(n.Instance), aws.String(n.ID)
	}
	if _, err := sqsClient(s.aws, s.config).SendMessage(ctx, in); err != nil {
		return "", fmt.Errorf("send the notice to %s: %w", s.queue.text, err)
	}
	return n.ID, nil
}

// putOnBus puts an event with a body as a queue would get it on the default bus.
func putOnBus(ctx context.Context, put func(context.Context, *eventbridge.PutEventsInput, ...func(*eventbridge.Options)) (*eventbridge.PutEventsOutput, error), body string) (string, error) {
	var event struct {
		Source     string
		DetailType string `json:"detail-type"`
		Detail     json.RawMessage
		Resources  []string
		Time       time.Time
	}
	if err := json.Unmarshal([]byte(body), &event); err != nil {
		return "", fmt.Errorf("write the event: %w", err)
	}
	out, err := put(ctx, &eventbridge.PutEventsInput{Entries: []types.PutEventsRequestEntry{{
		Source: &event.Source, DetailType: &event.DetailType, Detail: aws.String(string(event.Detail)), Resources: event.Resources, Time: &event.Time,
	}}})
	if err != nil {
		return "", fmt.Errorf("put the notice on the bus: %w", err)
	}
	if e := out.Entries[0]; e.ErrorCode != nil {
		return "", fmt.Errorf("put the notice on the bus: %s: %s", *e.ErrorCode, aws.ToString(e.ErrorMessage))
	}
	return aws.ToString(out.Entries[0].EventId), nil
}

// isTerminal takes other character devices for terminals too: what they do not
// show, colours cannot spoil.
func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
