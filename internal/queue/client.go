package queue

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
)

// checkTimeout bounds a check, including the time that STS takes for the first
// credentials. After more than that, people think that a start-up hangs.
const checkTimeout = 10 * time.Second

// A Client asks SQS about one queue, as long as no [Server] serves it. API and URL are
// required. Its methods may be called concurrently.
type Client struct {
	API     API
	URL     string // of the queue
	Log     logr.Logger
	Metrics Metrics // nil is [Discard]
}

// Check reads the attributes of the queue. It returns an error if SQS gives no answer: there
// is no such queue, the region is wrong, credentials are missing, or SQS cannot be reached. It
// may then be called again. It logs a warning for settings that work, but at a cost.
//
// A role without sqs:GetQueueAttributes gets a warning only, because the queue can be served
// without it. The role that AWS Node Termination Handler documents lacks it.
func (c Client) Check(ctx context.Context) error {
	_, err := c.check(ctx, new(clock))
	return err
}

// check is Check. It returns whether the queue has a redrive policy, too.
func (c Client) check(ctx context.Context, clock *clock) (redrive, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	out, err := c.API.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: aws.String(c.URL),
		// Naming an attribute that a queue of this type does not have is an error.
		AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	})
	if err != nil && !awserr.Denied(err) { // Check may be called again, so no warning yet
		return redriveUnknown, c.explain("GetQueueAttributes", GetQueueAttributes, err)
	}
	if strings.HasSuffix(c.URL, ".fifo") { // every FIFO queue's name does, and no other's
		logging.Warn(c.Log, "the queue is a FIFO queue: it delivers no message of a group while another one is in flight, "+
			"so nodes are drained one after another", "queue", c.URL)
	}
	if err != nil {
		err = c.explain("GetQueueAttributes", GetQueueAttributes, err)
		logging.Warn(c.Log, "the queue's attributes cannot be read: rejected messages are left in the queue, "+
			"and a delivery delay goes unnoticed", "permission", string(GetQueueAttributes), "error", err)
		return redriveUnknown, nil
	}

	clock.compare(c.Log, out.ResultMetadata)
	if delay, err := strconv.Atoi(out.Attributes[string(types.QueueAttributeNameDelaySeconds)]); err == nil && delay > 0 {
		logging.Warn(c.Log, "the queue has a delivery delay, which takes time from the two minutes of a spot warning",
			"queue", c.URL, "delay", (time.Duration(delay) * time.Second).String())
	}
	if out.Attributes[string(types.QueueAttributeNameRedrivePolicy)] == "" {
		return redriveAbsent, nil
	}
	return redrivePresent, nil
}

// CheckPermissions returns an error if the role lacks the permission to delete messages, and logs
// a warning if it lacks the one to extend their visibility. It makes both calls with a receipt that belongs to no
// message: SQS refuses the receipt as invalid, or denies the call. Other failures may pass and
// are ignored.
func (c Client) CheckPermissions(ctx context.Context) error {
	nothing := aws.String("no-receipt")
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	_, err := c.API.ChangeMessageVisibilityBatch(ctx, &sqs.ChangeMessageVisibilityBatchInput{
		QueueUrl: aws.String(c.URL),
		Entries: []types.ChangeMessageVisibilityBatchRequestEntry{
			{Id: aws.String("0"), ReceiptHandle: nothing, VisibilityTimeout: 1},
		},
	})
	if awserr.Denied(err) {
		warnCannotExtend(c.Log, c.explain("ChangeMessageVisibilityBatch", ChangeMessageVisibility, err))
	}
	_, err = c.API.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{
		QueueUrl: aws.String(c.URL),
		Entries:  []types.DeleteMessageBatchRequestEntry{{Id: aws.String("0"), ReceiptHandle: nothing}},
	})
	if awserr.Denied(err) {
		return c.explain("DeleteMessageBatch", DeleteMessage, err)
	}
	return nil
}

// isOldProtocol reports whether a server that takes the place of SQS has refused a request as its older protocol does,
// in XML: the SDK speaks JSON, and reads no word of it.
func isOldProtocol(err error) bool {
	_, unread := errors.AsType[*smithy.DeserializationError](err)
	answer, ok := errors.AsType[*smithyhttp.ResponseError](err)
	return unread && ok && slices.Contains([]int{http.StatusBadRequest, http.StatusNotFound}, answer.HTTPStatusCode())
}

// explain adds to an error which call has failed and, if an operator has to act, a hint what
// to do. It counts a denied call.
func (c Client) explain(call string, action Action, err error) error {
	hint := ""
	switch code := awserr.Code(err); {
	case awserr.NoCredentials(err):
		hint = " (no AWS credentials: check the role, its trust policy and the way to STS)"
	case awserr.Unsupported(err):
		hint = noSuchCall
	case awserr.Denied(err):
		if c.Metrics != nil {
			c.Metrics.Denied(action)
		}
		hint = fmt.Sprintf(" (the role lacks %s on the queue, or the queue's policy denies it)", action)
	case isOldProtocol(err):
		hint = oldProtocol
	default:
		hint = hints[code]
	}
	return fmt.Errorf("sqs %s on %s%s: %w", call, c.URL, hint, err)
}

// clocksDiffer is the least difference between our clock and that of AWS that is logged.
// It is more than a response can be late, see pollGrace, and less than what deadlines
// can bear.
const clocksDiffer = 15 * time.Second

// A clock is that of this node, beside SQS's. It may be used concurrently.
type clock struct {
	mu    sync.Mutex
	wrong bool // at the last look
}

// compare compares our clock with the time in a response of SQS. It logs when our clock has
// become wrong, or right again. The SDK corrects its signatures if our clock is minutes off.
// But deadlines come from the times of events, and are kept by our clock.
func (c *clock) compare(log logr.Logger, answer middleware.Metadata) {
	theirs, told := awsmiddleware.GetServerTime(answer)
	ours, known := awsmiddleware.GetResponseAt(answer)
	if !told || !known {
		return
	}
	ahead := ours.Sub(theirs).Round(time.Second)
	wrong := ahead.Abs() >= clocksDiffer
	c.mu.Lock()
	before := c.wrong
	c.wrong = wrong
	c.mu.Unlock()
	switch {
	case wrong && !before:
		logging.Warn(log, "the clock of this node differs from that of AWS: "+
			"deadlines of notices are kept too early or too late by as much", "ahead", ahead.String())
	case !wrong && before:
		log.Info("the clock of this node agrees with that of AWS again")
	}
}
