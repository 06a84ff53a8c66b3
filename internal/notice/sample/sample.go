// Package sample has a body of each kind of notice, shaped as AWS sends it: to
// send one, and to see whether a rule would take it. It is pure.
package sample

import (
	"cmp"
	"embed"
	"encoding/json"
	"strings"
	"time"
)

//go:embed *.json
var files embed.FS

// A Kind is a notice by its name on the command line.
type Kind string

// The kinds.
const (
	Spot         Kind = "spot"
	Rebalance    Kind = "rebalance"
	StateChange  Kind = "state-change"
	Health       Kind = "health"
	ASGTerminate Kind = "asg-terminate"
	ASGLaunch    Kind = "asg-launch"
	// CapacityReservation is about an instance, CapacityBlock about all of a Capacity Block.
	CapacityReservation Kind = "capacity-reservation"
	CapacityBlock       Kind = "capacity-block"
)

// Kinds are all of them.
var Kinds = []Kind{Spot, Rebalance, StateChange, Health, ASGTerminate, ASGLaunch, CapacityReservation, CapacityBlock}

// Source is the service that sends the kind.
func (k Kind) Source() string {
	others := map[Kind]string{Health: "aws.health", ASGTerminate: "aws.autoscaling", ASGLaunch: "aws.autoscaling"}
	return cmp.Or(others[k], "aws.ec2")
}

// A Notice is what differs from body to body. Fields that a kind does not have
// are not looked at.
type Notice struct {
	Kind     Kind
	ID       string
	Time     time.Time
	Instance string

	Partition, Account, Region, Zone string

	Group, Hook, Token string    // of a lifecycle action
	Start              time.Time // of a scheduled change
	Reservation        string    // the Capacity Block, by the id of its Capacity Reservation
}

// How long before it happens AWS tells of it.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitor-interruptible-cr.html
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html
const (
	terminationNotice = 2 * time.Minute
	blockEndNotice    = 40 * time.Minute
)

// Body is the notice in EventBridge's envelope; empty for a kind that does not exist.
// That of Health has no communicationId, which would be the notice's id in place of
// the one that a bus gives it.
func (n Notice) Body() string {
	file, err := files.ReadFile(string(n.Kind) + ".json")
	if err != nil {
		return ""
	}
	return strings.NewReplacer(
		"<SOURCE>", escape(n.Kind.Source()),
		"<PARTITION>", escape(n.Partition),
		"<ACCOUNT>", escape(n.Account),
		"<REGION>", escape(n.Region),
		"<ZONE>", escape(n.Zone),
		"<TIME>", n.Time.UTC().Format(time.RFC3339),
		"<UPDATED>", n.Time.UTC().Format(healthTime),
		"<START>", n.Start.UTC().Format(healthTime),
		"<TERMINATION>", n.Time.Add(terminationNotice).UTC().Format(time.RFC3339),
		"<END>", n.Time.Add(blockEndNotice).UTC().Format(time.RFC3339),
		"<RESERVATION>", escape(n.Reservation),
		"<INSTANCE>", escape(n.Instance),
		"<GROUP>", escape(n.Group),
		"<HOOK>", escape(n.Hook),
		"<TOKEN>", escape(n.Token),
		"<ID>", escape(n.ID),
	).Replace(string(file))
}

// healthTime is the form of times in the detail of AWS Health.
const healthTime = "Mon, 02 Jan 2006 15:04:05 GMT"

// escape writes text as it stands between the quotes of JSON.
func escape(text string) string {
	quoted, _ := json.Marshal(text) // of a text it never fails
	return string(quoted[1 : len(quoted)-1])
}
