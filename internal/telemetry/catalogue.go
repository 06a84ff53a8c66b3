package telemetry

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// A catalogue creates the metrics of a registry and remembers them for
// docs/metrics.md. Every series that the labels allow exists from the start,
// at zero: if a counter appeared with its first event, rate() would miss that event.
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

// A label and all its values. A label without values has a closed set of values too,
// which words describe; its series appear when they are first used.
type label struct {
	name   string
	values []string
	words  string
}

// answers starts a section.
func (c *catalogue) answers(question string) {
	c.sections = append(c.sections, section{question: question})
}

// add registers a metric in the last section.
func (c *catalogue) add(metric prometheus.Collector, d described) {
	c.registry.MustRegister(metric)
	last := &c.sections[len(c.sections)-1]
	last.metrics = append(last.metrics, d)
}

func (c *catalogue) counters(name, help string, labels ...label) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, names(labels))
	c.add(v, described{name, "counter", help, labels})
	touch(labels, v.MetricVec)
	return v
}

func (c *catalogue) counter(name, help string) prometheus.Counter {
	return c.counters(name, help).WithLabelValues()
}

func (c *catalogue) histograms(name, help string, buckets []float64, labels ...label) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, names(labels))
	c.add(v, described{name, "histogram", help, labels})
	touch(labels, v.MetricVec)
	return v
}

// gauges returns one gauge, which does not exist before it is set.
func (c *catalogue) gauges(name, help string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, nil)
	c.add(v, described{name, "gauge", help, nil})
	return v
}

// gaugeOf adds a gauge that calls value when it is read.
func (c *catalogue) gaugeOf(name, help string, value func() float64) {
	v := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	c.add(v, described{name, "gauge", help, nil})
}

// countOf is gaugeOf for a number of things.
func (c *catalogue) countOf(name, help string, value func() int) {
	c.gaugeOf(name, help, func() float64 { return float64(value()) })
}

func names(labels []label) (all []string) {
	for _, l := range labels {
		all = append(all, l.name)
	}
	return all
}

// touch creates every series that the labels allow.
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
		_, _ = v.GetMetricWithLabelValues(c...) // it fails only for a wrong number of values
	}
}
