package main

import (
	"context"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/node-termination-handler/node-termination-handler/internal/app"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

// serve runs the handler until ctx ends, and logs to out.
func serve(ctx context.Context, o *options.Options, out io.Writer) error {
	limit := app.TuneMemory()
	log, endLog := logging.New(out, logFormat(o))
	defer endLog()
	logging.Redirect(log)
	build := strings.ReplaceAll(strings.TrimSpace(describeVersion()), "\n", ", ")
	log.Info("starting", "version", build, "memoryLimit", limit)
	for _, name := range slices.Sorted(maps.Keys(o.Changed)) {
		log.Info("option", "name", name, "value", shortened(o.Changed[name]))
	}
	for _, w := range o.Warnings {
		logging.Warn(log, "option with a warning", "why", w)
	}
	handler, err := app.New(ctx, o, log, version)
	if err != nil {
		return err
	}
	return handler.Run(ctx)
}

// logFormat says how the log is written.
func logFormat(o *options.Options) logging.Options {
	return logging.Options{Level: o.LogLevel, JSON: o.JSONLogging}
}

// shortened keeps a line of the log short enough to read.
func shortened(text string) string {
	const most = 200 // bytes, as the log quotes it
	short := text
	for len(strconv.Quote(short)) > most {
		short = strings.ToValidUTF8(short[:len(short)*9/10], "")
	}
	if len(short) < len(text) {
		short += "…"
	}
	return short
}
