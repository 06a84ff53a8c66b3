// Package figures has what storms have measured, and what docs/performance.md shows of it: tables, pictures, and
// the resources that the handler needs.
package figures

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// A Run is what one storm has measured. Times are in seconds, memory is in bytes.
type Run struct {
	Day    string `json:"day"`    // in UTC, such as 2026-11-23
	Commit string `json:"commit"` // of the handler, as it says itself
	Go     string `json:"go"`     // version that compiled the handler, and for what
	Cores  int    `json:"cores"`  // for all that ran: the storm, the control plane and the handler

	Simulate string `json:"simulate"` // kind of the API server that was simulated; empty: a real one
	Nodes    int    `json:"nodes"`    // that were interrupted at once
	Pods     int    `json:"pods"`     // on each node
	Idle     int    `json:"idle"`     // nodes that were not interrupted
	Kind     string `json:"kind"`     // of the notices
	// Options are all others of the storm that were not at their defaults, by name.
	Options map[string]string `json:"options,omitempty"`
	Args    []string          `json:"args,omitempty"` // of the handler, beside those that every storm sets

	// From the first notice on.
	Cordoned Times `json:"cordoned"`
	Evicted  Times `json:"firstEviction"`
	Empty    Times `json:"empty"`
	Deleted  Times `json:"messageDeleted"` // has no floor
	Missed   int   `json:"missed"`         // nodes that were not empty at their deadline
	// Where the API server is simulated it also makes a replacement for each evicted pod, and schedules them.
	Replacements int     `json:"replacements,omitempty"`
	Replaced     float64 `json:"replaced,omitempty"` // until the last one was scheduled

	Memory     Memory  `json:"memory"`
	CPU        float64 `json:"cpu"`                  // time of the handler, until the last message was deleted
	CPUToEmpty float64 `json:"cpuToEmpty,omitempty"` // until the last node was empty
	Goroutines [2]int  `json:"goroutines"`           // before, and some seconds after
	Series     [2]int  `json:"series"`               // of metrics, likewise
	Received   float64 `json:"received"`             // messages a second
	Leading    float64 `json:"leading"`              // after the start of the handler

	// Calls are keyed by service, action and error code, or by verb, resource and error code.
	Rest       float64        `json:"rest"` // how long the handler was watched before the storm
	AWSAtRest  map[string]int `json:"awsAtRest"`
	Messages   int            `json:"messages"`
	AWS        map[string]int `json:"aws"`             // in the storm
	Kubernetes map[string]int `json:"kubernetes"`      // in the storm, of the handler's user
	Peaks      []string       `json:"peaks,omitempty"` // what a simulated API server has to say of its limits
}

// Times are the quantiles of nodes, or of messages, until something had happened to them. The floor is how long
// bare loops took to do the same to all nodes: before the handler did, and after.
type Times struct {
	P50         float64 `json:"p50"`
	P95         float64 `json:"p95"`
	P99         float64 `json:"p99"`
	Max         float64 `json:"max"`
	FloorBefore float64 `json:"floorBefore,omitempty"`
	FloorAfter  float64 `json:"floorAfter,omitempty"`
}

// Floor is the mean of both floors.
func (t Times) Floor() float64 { return (t.FloorBefore + t.FloorAfter) / 2 }

// Ratio is how many times as long as the floor it took until the last node.
func (t Times) Ratio() float64 { return t.Max / t.Floor() }

// Memory is what of the handler's memory was resident, as the kernel counts it. That includes pages of the binary,
// which the kernel can take back.
type Memory struct {
	Rest      int64 `json:"rest"`
	Anonymous int64 `json:"anonymous"` // of that at rest: what is no page of a file
	Peak      int64 `json:"peak"`      // since the start
}

// Requests counts those to the API server. Events and the Lease do not grow with the storm: they are left out.
func (r Run) Requests() int {
	sum := 0
	for call, n := range r.Kubernetes {
		if !strings.Contains(call, " events") && !strings.Contains(call, " leases") {
			sum += n
		}
	}
	return sum
}

// calls counts those whose key begins so.
func calls(all map[string]int, prefix string) int {
	sum := 0
	for call, n := range all {
		if strings.HasPrefix(call, prefix) {
			sum += n
		}
	}
	return sum
}

// Append adds a run to a file, as a line of JSON.
func Append(file string, r Run) (err error) {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.Write(append(line, '\n'))
	return err
}

// Read returns the runs of a file. A field that it does not know is an error.
func Read(file string) ([]Run, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []Run
	decoder := json.NewDecoder(f)
	decoder.DisallowUnknownFields()
	for {
		var r Run
		switch err := decoder.Decode(&r); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("run %d of %s: %w", len(all)+1, file, err)
		}
		all = append(all, r)
	}
}
