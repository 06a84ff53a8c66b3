package policyfile

import (
	"errors"
	"slices"
	"strings"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// kinds are those that rules may be about. A launch hook takes no node away.
func kinds() []notice.Kind {
	return slices.DeleteFunc(slices.Clone(notice.Kinds), func(k notice.Kind) bool { return k == notice.ASGLaunch })
}

// kindsThat names the kinds of which that is true.
func kindsThat(is func(notice.Kind) bool) string { return named(kinds(), is) }

// named names those of kinds of which that is true.
func named(kinds []notice.Kind, is func(notice.Kind) bool) string {
	var all []string
	for _, k := range kinds {
		if is(k) {
			all = append(all, k.Dashed())
		}
	}
	return strings.Join(all, ", ")
}

func ofAnySort(notice.Kind) bool { return true }

// hasCode reports whether notices of the kind have a code in Notice.Detail that rules may be about.
func hasCode(k notice.Kind) bool { return k == notice.ScheduledChange || k == notice.InstanceImpaired }

// hasStart reports whether notices of the kind say when what they announce begins.
func hasStart(k notice.Kind) bool { return k == notice.ScheduledChange }

// canWait reports whether a drain for the kind can wait. An impaired machine may go at any moment.
func canWait(k notice.Kind) bool { return !k.Urgent() && k != notice.InstanceImpaired }

// sharesNotice reports whether a drain for the kind divides its time between budgets and grace periods. A
// recommendation has no deadline, and budgets do not count on a machine that stops or fails.
func sharesNotice(k notice.Kind) bool {
	return k != notice.RebalanceRecommendation && k != notice.StateChange && k != notice.InstanceImpaired
}

// kind takes a name of a kind, as the commands do.
func kind(p *notice.Kind) value {
	var names []string
	for _, k := range kinds() {
		names = append(names, k.Dashed())
	}
	for _, k := range kinds() { // what editors offer first comes first
		for _, name := range k.Names() {
			if !strings.Contains(name, " ") && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return text(p, schema{"enum": names}, kindsThat(ofAnySort), func(name string) (notice.Kind, error) {
		k := notice.KindNamed(name)
		if k == notice.ASGLaunch {
			return k, errors.New("is a launch, for which no node is drained")
		}
		if k == notice.Ignored {
			return k, errors.New("is not a kind of notice")
		}
		return k, nil
	})
}
