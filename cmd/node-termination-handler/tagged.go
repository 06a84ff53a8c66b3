package main

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// countTagged keeps the metrics of instances with the managed tag up to date until
// ctx ends: AWS Node Termination Handler has them, and a difference between the
// two is a machine that never joined. It costs a call for each 200 instances.
func countTagged(ctx context.Context, log logr.Logger, tag string, instances *instance.Directory, nodes *cluster.Cluster, metrics *telemetry.Metrics) {
	const pause = 5 * time.Minute
	for {
		ids, err := instances.Tagged(ctx, tag)
		if err == nil {
			joined := 0
			for _, id := range ids {
				if nodes.ByInstance(id) != nil {
					joined++
				}
			}
			metrics.Tagged(joined, len(ids))
		} else if ctx.Err() == nil {
			log.V(1).Info("the tagged instances are not counted", "why", err.Error())
		}
		if sleep(ctx, pause) != nil {
			return
		}
	}
}
