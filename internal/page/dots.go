package page

import (
	"html/template"
	"math"
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

const (
	// past is how far back the page looks.
	past = 24 * time.Hour
	// mostDots bounds the page; the leader keeps no more.
	mostDots = 500

	// The plot of the dots is 260 high, as the template says. Slack is between these two, and what had no deadline is
	// below them.
	plotTop    = 12.0
	plotBottom = 206.0
	plotApart  = 226.0
)

// A story is an episode in the table and the plot.
type story struct {
	Node, Rule, Ended, Slack, Outcome, Pods, Blamed string
	Kind                                            *kind
	Bad                                             bool
}

// A tally is what became of the episodes of a kind.
type tally struct {
	Kind                  *kind
	Episodes, InTime, Bad int
	Unknown               int    // how they ended, nobody knows
	Cut                   int    // pods were killed before the end of their grace periods
	Least, Median         string // slack; empty: none is known
}

// recent are the episodes of the last day, the newest first.
func recent(h overview.History) []overview.Episode {
	all := slices.DeleteFunc(slices.Clone(h.Episodes), func(e overview.Episode) bool { return h.At.Sub(e.Ended) > past })
	return all[:min(len(all), mostDots)]
}

// tallies are in the order of kinds.
func tallies(episodes []overview.Episode) (all []tally) {
	slacks := map[*kind][]float64{}
	found := map[*kind]*tally{}
	for i := range episodes {
		e := &episodes[i]
		k := kindNamed(e.Kind)
		t := found[k]
		if t == nil {
			t = &tally{Kind: k}
			found[k] = t
		}
		t.Episodes++
		switch {
		case e.Failed():
			t.Bad++
		case e.Outcome == "":
			t.Unknown++
		case e.Outcome == "drained":
			t.InTime++
		}
		if e.CutShort() {
			t.Cut++
		}
		if e.Slack != nil {
			slacks[k] = append(slacks[k], *e.Slack)
		}
	}
	for i := range kinds {
		t := found[&kinds[i]]
		if t == nil {
			continue
		}
		if s := slacks[t.Kind]; len(s) > 0 {
			slices.Sort(s)
			t.Least, t.Median = slackText(s[0]), slackText(s[(len(s)-1)/2])
		}
		all = append(all, *t)
	}
	return all
}

// total is the tally of all kinds.
func total(all []tally) (sum tally) {
	for _, t := range all {
		sum.Episodes, sum.Bad, sum.Unknown = sum.Episodes+t.Episodes, sum.Bad+t.Bad, sum.Unknown+t.Unknown
		sum.Cut += t.Cut
	}
	return sum
}

func slackText(seconds float64) string {
	return overview.Length(time.Duration(min(max(seconds, -1e8), 1e8) * float64(time.Second)))
}

func stories(episodes []overview.Episode, now time.Time) []story {
	all := make([]story, 0, len(episodes))
	for i := range episodes {
		e := &episodes[i]
		s := story{
			Node: shown(e.Node), Kind: kindNamed(e.Kind), Rule: shown(e.Rule), Ended: clock(e.Ended, now),
			Outcome: shown(e.Outcome), Bad: e.Failed(),
		}
		if e.Slack != nil {
			s.Slack = slackText(*e.Slack)
		}
		if p := e.Pods; p != nil {
			s.Pods = became(p)
		}
		if len(e.Refused) > 0 {
			r := e.Refused[0]
			s.Blamed = causeNamed(r.Cause)
			if r.Name != "" {
				s.Blamed += " " + shown(r.Name)
			}
		}
		all = append(all, s)
	}
	return all
}

// became names what is not zero.
func became(p *overview.Counts) string {
	text := joined(some(p.Evicted, "evicted"), some(p.Forced, "forced"), some(p.Ended, "ended"), some(p.Missed, "missed"),
		some(p.Lost, "lost"), some(p.Unconfirmed, "unconfirmed"), some(p.Cut, "cut short"))
	if p.Partial && text != "" {
		text += " since a pause or a change of leader"
	}
	return text
}

// A scale places slack: seconds are far apart near zero, where they count, and hours are near each other.
type scale struct{ least, most float64 }

func newScale(episodes []overview.Episode) scale {
	s := scale{least: bend(-30), most: bend(120)}
	for i := range episodes {
		if e := &episodes[i]; e.Slack != nil {
			s.least, s.most = min(s.least, bend(*e.Slack)), max(s.most, bend(*e.Slack))
		}
	}
	return s
}

func bend(seconds float64) float64 {
	if math.IsNaN(seconds) {
		seconds = 0
	}
	return math.Asinh(min(max(seconds, -1e8), 1e8) / 15)
}

func (s scale) y(seconds float64) float64 {
	return plotBottom - (plotBottom-plotTop)*(bend(seconds)-s.least)/(s.most-s.least)
}

// ticks are what the axis of slack names, as far as there is room, in seconds.
var ticks = []float64{
	-3600, -900, -300, -60, -30, 0, 10, 30, 60, 120, 300, 900, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600,
}

// places are where the episodes, the newest first, are on the axis of time, in percent: now is at its end. The longer a
// pause is the less room it takes for that, so that a storm is no column though another drain has ended hours before.
func places(episodes []overview.Episode, now time.Time) []float64 {
	all := make([]float64, len(episodes))
	back, last := 0.0, now
	for k := range episodes {
		back += math.Log1p(max(0, last.Sub(episodes[k].Ended).Seconds()) / 10)
		all[k], last = back, episodes[k].Ended
	}
	for k := range all {
		all[k] = 100 - 98*all[k]/max(1, back)
	}
	return all
}

// plot draws the episodes: when each ended, and with how much slack.
func plot(episodes []overview.Episode, now time.Time) template.HTML {
	s := newScale(episodes)
	var d drawing
	zero := s.y(0)
	d.add(`<rect class="bad-ground" x="0" width="100%" y="`).number(zero).add(`" height="`).number(plotBottom - zero)
	d.add(`"/>`)
	last := math.Inf(1)
	for _, tick := range ticks {
		y := s.y(tick)
		if y < plotTop-4 || y > plotBottom+4 || tick != 0 && (last-y < 14 || math.Abs(y-zero) < 14) {
			continue
		}
		last = y
		class, name := "tick", slackText(tick)
		switch {
		case tick == 0:
			class, name = "end", "deadline"
		case tick > 0:
			name = "+" + name
		}
		d.add(`<line class="` + class + `" x1="0" x2="100%" y1="`).number(y).add(`" y2="`).number(y).add(`"/>`)
		d.add(`<text class="axis" text-anchor="end" x="-8" y="`).number(y + 4).add(`">` + name + `</text>`)
	}
	d.add(`<text class="axis" text-anchor="end" x="-8" y="230">none</text>`)
	axis := func(x float64, anchor, name string) {
		d.add(`<line class="tick" x1="`).percent(x).add(`" x2="`).percent(x).add(`" y1="238" y2="243"/>`)
		d.add(`<text class="axis" text-anchor="` + anchor + `" x="`).percent(x).add(`" y="256">` + name + `</text>`)
	}
	axis(100, "end", "now")
	named, x := 100.0, places(episodes, now)
	for i := range episodes {
		e := &episodes[i]
		if named-x[i] >= 16 { // there is room
			named = x[i]
			axis(named, "start", overview.Length(e.Ended.Sub(now)))
		}
		y := plotApart
		if e.Slack != nil {
			y = s.y(*e.Slack)
		}
		k := kindNamed(e.Kind)
		d.add(`<use class="dot ` + k.Class)
		if e.Failed() {
			d.add(" bad")
		}
		d.add(`" href="#` + k.Class + `" x="`).percent(x[i]).add(`" y="`).number(y).add(`"/>`)
	}
	return d.html()
}
