package telemetry

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// A catalogue makes the metrics of a registry and remembers what it made, for
// docs/metrics.md. Every series that its labels allow is there from the start,
// at zero: a counter that appears with its first event has no rate for it.
type catalogue struct {
	registry *prometheus.Registry
	sections []section
}

// A section answers one question of an operator.
type section struct {
	question string
	metrics  []described
}

type described struct {
	name, kind, help string
	labels           []label
}

// A label and all values that it takes. Without values it is of a set that is
// closed all the same, whose words say which; its series appear as they come.
type label struct {
	name   string
	values []string
	words  string
}

// answers begins a section.
func (c *catalogue) answers(question string) {
	c.sections = append(c.sections, section{question: question})
}

func (c *catalogue) describe(m described) {
	last := &c.sections[len(c.sections)-1]
	last.metrics = append(last.metrics, m)
}

func (c *catalogue) counters(name, help string, labels ...label) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, names(labels))
	c.registry.MustRegister(v)
	c.describe(described{name, "counter", help, labels})
	touch(labels, v.MetricVec)
	return v
}

func (c *catalogue) counter(name, help string) prometheus.Counter {
	return c.counters(name, help).WithLabelValues()
}

func (c *catalogue) histograms(name, help string, buckets []float64, labels ...label) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, names(labels))
	c.registry.MustRegister(v)
	c.describe(described{name, "histogram", help, labels})
	touch(labels, v.MetricVec)
	return v
}

// gauges is one gauge that is not there before it is set.
func (c *catalogue) gauges(name, help string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, nil)
	c.registry.MustRegister(v)
	c.describe(described{name, "gauge", help, nil})
	return v
}

// gaugeOf is a gauge whose value is asked for when it is read.
func (c *catalogue) gaugeOf(name, help string, value func() float64) {
	c.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	c.describe(described{name, "gauge", help, nil})
}

func names(labels []label) []string {
	var all []string
	for _, l := range labels {
		all = append(all, l.name)
	}
	return all
}

// touch makes every series that the labels allow.
func touch(labels []label, v *prometheus.MetricVec) {
	combinations := [][]string{nil}
	for _, l := range labels {
		var longer [][]string
		for _, c := range combinations {
			for _, value := range l.values {
				longer = append(longer, append(slices.Clone(c), value))
			}
		}
		combinations = longer
	}
	for _, c := range combinations {
		_, _ = v.GetMetricWithLabelValues(c...) // the number of values is that of the labels
	}
}

// write writes docs/metrics.md.
func (c *catalogue) write(w io.Writer) {
	fmt.Fprint(w, `# Metrics

<!-- Generated from internal/telemetry by make generate -->

Served at `+"`/metrics`"+` on port 9092. Times are in seconds. No label has a value that comes from a message
or from the cluster, so that nothing grows with nodes or events; all but the answers of the API server
are there, at zero, before anything happens. `+"`deploy/prometheus/rules.yaml`"+` has alerts on them,
[alerts.md](alerts.md) says what to do about each, `+"`deploy/grafana/dashboard.json`"+` shows them. The
metrics of the Go runtime and of the process (`+"`go_…`, `process_…`"+`) come on top.
`)
	for _, s := range c.sections {
		fmt.Fprintf(w, "\n## %s\n\n| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n", s.question)
		for _, m := range s.metrics {
			var labels []string
			for _, l := range m.labels {
				words := l.words
				if words == "" {
					words = "`" + strings.Join(l.values, "`, `") + "`"
				}
				labels = append(labels, fmt.Sprintf("**%s**: %s", l.name, words))
			}
			fmt.Fprintf(w, "| `%s` | %s | %s | %s |\n", m.name, m.kind, strings.Join(labels, "<br>"), m.help)
		}
	}
}
