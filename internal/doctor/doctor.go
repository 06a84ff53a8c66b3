// Package doctor finds what is wrong with an installation before an interruption does: the queue,
// the rules, the roles, the groups behind the nodes. It has three parts. Gathering asks AWS and
// the cluster for Facts. Each check turns Facts into a Finding, and makes no request. Printing is
// for people or for programs.
package doctor

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// Status is the result of a check. The zero value is Unknown.
type Status uint8

// The statuses.
const (
	Unknown Status = iota // it could not be found out
	OK
	Warning // it works, and not as well as it could
	Failed  // it does not work
)

// String is the status in a word.
func (s Status) String() string {
	return [...]string{"unknown", "ok", "warning", "failed"}[s]
}

// MarshalText makes a Status readable in JSON.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// The groups: headings over findings.
const (
	groupIdentity = "credentials"
	groupQueue    = "queue"
	groupRules    = "EventBridge rules"
	groupCluster  = "cluster"
	groupNodes    = "nodes and groups"
)

// A Finding is the result of one check, which is printed on a line.
type Finding struct {
	ID     string `json:"id"`
	Group  string `json:"group"`
	Status Status `json:"status"`
	What   string `json:"what"`
	// Needed: unless this check passes, a node might not be drained in time.
	Needed bool `json:"needed"`
	// Because says why the result is Unknown: the id of the check that failed, the missing
	// permission, or the error. Findings with the same cause have the same text.
	Because string `json:"because,omitempty"`
	// Accepted: the user has decided that this warning may stay.
	Accepted bool `json:"accepted,omitempty"`
	// Hint says what to do, and Commands how; both are empty if there is nothing to do.
	Hint     string   `json:"hint,omitempty"`
	Commands []string `json:"commands,omitempty"`
	// Link leads to more about the check.
	Link string `json:"link,omitempty"`
}

// Page has an entry for each check, under its ID.
const Page = "docs/doctor.md"

var released = regexp.MustCompile(`^v?[0-9]+\.[0-9]+\.[0-9]+$`)

// link is the address of a check's entry in the documentation of a version of the program; the
// newest one if the version is no release.
func link(version, id string) string {
	at := "main"
	if released.MatchString(version) {
		at = "v" + strings.TrimPrefix(version, "v")
	}
	return "https://github.com/node-termination-handler/node-termination-handler/blob/" + at + "/" + Page + "#" + id
}

func ok(format string, args ...any) Finding {
	return Finding{Status: OK, What: say(format, args...)}
}

func warn(hint, format string, args ...any) Finding { return bad(Warning, hint, format, args...) }

func fail(hint, format string, args ...any) Finding { return bad(Failed, hint, format, args...) }

// say is fmt.Sprintf with time spans as people say them.
func say(format string, args ...any) string {
	for k, arg := range args {
		if d, ok := arg.(time.Duration); ok {
			args[k] = overview.Length(d)
		}
	}
	return fmt.Sprintf(format, args...)
}

// commandIn finds the command in a hint: the whole of it, or what follows its last colon.
var commandIn = regexp.MustCompile(`^(?:(.*): )?((?:aws|kubectl|helm) .*)$`)

// bad is a warning or failure. A command in the hint is printed on a line of its own.
func bad(s Status, hint, format string, args ...any) Finding {
	v := Finding{Status: s, What: say(format, args...), Hint: hint}
	if match := commandIn.FindStringSubmatch(hint); match != nil {
		v.Hint, v.Commands = match[1], []string{match[2]}
	}
	return v
}

// failedIf is the status of what does not work if it is so, and of what works, and not well, if it is not.
func failedIf(so bool) Status {
	if so {
		return Failed
	}
	return Warning
}

// unclear is the finding if the answers do not tell.
func unclear(hint, format string, args ...any) Finding {
	return bad(Unknown, hint, format, args...)
}

// unknown is the finding if something could not be asked.
func unknown(subject string, err error) Finding {
	v := Finding{Status: Unknown, What: fmt.Sprintf("%s: %v", subject, err), Because: err.Error()}
	if denied, ok := errors.AsType[*DeniedError](err); ok {
		v.Because = denied.Error()
		v.Hint = "whoever runs doctor lacks the permission to check this; the page lists the permissions"
	}
	if blocked, ok := errors.AsType[*BlockedError](err); ok {
		v.Because, v.Hint = blocked.By, ""
	}
	return v
}

// Examine runs all checks, without a queue those that are not about AWS. Findings that are a warning or unknown are
// marked as accepted if their check is accepted, and those that are unknown because of an accepted check too.
func Examine(f *Facts, accepted ...string) []Finding {
	var findings []Finding
	for _, c := range checks {
		if f.Options.NoQueue && c.traits&inAWS != 0 {
			continue
		}
		found := c.run(f)
		for k, command := range found.Commands {
			found.Commands[k] = inRegion(command, f.Options.Region)
		}
		found.ID, found.Group, found.Needed = c.id, c.group, c.traits&needed != 0
		if found.Status != OK {
			found.Link = link(f.Options.Version, c.id)
		}
		if found.Status == Warning || found.Status == Unknown {
			found.Accepted = slices.Contains(accepted, c.id) || slices.Contains(accepted, found.Because)
		}
		findings = append(findings, found)
	}
	return findings
}

// topicIn finds the region of a topic of SNS.
var topicIn = regexp.MustCompile(`\barn:[^:\s]+:sns:([^:\s]+):`)

// inRegion adds the region to the commands of the AWS CLI, whose own default may be another: that of the topic, or else
// this one.
func inRegion(commands, region string) string {
	all := strings.Split(commands, " && ")
	for k, command := range all {
		if !strings.HasPrefix(command, "aws ") || strings.Contains(command, " --region ") || region == "" {
			continue
		}
		there := region
		if topic := topicIn.FindStringSubmatch(command); topic != nil && strings.HasPrefix(command, "aws sns ") {
			there = topic[1]
		}
		all[k] += " --region " + there
	}
	return strings.Join(all, " && ")
}

// IDs returns the ids of all checks, in their order.
func IDs() []string {
	var ids []string
	for _, c := range checks {
		ids = append(ids, c.id)
	}
	return ids
}

// Worst is the worst status of the findings that were not accepted: Failed, then Unknown of a
// check that is needed, then Warning, then OK.
func Worst(findings []Finding) Status {
	for _, s := range []Status{Failed, Unknown, Warning} {
		if slices.ContainsFunc(findings, func(f Finding) bool {
			return f.Status == s && !f.Accepted && (f.Needed || s != Unknown)
		}) {
			return s
		}
	}
	return OK
}

// list joins sorted names, each once, and cuts them if there are many.
func list(names []string) string {
	const most = 5
	names = slices.Compact(sorted(names))
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

func sorted(names []string) []string { return slices.Sorted(slices.Values(names)) }
