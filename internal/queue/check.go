package queue

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// checkTimeout leaves time to report within the thirty seconds after which an
// operator takes a start for hanging.
const checkTimeout = 20 * time.Second

// redrive is what the server knows of the queue's redrive policy.
type redrive int

const (
	redriveUnknown redrive = iota
	redriveAbsent
	redrivePresent
)

func (r redrive) String() string {
	switch r {
	case redriveUnknown:
		return "unknown"
	case redriveAbsent:
		return "absent"
	case redrivePresent:
		return "present"
	}
	return "unknown"
}

// Check asks SQS about the queue, once before serving, and returns an error for
// what will not heal by itself: the queue is missing, the region is wrong, no
// credentials. It warns of what works but costs, and remembers whether the
// queue has a redrive policy.
//
// A role that lacks sqs:GetQueueAttributes, as the one that AWS Node
// Termination Handler documents does, gets a warning: the queue can be served
// without it.
func (s *Server) Check(ctx context.Context) error {
	if strings.HasSuffix(s.URL, ".fifo") { // every FIFO queue's name does, and no other's
		s.Log.Info("the queue is a FIFO queue: it holds back all messages of a group while one is worked on, so nodes are drained one after another",
			"queue", s.URL)
	}

	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	out, err := s.Client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: aws.String(s.URL),
		// Naming an attribute that a queue of this type does not have is an error.
		AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	})
	if err != nil {
		err = s.explain("GetQueueAttributes", GetQueueAttributes, err)
		if denied(err) {
			s.Log.Info("the queue's attributes cannot be read: rejected messages are left in the queue, and a delivery delay goes unnoticed",
				"missing", string(GetQueueAttributes), "why", err.Error())
			return nil
		}
		return err
	}

	s.compareClocks(out.ResultMetadata)
	if delay, err := strconv.Atoi(out.Attributes[string(types.QueueAttributeNameDelaySeconds)]); err == nil && delay > 0 {
		s.Log.Info("the queue has a delivery delay, which eats of the two minutes of a spot warning",
			"queue", s.URL, "delay", (time.Duration(delay) * time.Second).String())
	}
	found := redriveAbsent
	if out.Attributes[string(types.QueueAttributeNameRedrivePolicy)] != "" {
		found = redrivePresent
	}
	s.mu.Lock()
	s.redrive = found
	s.mu.Unlock()
	return nil
}

// Allowed returns an error if the role may not delete messages, and warns if it
// may not hold them. It asks with a receipt that stands for no message, which SQS
// refuses as invalid where it does not refuse the call. What may heal is no error.
func (s *Server) Allowed(ctx context.Context) error {
	nothing := aws.String("no-receipt")
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	_, err := s.Client.ChangeMessageVisibilityBatch(ctx, &sqs.ChangeMessageVisibilityBatchInput{
		QueueUrl: aws.String(s.URL), Entries: []types.ChangeMessageVisibilityBatchRequestEntry{{Id: aws.String("0"), ReceiptHandle: nothing, VisibilityTimeout: 1}},
	})
	if denied(err) {
		s.noteDenial(s.explain("ChangeMessageVisibilityBatch", ChangeMessageVisibility, err))
	}
	_, err = s.Client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{
		QueueUrl: aws.String(s.URL), Entries: []types.DeleteMessageBatchRequestEntry{{Id: aws.String("0"), ReceiptHandle: nothing}},
	})
	if denied(err) {
		return s.explain("DeleteMessageBatch", DeleteMessage, err)
	}
	return nil
}
