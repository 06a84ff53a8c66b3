package notice

import "slices"

// Effect is what a scheduled change does to the machine. The zero value is not known.
type Effect uint8

// The effects.
const (
	Unclear        Effect = iota
	EndsMachine           // it stops or terminates, and is not started by AWS
	RebootsMachine        // it reboots, and comes back
	CutsNetwork           // its network is away for a moment
)

// effects are the codes of AWS Health for scheduled changes of EC2 that name instances or
// their hosts. AWS publishes no list of its codes. These are the ones that public rules and
// monitors have: the defaults of Terraform modules for Health events, and
// https://github.com/NVIDIA/NVSentinel (health-monitors/csp-health-monitor). What happens in
// an event of each sort is in
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instances-status-check_sched.html
var effects = map[string]Effect{
	"AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED":                     EndsMachine,
	"AWS_EC2_INSTANCE_RETIREMENT_EXPEDITED":                     EndsMachine,
	"AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED":          EndsMachine,
	"AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_EXPEDITED":          EndsMachine,
	"AWS_EC2_INSTANCE_STOP_SCHEDULED":                           EndsMachine,
	"AWS_EC2_INSTANCE_TERMINATION_SCHEDULED":                    EndsMachine,
	"AWS_EC2_DEDICATED_HOST_RETIREMENT_SCHEDULED":               EndsMachine,
	"AWS_EC2_DEDICATED_HOST_ACCESSREVOKED_RETIREMENT_SCHEDULED": EndsMachine,

	"AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED":           RebootsMachine,
	"AWS_EC2_INSTANCE_REBOOT_FLEXIBLE_MAINTENANCE_SCHEDULED":  RebootsMachine,
	"AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED":             RebootsMachine,
	"AWS_EC2_INSTANCE_POWER_MAINTENANCE_SCHEDULED":            RebootsMachine,
	"AWS_EC2_PERSISTENT_INSTANCE_POWER_MAINTENANCE_SCHEDULED": RebootsMachine,
	"AWS_EC2_DEDICATED_HOST_POWER_MAINTENANCE_SCHEDULED":      RebootsMachine,

	"AWS_EC2_INSTANCE_NETWORK_MAINTENANCE_SCHEDULED":       CutsNetwork,
	"AWS_EC2_DEDICATED_HOST_NETWORK_MAINTENANCE_SCHEDULED": CutsNetwork,

	// These do not say what they do.
	"AWS_EC2_MAINTENANCE_SCHEDULED":                Unclear,
	"AWS_EC2_DEDICATED_HOST_MAINTENANCE_SCHEDULED": Unclear,
	"AWS_EC2_ULTRASERVER_MAINTENANCE_INITIATED":    Unclear,
	"AWS_EC2_ULTRASERVER_CAPACITY_REDUCED":         Unclear,
	"AWS_EC2_ULTRASERVER_MAINTENANCE_COMPLETED":    Unclear,

	// Scheduled events that EC2 lists, and that the metadata tells. A system-maintenance is one of the network or of the
	// power, and its code does not say which. None is a code of AWS Health.
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instances-status-check_sched.html
	"instance-retirement": EndsMachine,
	"instance-stop":       EndsMachine,
	"instance-reboot":     RebootsMachine,
	"system-reboot":       RebootsMachine,
	"system-maintenance":  Unclear,
}

// twins are codes of AWS Health for what EC2 and the metadata tell of by codes of their own. A system-maintenance has
// none: it can be one of the network or of the power.
var twins = map[string][]string{
	"instance-reboot": {
		"AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED", "AWS_EC2_INSTANCE_REBOOT_FLEXIBLE_MAINTENANCE_SCHEDULED",
	},
	"system-reboot": {"AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED"},
	"instance-stop": {
		"AWS_EC2_INSTANCE_STOP_SCHEDULED", "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED",
		"AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_EXPEDITED",
	},
	"instance-retirement": {
		"AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED", "AWS_EC2_INSTANCE_RETIREMENT_EXPEDITED",
		"AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED", "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_EXPEDITED",
	},
}

// Codes are the code of a scheduled change, and those by which others may tell of the same change.
func Codes(code string) []string {
	all := append([]string{code}, twins[code]...)
	for ours, theirs := range twins {
		if slices.Contains(theirs, code) {
			all = append(all, ours)
		}
	}
	return all
}

// EffectOf is the effect of a scheduled change by its code, whether AWS Health, EC2 or the instance
// metadata has told it.
func EffectOf(code string) Effect { return effects[code] }
