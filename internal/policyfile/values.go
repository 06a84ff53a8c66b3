package policyfile

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	kubelabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

var (
	efforts    = []decision.Effort{decision.Ignoring, decision.Notifying, decision.Cordoning, decision.Draining}
	departures = []decision.Departure{
		decision.LeaveNow, decision.LeaveFirst, decision.LeaveAfter, decision.LeaveEnd, decision.LeaveLast,
		decision.LeaveSurged, decision.LeaveNever,
	}
)

// windows takes a map of names to windows.
func windows(p *[]*decision.Window) value {
	looks := schema{
		"type": []string{"object", "null"}, "additionalProperties": window(new(decision.Window), new([]string)).schema,
		"propertyNames": schema{"pattern": nameForm.String()},
	}
	return value{schema: looks, read: func(r *reader, n *yaml.Node, path string) {
		if isNull(n) {
			return
		}
		r.pairs(n, path, func(key, v *yaml.Node, at string) {
			r.at[at] = key
			if !nameForm.MatchString(key.Value) {
				r.refuse(key, at, "is not a name; allowed: %s", nameAllowed)
			}
			w := &decision.Window{Name: key.Value, Zone: time.UTC}
			var days []string
			window(w, &days).read(r, v, at)
			for day := range w.Days {
				w.Days[day] = len(days) == 0 || slices.Contains(days, weekdays[day])
			}
			*p = append(*p, w)
		})
	}}
}

// nameForm is a label of DNS, and not too long for a line.
var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

const nameAllowed = "at most 40 small letters, digits and -, with a letter or digit at both ends"

// name takes a name, but for those that are taken for the reason why.
func name(p *string, why string, taken ...string) value {
	return like(p, nameForm, nameAllowed, "is not a name", func(name string) (string, error) {
		return onlyIf(!slices.Contains(taken, name), name, why)
	})
}

// patternForm has what codes and namespaces are made of, and *. What means something in other patterns,
// such as ? and [, is no part of it.
var patternForm = regexp.MustCompile(`^[A-Za-z0-9_.:, *-]+$`)

// pattern takes a pattern in which * stands for any characters.
func pattern(p *string) value {
	return like(p, patternForm, "letters, digits, - and _, and * for any of them", "is not a pattern", anything)
}

// kind takes a name of a kind, as the commands do. A launch hook takes no node away.
func kind(p *notice.Kind) value {
	var names, others []string // what editors offer first comes first
	for _, k := range kinds() {
		names = append(names, k.Dashed())
		others = append(others, k.Names()...)
	}
	for _, name := range others {
		if !strings.Contains(name, " ") && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return text(p, schema{"enum": names}, kindsThat(ofAnySort), func(name string) (notice.Kind, error) {
		k := notice.KindNamed(name)
		if k == notice.ASGLaunch {
			return k, errors.New("is a launch, for which no node is drained")
		}
		return onlyIf(k != notice.Ignored, k, "is not a kind of notice")
	})
}

var operators = map[selection.Operator]decision.Operator{
	selection.In: decision.In, selection.Equals: decision.In, selection.DoubleEquals: decision.In,
	selection.NotIn: decision.NotIn, selection.NotEquals: decision.NotIn,
	selection.Exists: decision.Exists, selection.DoesNotExist: decision.DoesNotExist,
	selection.GreaterThan: decision.Greater, selection.LessThan: decision.Less,
}

// labelSelector takes a label selector, as kubectl does.
func labelSelector(p *decision.Selector) value {
	const allowed = "a label selector, such as team=batch,!gpu"
	return text(p, schema{"minLength": 1}, allowed, func(text string) (s decision.Selector, err error) {
		requirements, err := kubelabels.ParseToRequirements(text)
		if err != nil {
			return nil, fmt.Errorf("is not a label selector (%s)", why(err))
		}
		for _, r := range requirements {
			values := slices.Sorted(slices.Values(r.ValuesUnsorted()))
			s = append(s, decision.Requirement{Key: r.Key(), Operator: operators[r.Operator()], Values: values})
		}
		return onlyIf(len(s) > 0, s, "selects everything: leave the key out")
	})
}

// why is the error of a selector without what it has for others: the path, and the regular expression.
func why(err error) string {
	text, _, _ := strings.Cut(err.Error(), " (e.g. ")
	if _, value, ok := strings.Cut(text, "Invalid value: "); ok {
		return value
	}
	return strings.TrimPrefix(text, "unable to parse requirement: ")
}

func labelKey(p *string) value {
	return text(p, schema{}, "the key of a label", func(text string) (string, error) {
		return onlyIf(len(validation.IsQualifiedName(text)) == 0, text, "is not the key of a label")
	})
}

var weekdays = [7]string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"} // as time.Weekday

func weekday(p *string) value { return oneOf(p, append(weekdays[1:], weekdays[0])...) }

// clock takes HH:MM, in minutes since midnight, up to last.
func clock(p *int, last int) value {
	form, allowed := `^([01][0-9]|2[0-3]):[0-5][0-9]$`, `"00:00" to "23:59"`
	if last == 24*60 {
		form, allowed = `^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$`, `"00:00" to "24:00"`
	}
	return like(p, regexp.MustCompile(form), allowed, "is not a time of the day", func(text string) (int, error) {
		hours, _ := strconv.Atoi(text[:2])
		minutes, _ := strconv.Atoi(text[3:])
		return hours*60 + minutes, nil
	})
}

func zone(p **time.Location) value {
	const allowed = "a name of the IANA, such as Europe/Berlin"
	return text(p, schema{"minLength": 1}, allowed, func(text string) (*time.Location, error) {
		at, err := time.LoadLocation(text)
		// Local is another one on each machine.
		return onlyIf(err == nil && text != "" && text != "Local", at, "is not a time zone")
	})
}

// durationForm is a duration of whole numbers, one of which is not zero.
const durationForm = `^([0-9]+(s|m|h))*[0-9]*[1-9][0-9]*(s|m|h)([0-9]+(s|m|h))*$`

var durationLooks = regexp.MustCompile(durationForm)

// duration takes a duration of whole seconds, from one on.
func duration(p *time.Duration) value {
	return text(p, schema{"pattern": durationForm}, "a duration from 1s on, such as 90s, 30m or 2h30m", parseDuration)
}

func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, errors.New("is not a duration")
	case d < time.Second:
		return 0, errors.New("is less than a second")
	}
	return onlyIf(durationLooks.MatchString(text), d, "is not of whole hours, minutes or seconds")
}

// begin takes how long before the start a drain begins; negative: now.
func begin(p *time.Duration) value {
	looks := schema{"pattern": "^(now|start-" + strings.Trim(durationForm, "^$") + ")$"}
	return text(p, looks, "now, or start- and a duration, such as start-30m", func(text string) (time.Duration, error) {
		before, isStart := strings.CutPrefix(text, "start-")
		d, err := parseDuration(before)
		switch {
		case text == beginsNow:
			return -1, nil
		case !isStart:
			return 0, errors.New("is not a begin")
		case err != nil:
			return 0, fmt.Errorf("is not a begin: %s %w", quoted(before), err)
		}
		return d, nil
	})
}

// share takes a number of nodes or a percentage.
func share(p *string) value {
	looks := schema{"anyOf": []schema{
		{"type": "integer", "minimum": 1, "maximum": 100000},
		{"type": "string", "pattern": "^([1-9][0-9]?|100)%$"},
	}}
	return scalar(p, looks, "1 to 100000, or 1% to 100%", func(tag, text string) (nodes string, ok bool) {
		number, isPercent := strings.CutSuffix(text, "%")
		wanted, most := "!!int", 100_000
		if isPercent {
			wanted, most = "!!str", 100
		}
		i, err := strconv.Atoi(number)
		return text, err == nil && tag == wanted && 1 <= i && i <= most
	})
}

var percentageForm = regexp.MustCompile("^([0-9]|[1-9][0-9]|100)%$")

// percentage takes one from 0% to 100%.
func percentage(p **int) value {
	return like(p, percentageForm, "0% to 100%", "is no percentage", func(text string) (*int, error) {
		i, err := strconv.Atoi(strings.TrimSuffix(text, "%"))
		return &i, err
	})
}

const momentAllowed = "a time such as 2026-03-04T12:00:00Z"

func moment(p *time.Time) value {
	return text(p, schema{"format": "date-time"}, momentAllowed, parseMoment)
}

func parseMoment(text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, text)
	return onlyIf(err == nil, t.UTC(), "is not a time")
}

// beginMoment takes now or a time, which it keeps as now or in UTC.
func beginMoment(p *string) value {
	return text(p, schema{}, "now, or "+momentAllowed, func(text string) (string, error) {
		if text == beginsNow {
			return beginsNow, nil
		}
		t, err := parseMoment(text)
		return t.Format(time.RFC3339), err
	})
}
