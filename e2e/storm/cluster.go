package main

import (
	"context"
	"time"

	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
)

// A cluster is where a storm takes place: a sandbox, or a simulated API server.
type cluster interface {
	// kubeconfig returns the path of that of the handler's user.
	kubeconfig() string
	// parallel is how many requests the floor has in flight.
	parallel() int
	// addNode adds a node with its pods, which may not run yet.
	addNode(context.Context, node, nodePods) error
	// awaitRunning returns when all pods run.
	awaitRunning(context.Context) error
	removeNode(ctx context.Context, name string) error
	// watch tells the record what happens until ctx ends. It returns when it has begun.
	watch(context.Context, *record) error
	// forget makes the cluster as if nothing had ever been evicted.
	forget()
	// calls are the requests of the handler's user in a span of time, by verb and resource.
	calls(from, to time.Time) (map[string]int, error)
	// replacements are the pods that were made in place of evicted ones; zero: the cluster makes none.
	replacements() replacements
	// peaks says what was worst at the API server since the last call; nil: it is not known.
	peaks() []string
	stop()
}

// nodePods are the pods of a node.
type nodePods struct {
	count int
	stop  time.Duration // how long one takes to stop
	spare bool          // pods of other nodes can be scheduled on it
}

// replacements tell of the pods that replace others.
type replacements struct {
	count int
	last  time.Time // when the last one is scheduled, or will be
}

// unlimited is a client that the API server alone slows down.
func unlimited(config *restclient.Config) (kubernetes.Interface, error) {
	config.QPS = -1
	return kubernetes.NewForConfig(config)
}
