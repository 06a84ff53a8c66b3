package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/release"
)

// replica is one process of the controller.
type replica struct {
	name    string
	process *exec.Cmd
	log     release.Log
	evicted bool          // its pod is deleted: it was told to end
	killed  bool          // by the demo
	stopped chan struct{} // closed when the process has ended; err says how
	err     error
}

const (
	replicas    = 2
	accessKeyID = "AKIDEXAMPLE" // of the replicas
)

// startReplicas starts the replicas, which end with ctx. In the playground each is named
// after a pod of the Deployment.
func (d *demo) startReplicas(ctx context.Context) error {
	d.ended = make(chan *replica, replicas)
	if d.playground != "" {
		return d.startPods(ctx)
	}
	for n := range replicas {
		if err := d.startReplica(ctx, fmt.Sprintf("replica-%d", n+1)); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) startReplica(ctx context.Context, name string, args ...string) error {
	// A kubeconfig each, as each pod has a token.
	kubeconfig, err := d.cluster.ServiceAccountKubeconfig(ctx, release.Name, release.Name)
	if err != nil {
		return err
	}
	r := &replica{name: name, stopped: make(chan struct{})}
	r.process = release.Replica{
		Program: d.handler, Kubeconfig: kubeconfig, Namespace: release.Name, QueueURL: d.aws.QueueURL(queueName),
		Endpoint: d.endpoint, AccessKeyID: accessKeyID, Args: append(args, "--pod-name="+name),
	}.Command(ctx)
	r.process.Stdout, r.process.Stderr = &r.log, &r.log
	r.process.Cancel = func() error { return r.process.Process.Signal(syscall.SIGTERM) }
	r.process.WaitDelay = 12 * time.Second // it promises to be gone after 10
	if err := r.process.Start(); err != nil {
		return fmt.Errorf("start %s: %w", r.name, err)
	}
	d.replicas = append(d.replicas, r)
	go func() {
		r.err = r.process.Wait()
		close(r.stopped)
		select {
		case d.ended <- r:
		case <-ctx.Done():
		}
	}()
	return nil
}

// awaitLeader returns the name of the replica that holds the Lease.
func (d *demo) awaitLeader(ctx context.Context) (name string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, soon, errors.New("nobody did within "+soon.String()))
	defer cancel()
	err = poll(ctx, func(ctx context.Context) (bool, error) {
		select {
		case r := <-d.ended:
			return false, errors.New(r.fate())
		default:
		}
		name, err = d.leader(ctx)
		return name != "", err
	})
	if err != nil {
		return "", fmt.Errorf("wait until a replica leads: %w", err)
	}
	return name, nil
}

// leader returns the name of the replica that holds the Lease; empty: none does.
func (d *demo) leader(ctx context.Context) (name string, err error) {
	lease, err := d.cluster.Client().CoordinationV1().Leases(release.Name).Get(ctx, release.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err == nil && lease.Spec.HolderIdentity != nil {
		name, _, _ = strings.Cut(*lease.Spec.HolderIdentity, "_")
	}
	return name, err
}

// kill kills the replica that leads. elected gets the name of the next one.
func (d *demo) kill(ctx context.Context, leader string, elected chan<- string) error {
	at := slices.IndexFunc(d.replicas, func(r *replica) bool { return r.name == leader })
	if at < 0 {
		return fmt.Errorf("%s leads, which is none of the replicas", leader)
	}
	d.replicas[at].killed = true
	if err := d.replicas[at].process.Process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", leader, err)
	}
	go func() {
		ticker := time.NewTicker(250 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			if next, err := d.leader(ctx); err == nil && next != "" && next != leader {
				elected <- next
				return
			}
		}
	}()
	return nil
}

// stopReplicas lets the replicas end and waits for that.
func (d *demo) stopReplicas() {
	for _, r := range d.replicas {
		_ = r.process.Process.Signal(syscall.SIGTERM) // it may have ended
	}
	for _, r := range d.replicas {
		<-r.stopped
	}
}

// failed reports whether a replica that has stopped has ended by a mistake of its own: it was not told to end, and not
// killed.
func (r *replica) failed() bool {
	exit, isExit := errors.AsType[*exec.ExitError](r.err)
	return r.err != nil && (!isExit || exit.Exited())
}

// fate says how a replica that has stopped ended.
func (r *replica) fate() string {
	if r.err == nil {
		return r.name + " has ended"
	}
	return fmt.Sprintf("%s has ended: %v", r.name, r.err)
}
