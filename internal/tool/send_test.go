package tool

import (
	"strings"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

// The queue's policy of the templates denies it to people.
func TestWhoMayNotSendIsToldWhichParameterLetsThem(t *testing.T) {
	account := awssim.New(awssim.Options{})
	defer account.Close()
	if err := account.CreateQueue(awssim.Queue{Name: "nth"}); err != nil {
		t.Fatal(err)
	}
	c, err := parseOptions([]string{"--queue-url=" + account.QueueURL("nth"), "--aws-region=us-east-1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &target{Session: &Session{Options: c, aws: account.Config()}}
	for code, told := range map[string]bool{"AccessDenied": true, "InvalidMessageContents": false} {
		if err := account.SetFault(awssim.Fault{ID: "no", Service: "sqs", Action: "SendMessage", Code: code, Status: 403}); err != nil {
			t.Fatal(err)
		}
		err := s.send(t.Context(), s.notice)
		if err == nil || !strings.Contains(err.Error(), code) || strings.Contains(err.Error(), "SenderArn (sender_arn with Terraform)") != told {
			t.Errorf("%s: %v", code, err)
		}
	}
}
