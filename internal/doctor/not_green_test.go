package doctor

import (
	"testing"
)

// Installations to which a notice would not come, and of which doctor says that all is well.
func TestDoctorIsNotGreenWhereANoticeWouldNotCome(t *testing.T) {
	for name, tt := range map[string]struct {
		ail   func(*Facts)
		check string
		not   []Status
	}{
		"a rule for stopped instances, and not for terminated ones": {func(f *Facts) {
			f.Rules.Value[2].Pattern = `{"source": ["aws.ec2"], "detail-type": ["EC2 Instance State-change Notification"], "detail": {"state": ["stopping"]}}`
		}, "rule-state-change", []Status{OK}},
		"a rule for retirements, and not for reboots": {func(f *Facts) {
			f.Rules.Value[3].Pattern = `{"source": ["aws.health"], "detail": {"eventTypeCode": ["AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED"]}}`
		}, "rule-health", []Status{OK}},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthy()
			tt.ail(f)
			for _, finding := range Examine(f) {
				if finding.Status != OK {
					t.Logf("%s: %v: %s", finding.ID, finding.Status, finding.What)
				}
				for _, status := range tt.not {
					if finding.ID == tt.check && finding.Status == status {
						t.Errorf("%s: %v: %s", finding.ID, finding.Status, finding.What)
					}
				}
			}
		})
	}
}
