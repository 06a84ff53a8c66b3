// Package doctor says what is wrong with an installation before the day on which
// it matters: the queue, the rules, the roles, the groups behind the nodes. It is
// in three parts: gathering asks AWS and the cluster, each check makes a Finding
// of the Facts and asks nobody, and printing is for people or for programs.
package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// Status is how a check ended. The zero value says nothing.
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

// A group is a heading.
type group string

const (
	groupIdentity group = "credentials"
	groupQueue    group = "queue"
	groupRules    group = "rules of EventBridge"
	groupCluster  group = "cluster"
	groupNodes    group = "nodes and their groups"
)

// A Finding is the line of one check.
type Finding struct {
	ID     string `json:"id"`
	Group  string `json:"group"`
	Status Status `json:"status"`
	What   string `json:"what"`
	// Hint says what to do; empty where all is well.
	Hint string `json:"hint,omitempty"`
	// Link leads to more about the check.
	Link string `json:"link,omitempty"`
}

// Page is where each check has an entry, by its ID.
const Page = "docs/troubleshooting.md"

// A verdict is what a check makes of the facts.
type verdict struct {
	status Status
	what   string
	hint   string
}

func ok(format string, args ...any) verdict {
	return verdict{status: OK, what: fmt.Sprintf(format, args...)}
}

func warn(hint, format string, args ...any) verdict {
	return verdict{Warning, fmt.Sprintf(format, args...), hint}
}

func fail(hint, format string, args ...any) verdict {
	return verdict{Failed, fmt.Sprintf(format, args...), hint}
}

// unknown is the verdict where something could not be asked.
func unknown(subject string, err error) verdict {
	v := verdict{status: Unknown, what: fmt.Sprintf("%s: %v", subject, err)}
	if denied(err) {
		v.hint = "whoever runs doctor may not ask this; docs/troubleshooting.md lists what it takes"
	}
	return v
}

// A check is one line. run is pure.
type check struct {
	id    string
	group group
	run   func(*Facts) verdict
}

// Examine runs all checks.
func Examine(f *Facts) []Finding {
	var findings []Finding
	for _, c := range checks {
		v := c.run(f)
		finding := Finding{ID: c.id, Group: string(c.group), Status: v.status, What: v.what, Hint: v.hint}
		if v.status != OK {
			finding.Link = Page + "#" + c.id
		}
		findings = append(findings, finding)
	}
	return findings
}

// IDs are those of all checks, in their order.
func IDs() []string {
	var ids []string
	for _, c := range checks {
		ids = append(ids, c.id)
	}
	return ids
}

// Worst is the worst status of all: failed before warning before the rest.
func Worst(findings []Finding) Status {
	worst := OK
	for _, f := range findings {
		worst = max(worst, f.Status)
	}
	return worst
}

// list is names in their order, cut where they are many.
func list(names []string) string {
	const most = 5
	names = sorted(names)
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func sorted(names []string) []string { return slices.Sorted(slices.Values(names)) }
