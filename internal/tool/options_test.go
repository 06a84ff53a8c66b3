package tool

import (
	"github.com/spf13/pflag"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

const testQueue = "https://sqs.us-east-1.amazonaws.com/123456789012/workers"

// parseOptions parses args and environ as the handler does.
func parseOptions(args, environ []string) (*options.Options, error) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	options.Register(flags)
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	return options.Parse(flags, environ)
}
