package queue

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
)

const (
	// batchSize is the limit of SQS for the messages of a receive and of a batch call.
	batchSize = 10
	// callTimeout bounds a batch call, including the SDK's own retries. SQS answers in
	// milliseconds.
	callTimeout = 5 * time.Second
	// callsAtOnce bounds the batch calls in flight, so that a thousand of them share a
	// few connections. At 15 ms a call that is still 10,000 messages a second.
	callsAtOnce = 16
	// denialPause is how long a denied action is not tried again. People grant
	// permissions, which takes them minutes.
	denialPause = time.Minute
)

// calls are the batch calls of a server. It may be used concurrently.
type calls struct {
	client Client
	slots  chan struct{} // a semaphore for those that run at once

	mu     sync.Mutex
	denied error     // what SQS has said of a permission that is missing; nil: none is
	again  time.Time // when it is asked again
}

// deleteMessages returns an error, or nil, for each receipt.
func (c *calls) deleteMessages(ctx context.Context, receipts []string) []error {
	in := &sqs.DeleteMessageBatchInput{QueueUrl: aws.String(c.client.URL)}
	for i, receipt := range receipts {
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{
			Id:            aws.String(strconv.Itoa(i)),
			ReceiptHandle: aws.String(receipt),
		})
	}
	errs := make([]error, len(receipts))
	err := c.limited(ctx, func(ctx context.Context) error {
		out, err := c.client.API.DeleteMessageBatch(ctx, in)
		if err == nil {
			fill(errs, out.Failed)
		}
		return err
	})
	if err != nil {
		err = c.client.explain("DeleteMessageBatch", DeleteMessage, err)
		return slices.Repeat([]error{err}, len(receipts))
	}
	return errs
}

// changeVisibility hides each message for the given time from now on, and returns an
// error, or nil, for each. Without the permission it logs that once, and then fails
// without a call, except for one try a minute.
func (c *calls) changeVisibility(ctx context.Context, receipts []string, visibility []time.Duration) []error {
	c.mu.Lock()
	denied, again := c.denied, c.again
	c.mu.Unlock()
	if denied != nil && time.Now().Before(again) {
		return slices.Repeat([]error{denied}, len(receipts))
	}

	in := &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: aws.String(c.client.URL)}
	for i, receipt := range receipts {
		in.Entries = append(in.Entries, types.ChangeMessageVisibilityBatchRequestEntry{
			Id:                aws.String(strconv.Itoa(i)),
			ReceiptHandle:     aws.String(receipt),
			VisibilityTimeout: seconds(visibility[i]),
		})
	}
	errs := make([]error, len(receipts))
	err := c.limited(ctx, func(ctx context.Context) error {
		out, err := c.client.API.ChangeMessageVisibilityBatch(ctx, in)
		if err == nil {
			fill(errs, out.Failed)
		}
		return err
	})
	if err != nil {
		err = c.client.explain("ChangeMessageVisibilityBatch", ChangeMessageVisibility, err)
		errs = slices.Repeat([]error{err}, len(receipts))
	}
	if err == nil || awserr.Denied(err) {
		c.noteDenial(err)
	}
	return errs
}

// noteDenial remembers whether changing visibility is denied (err) or allowed (nil), and
// logs when that changes.
func (c *calls) noteDenial(err error) {
	c.mu.Lock()
	before := c.denied
	c.denied, c.again = err, time.Now().Add(denialPause)
	c.mu.Unlock()
	switch {
	case err != nil && before == nil:
		warnCannotExtend(c.client.Log, err)
	case err == nil && before != nil:
		c.client.Log.Info("the visibility of messages can be extended again", "permission", string(ChangeMessageVisibility))
	}
}

func warnCannotExtend(log logr.Logger, denial error) {
	logging.Warn(log, "the visibility of messages cannot be extended: they come back while they are handled, "+
		"and that counts against maxReceiveCount", "permission", string(ChangeMessageVisibility), "error", denial)
}

// limited makes a call, with a deadline, when fewer than callsAtOnce are in flight.
func (c *calls) limited(ctx context.Context, call func(context.Context) error) error {
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-c.slots }()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return call(ctx)
}

// entryError is the failure of one entry of a batch; others may have succeeded.
type entryError struct{ *smithy.GenericAPIError }

// fill puts the failed entries of a batch into their places in errs.
func fill(errs []error, failed []types.BatchResultErrorEntry) {
	for _, f := range failed {
		i, err := strconv.Atoi(aws.ToString(f.Id))
		if err != nil || i < 0 || i >= len(errs) {
			continue
		}
		fault := smithy.FaultServer
		if f.SenderFault {
			fault = smithy.FaultClient
		}
		errs[i] = entryError{&smithy.GenericAPIError{
			Code: aws.ToString(f.Code), Message: aws.ToString(f.Message), Fault: fault,
		}}
	}
}

// isGone reports whether an entry failed for good, because its receipt belongs to no
// message in flight. SQS has several codes for that: MessageNotInflight,
// ReceiptHandleIsInvalid, and InvalidParameterValue for a message that expired or was
// in flight for twelve hours. All of them are the sender's fault. So is throttling, but
// that passes.
func isGone(err error) bool {
	entry, ok := errors.AsType[entryError](err)
	return ok && entry.Fault == smithy.FaultClient && !awserr.Denied(err) && !strings.Contains(entry.Code, "Throttl")
}

// hints say what an operator can do about an error, by its code.
var hints = map[string]string{
	"KmsAccessDenied":                         " (the role lacks kms:Decrypt on the queue's key)",
	"KMS.AccessDeniedException":               " (the role lacks kms:Decrypt on the queue's key)",
	"QueueDoesNotExist":                       noQueue,
	"AWS.SimpleQueueService.NonExistentQueue": noQueue,
	"InvalidSignatureException":               wrongSignature,
	"SignatureDoesNotMatch":                   wrongSignature,
	"InvalidAddress":                          wrongEndpoint,
}

const (
	noQueue        = " (no such queue in the region and account that were asked: check queue-url and aws-region)"
	wrongSignature = " (signed for another region than the queue's, or with a wrong key: check aws-region and queue-url)"
	wrongEndpoint  = " (not an address of this endpoint: check queue-url, aws-region and aws-endpoint)"
	noSuchCall     = " (the server does not have this call)"
	oldProtocol    = " (the server does not speak the JSON protocol of SQS: update it, or check aws-endpoint)"
)
