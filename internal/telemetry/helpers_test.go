package telemetry

// value is a counter with one label; 0 if there is none.
func (m *Metrics) value(name, label string) int {
	families, err := m.catalogue.registry.Gather()
	if err != nil {
		return -1
	}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			if f.GetName() == name && metric.GetLabel()[0].GetValue() == label {
				return int(metric.GetCounter().GetValue())
			}
		}
	}
	return 0
}
