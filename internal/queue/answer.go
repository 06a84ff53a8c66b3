package queue

import (
	"context"
	"io"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

const (
	// largeAnswer is how many bytes each receive may read at the same time as others. Ten
	// notices have some 20 KB. SQS allows bodies of 1 MiB, and the SDK has a response in
	// memory three times while it decodes it.
	largeAnswer = 512 << 10

	// maxBodies bounds the bytes of bodies that handlers still use; see
	// [Message.Release]. The largest possible response has bodies of 10 MiB.
	maxBodies = 16 << 20
)

// An answer is the response of SQS to one receive. Its size is not known beforehand, so it
// is limited while it is read: beyond largeAnswer, reading goes on when no other large
// answer is in memory. The rest waits in the network until then.
type answer struct {
	large chan struct{} // a semaphore for the one answer that may be large
	taken bool          // this answer has it
}

// bound is an option of a receive that makes it read its response that way. It is one try: the receiver has a pause
// between two of its own, and the time of a long poll is for one.
func (a *answer) bound(o *sqs.Options) {
	o.RetryMaxAttempts = 1
	o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
		read := func(
			ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler,
		) (middleware.DeserializeOutput, middleware.Metadata, error) {
			out, metadata, err := next.HandleDeserialize(ctx, in)
			if response, ok := out.RawResponse.(*smithyhttp.Response); ok && response.Body != nil {
				response.Body = &answerBody{ReadCloser: response.Body, beyond: func() error { return a.acquire(ctx) }}
			}
			return out, metadata, err
		}
		return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("BoundAnswer", read), middleware.After)
	})
}

// acquire waits until a may be large.
func (a *answer) acquire(ctx context.Context) error {
	if a.taken {
		return nil
	}
	select {
	case a.large <- struct{}{}:
		a.taken = true
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// release lets the next large answer be read. Of this one only the messages are still in
// memory, and those are counted.
func (a *answer) release() {
	if a.taken {
		<-a.large
	}
}

// answerBody is the body of a response. It calls beyond before each read beyond
// largeAnswer.
type answerBody struct {
	io.ReadCloser
	beyond func() error
	read   int
}

// Read implements [io.Reader].
func (b *answerBody) Read(p []byte) (int, error) {
	if b.read >= largeAnswer {
		if err := b.beyond(); err != nil {
			return 0, err
		}
	}
	n, err := b.ReadCloser.Read(p)
	b.read += n
	return n, err
}
