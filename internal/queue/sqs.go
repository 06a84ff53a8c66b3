package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
)

const (
	// batchSize is SQS's limit for a receive and for each of its batch calls.
	batchSize = 10
	// callTimeout bounds a batch call with the SDK's own retries. SQS answers in
	// milliseconds.
	callTimeout = 5 * time.Second
	// callsAtOnce bounds the batch calls under way, so that a thousand of them
	// share the connections there are: at 15 ms a call that is still 10,000
	// messages a second.
	callsAtOnce = 16
	// denialPause is how long a denied action is not tried again. Permissions
	// are granted by people.
	denialPause = time.Minute
)

// denial is a missing permission that was met.
type denial struct {
	err   error // nil: none
	until time.Time
}

// deleteMessages returns an error, or nil, for each receipt.
func (s *Server) deleteMessages(ctx context.Context, receipts []string) []error {
	in := &sqs.DeleteMessageBatchInput{QueueUrl: aws.String(s.URL)}
	for i, receipt := range receipts {
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{
			Id:            aws.String(strconv.Itoa(i)),
			ReceiptHandle: aws.String(receipt),
		})
	}
	errs := make([]error, len(receipts))
	err := s.limited(ctx, func(ctx context.Context) error {
		out, err := s.Client.DeleteMessageBatch(ctx, in)
		if err == nil {
			fill(errs, out.Failed)
		}
		return err
	})
	if err != nil {
		all(errs, s.explain("DeleteMessageBatch", DeleteMessage, err))
	}
	return errs
}

// changeVisibility hides each message for so long from now on, and returns an
// error, or nil, for each. Without the permission it says so once, and then
// fails without a call, but for one in a while.
func (s *Server) changeVisibility(ctx context.Context, receipts []string, visibility []time.Duration) []error {
	errs := make([]error, len(receipts))
	s.mu.Lock()
	known := s.denial
	s.mu.Unlock()
	if known.err != nil && time.Now().Before(known.until) {
		all(errs, known.err)
		return errs
	}

	in := &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: aws.String(s.URL)}
	for i, receipt := range receipts {
		in.Entries = append(in.Entries, types.ChangeMessageVisibilityBatchRequestEntry{
			Id:                aws.String(strconv.Itoa(i)),
			ReceiptHandle:     aws.String(receipt),
			VisibilityTimeout: seconds(visibility[i]),
		})
	}
	err := s.limited(ctx, func(ctx context.Context) error {
		out, err := s.Client.ChangeMessageVisibilityBatch(ctx, in)
		if err == nil {
			fill(errs, out.Failed)
		}
		return err
	})
	if err != nil {
		err = s.explain("ChangeMessageVisibilityBatch", ChangeMessageVisibility, err)
		all(errs, err)
	}
	if err == nil || denied(err) {
		s.noteDenial(err)
	}
	return errs
}

// noteDenial remembers that changing visibility is denied, or with a nil error
// that it is not, and logs when that changes.
func (s *Server) noteDenial(err error) {
	s.mu.Lock()
	before := s.denial.err
	s.denial = denial{err: err, until: time.Now().Add(denialPause)}
	s.mu.Unlock()
	switch {
	case err != nil && before == nil:
		s.Log.Info("messages cannot be held: they come back while they are worked on, and that counts against maxReceiveCount",
			"missing", string(ChangeMessageVisibility), "why", err.Error())
	case err == nil && before != nil:
		s.Log.Info("messages can be held again", "allowed", string(ChangeMessageVisibility))
	}
}

// limited makes a call when fewer than callsAtOnce are under way, with a
// deadline.
func (s *Server) limited(ctx context.Context, call func(context.Context) error) error {
	select {
	case s.calls <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.calls }()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return call(ctx)
}

// entryError is an entry of a batch that failed while others may not have.
type entryError struct{ *smithy.GenericAPIError }

// fill puts the failed entries of a batch in their places.
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
		errs[i] = entryError{&smithy.GenericAPIError{Code: aws.ToString(f.Code), Message: aws.ToString(f.Message), Fault: fault}}
	}
}

func all(errs []error, err error) {
	for i := range errs {
		errs[i] = err
	}
}

// gone reports whether an entry failed for good: there is nothing any more, or
// not yet again, that its receipt stands for. SQS has several codes for it
// (MessageNotInflight, ReceiptHandleIsInvalid, and InvalidParameterValue for a
// message that expired or was held for twelve hours), all of them the sender's
// fault; so is throttling, which passes.
func gone(err error) bool {
	entry, ok := errors.AsType[entryError](err)
	return ok && entry.Fault == smithy.FaultClient && !denied(err) && !strings.Contains(entry.Code, "Throttl")
}

// denied reports whether the role lacks the permission for a call. A role that
// STS does not give is AccessDenied too, and no reason to go on.
func denied(err error) bool {
	switch code(err) {
	case "AccessDenied", "AccessDeniedException":
		return !withoutCredentials(err)
	}
	return false
}

// withoutCredentials reports whether a call was not made because the SDK got no
// credentials for it. It has no type for that: STS may have refused, or not have
// answered, or there is nobody to ask.
func withoutCredentials(err error) bool {
	return err != nil && strings.Contains(err.Error(), "get identity: ")
}

// code is the error code that AWS gave, or empty.
func code(err error) string {
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		return e.ErrorCode()
	}
	return ""
}

// explain says what we called, and for the errors that an operator has to mend
// what to mend. It counts a denied call.
func (s *Server) explain(call string, action Action, err error) error {
	hint := ""
	switch code := code(err); {
	case withoutCredentials(err):
		hint = " (no AWS credentials: check the role, its trust policy and the way to STS)"
	case denied(err):
		s.metrics().Denied(action)
		hint = fmt.Sprintf(" (the role lacks %s on the queue, or the queue's policy denies it)", action)
	default:
		hint = hints[code]
	}
	return fmt.Errorf("sqs %s on %s%s: %w", call, s.URL, hint, err)
}

// hints say what an operator can do about an error, by its code.
var hints = map[string]string{
	"KmsAccessDenied":                         " (the role lacks kms:Decrypt on the queue's key)",
	"KMS.AccessDeniedException":               " (the role lacks kms:Decrypt on the queue's key)",
	"QueueDoesNotExist":                       noQueue,
	"AWS.SimpleQueueService.NonExistentQueue": noQueue,
	"InvalidSignatureException":               wrongSignature,
	"SignatureDoesNotMatch":                   wrongSignature,
	"InvalidAddress":                          " (not an address of this endpoint: check queue-url, aws-region and aws-endpoint)",
}

const (
	noQueue        = " (no such queue in the region and account that were asked: check queue-url and aws-region)"
	wrongSignature = " (signed for another region than the queue's, or with a wrong secret key: check aws-region and queue-url)"
)
