package main

import (
	"context"
	"io"
	"strings"

	"github.com/node-termination-handler/node-termination-handler/internal/app"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

// serve runs the handler until ctx ends, and logs to out.
func serve(ctx context.Context, o *options.Options, out io.Writer) error {
	limit := app.TuneMemory()
	log, endLog := app.NewLogger(o, out)
	defer endLog()
	build := strings.ReplaceAll(strings.TrimSpace(describeVersion()), "\n", ", ")
	log.Info("starting", "version", build, "queue", o.Queue.Text, "region", o.Region,
		"memoryLimit", limit, "options", o.Changed)
	for _, w := range o.Warnings {
		log.Warn(w)
	}
	handler, err := app.New(ctx, o, log, version)
	if err != nil {
		return err
	}
	return handler.Run(ctx)
}
