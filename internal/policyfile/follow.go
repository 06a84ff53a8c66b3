package policyfile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
)

const (
	// Interval is how often [Follower.Run] reads the file. The kubelet brings a change of a ConfigMap to
	// its pods within a minute or two; these seconds come after that.
	// https://kubernetes.io/docs/concepts/configuration/configmap/#mounted-configmaps-are-updated-automatically
	Interval = 5 * time.Second
	// missingTime is how long the file may be missing before people are told: the kubelet replaces it
	// within less than a second.
	missingTime = 30 * time.Second
)

// A Follower has the rules of a file that changes. A file that is wrong changes nothing: the rules of
// before stay in force. Its methods may be called concurrently, but Run only once; nil is a Follower
// without a file, whose rules are none.
type Follower struct {
	path  string
	log   logr.Logger
	valid func(bool)
	fits  func(*decision.Rules) error

	now     atomic.Pointer[inForce]
	problem atomic.Value // the text of what people were told is wrong with the file
	// The rest is Run's.
	tried   string    // hash of the content that was read last; empty: people were told that there is none
	missing time.Time // since when the file cannot be read; zero: it can
}

// inForce are the rules of a content, and what is closed when there are others.
type inForce struct {
	rules decision.Rules
	hash  string
	ended chan struct{}
}

// Follow reads the file for the first time. The error is of type [Problems] if the file could be read and is wrong by
// itself. valid is told whether the file is right: at once, and by Run whenever it has found out. It must not
// block. fits says why rules that are right by themselves cannot be in force; nil: nothing.
func Follow(
	path string, log logr.Logger, valid func(bool), fits func(*decision.Rules) error,
) (*Follower, error) {
	f := &Follower{path: path, log: log, valid: valid, fits: fits}
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	f.tried = hashOf(data)
	if err := f.take(data); err != nil {
		return nil, err
	}
	valid(true)
	return f, nil
}

// Rules are those in force. They do not change: a change of the file makes others.
func (f *Follower) Rules() *decision.Rules {
	if f == nil {
		return &decision.Rules{}
	}
	return &f.now.Load().rules
}

// Problem says what is wrong with the file of now, whose rules do not count; empty: nothing, or f is nil.
func (f *Follower) Problem() string {
	if f == nil {
		return ""
	}
	problem, _ := f.problem.Load().(string)
	return problem
}

// Changed returns a channel that is closed when other rules come into force. Call it before Rules, and
// again after it was closed. It is nil without a file.
func (f *Follower) Changed() <-chan struct{} {
	if f == nil {
		return nil
	}
	return f.now.Load().ended
}

// Run reads the file after every interval, until ctx ends.
func (f *Follower) Run(ctx context.Context, interval time.Duration) {
	if f == nil {
		return
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			f.look()
		}
	}
}

// look reads the file once.
func (f *Follower) look() {
	data, err := read(f.path)
	if err != nil {
		if f.missing.IsZero() {
			f.missing = time.Now()
		}
		if f.tried != "" && time.Since(f.missing) >= missingTime {
			f.tell(err, "cannot be read", "the policy file cannot be read: the rules of before stay in force")
			f.tried = ""
		}
		return
	}
	f.missing = time.Time{}
	hash := hashOf(data)
	if hash == f.tried {
		return
	}
	f.tried = hash
	if err := f.take(data); err != nil {
		f.tell(inLog(err), "is wrong", "the policy file is wrong: the rules of before stay in force")
		return
	}
	if f.Problem() != "" {
		f.problem.Store("")
		f.log.Info("the policy file is right again", f.inForce()...)
	}
	f.valid(true)
}

// tell says what the file is, in the log by the message.
func (f *Follower) tell(err error, is, message string) {
	f.log.Error(err, message, "file", f.path, "hash", f.tried, "inForce", f.now.Load().hash)
	f.problem.Store("it " + is + ": " + err.Error())
	f.valid(false)
}

// take puts the rules of a content in force, unless it is wrong or in force already.
func (f *Follower) take(data []byte) error {
	file, err := Parse(data)
	if err == nil {
		err = f.fits(&file.Rules)
	}
	if err != nil {
		return err
	}
	before := f.now.Load()
	if before != nil && before.hash == f.tried {
		return nil
	}
	f.now.Store(&inForce{rules: file.Rules, hash: f.tried, ended: make(chan struct{})})
	if before != nil {
		close(before.ended)
	}
	f.log.Info("the policy file is in force", f.inForce()...)
	for _, w := range file.Warnings {
		logging.Warn(f.log, "the policy file has something that can hardly be meant", "file", f.path, "why", w.String())
	}
	return nil
}

// inForce are the keys and values of a line of the log.
func (f *Follower) inForce() []any {
	now := f.now.Load()
	return []any{"file", f.path, "hash", now.hash, "nodeRules", len(now.rules.Nodes), "podRules", len(now.rules.Pods)}
}

// read reads the file, but no more of it than shows that it is too large.
func read(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, MaxSize+1))
}

// hashOf is as much of a hash as people compare.
func hashOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:6])
}

// inLog is as much of an error as fits on a line of the log.
func inLog(err error) error {
	const most = 10
	if all := ProblemsOf(err); len(all) > most {
		return fmt.Errorf("%w\nand %d more", all[:most], len(all)-most)
	}
	return err
}
