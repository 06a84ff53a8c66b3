package tool

import (
	"bufio"
	"errors"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/app"
	"github.com/node-termination-handler/node-termination-handler/internal/notice/sample"
)

func TestANoticeThatNobodyHasTakenIsTakenBackIfThatIsWanted(t *testing.T) {
	const mine, other = `{"id": "mine"}`, `{"id": "other", "detail": {"of": "mine too"}}`
	for name, tt := range map[string]struct {
		yes    bool
		typed  string
		denied string // an action of SQS
		taken  bool   // by a reader that does not act on it
		want   string // a part of the error
		left   []string
	}{
		"asked, yes":                {typed: "y\n", want: "it was removed from the queue, so nothing will happen", left: []string{other}},
		"asked, no":                 {typed: "\n", want: "a handler may still act on it", left: []string{other, mine}},
		"not to be asked":           {yes: true, want: "it was removed", left: []string{other}},
		"without the right to read": {yes: true, denied: "ReceiveMessage", want: "because it cannot be removed (sqs:ReceiveMessage: ", left: []string{other, mine}},
		"without that to delete":    {yes: true, denied: "DeleteMessage", want: "because it cannot be removed (sqs:DeleteMessage: ", left: []string{other, mine}},
		"a reader has it":           {yes: true, taken: true, want: "or another reader has it", left: []string{other, mine}},
	} {
		t.Run(name, func(t *testing.T) {
			account := awssim.New(awssim.Options{})
			defer account.Close()
			if err := account.CreateQueue(awssim.Queue{Name: "nth", Attributes: map[string]string{"VisibilityTimeout": "600"}}); err != nil {
				t.Fatal(err)
			}
			for _, body := range []string{other, mine} {
				if _, err := account.SendMessage("nth", body); err != nil {
					t.Fatal(err)
				}
			}
			c, err := parseOptions([]string{"--queue-url=" + account.QueueURL("nth"), "--aws-region=us-east-1"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			s := &target{Session: &Session{Options: c, aws: account.Config()}, notice: sample.Notice{ID: "mine"}}
			if tt.taken {
				reader := app.SQSClient(s.aws, c)
				for inFlight := 0; inFlight < 2; {
					out, err := reader.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &c.Queue.Text})
					if err != nil {
						t.Fatal(err)
					}
					inFlight += len(out.Messages)
				}
			}
			if tt.denied != "" {
				if err := account.SetFault(awssim.Fault{ID: "deny", Service: "sqs", Action: tt.denied, Code: "AccessDenied", Status: 403}); err != nil {
					t.Fatal(err)
				}
			}
			var out strings.Builder
			err = s.takeBack(t.Context(), Simulation{Yes: tt.yes}, Terminal{bufio.NewReader(strings.NewReader(tt.typed)), &out, &out}, errNotTaken)
			if !errors.Is(err, errNotTaken) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			if asked := strings.Contains(out.String(), "remove it from the queue? [y/N]"); asked == tt.yes {
				t.Errorf("it asked: %t", asked)
			}
			var left []string
			for _, m := range account.Messages("nth") {
				left = append(left, m.Body)
				if m.Body == other && m.InFlight && !tt.taken {
					t.Error("the other message was not given back")
				}
			}
			if diff := cmp.Diff(tt.left, left); diff != "" {
				t.Errorf("in the queue (-want +got):\n%s", diff)
			}
		})
	}
}
