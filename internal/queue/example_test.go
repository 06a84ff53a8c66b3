package queue_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
)

// drainer drains nodes. What it returns is what becomes of the message.
type drainer struct {
	finish func() // called when a node is drained
}

func (d drainer) Handle(_ context.Context, m queue.Message) error {
	switch {
	case m.Body == "":
		return queue.Reject(errors.New("no notice")) // nobody can ever handle it
	case m.Body != "drain node a":
		return queue.Leave(errors.New("of another cluster")) // others see it again
	case m.ReceiveCount == 1:
		fmt.Println("the API server cannot be reached")
		return errors.New("drain node a: connection refused") // SQS delivers it again
	}
	fmt.Println("node a is drained")
	d.finish()
	return nil // the server deletes it
}

func Example() {
	sim := awssim.New(awssim.Options{})
	defer sim.Close()
	if err := sim.CreateQueue(awssim.Queue{Name: "notices"}); err != nil {
		fmt.Println(err)
	}
	if _, err := sim.SendMessage("notices", "drain node a"); err != nil {
		fmt.Println(err)
	}

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	server := &queue.Server{
		Client:  sqs.NewFromConfig(sim.Config()),
		URL:     sim.QueueURL("notices"),
		Handler: drainer{finish: stop},
	}
	if err := server.Check(ctx); err != nil { // there is no such queue, for example
		fmt.Println(err)
	}
	if err := server.Serve(ctx); err != nil { // until ctx ends
		fmt.Println(err)
	}
	fmt.Println("messages in the queue:", len(sim.Messages("notices")))

	// Output:
	// the API server cannot be reached
	// node a is drained
	// messages in the queue: 0
}
