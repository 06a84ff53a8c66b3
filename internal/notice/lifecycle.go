package notice

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// lifecycle is the detail of a lifecycle action, with or without EventBridge.
type lifecycle struct {
	LifecycleTransition  string
	AutoScalingGroupName string
	LifecycleHookName    string
	LifecycleActionToken string
	EC2InstanceID        string `json:"EC2InstanceId"`
	Origin, Destination  string
	Action               string
}

func parseTerminate(n Notice, e envelope) (Notice, error) {
	return parseLifecycle(n, ASGTerminate, e.Detail)
}

func parseLaunch(n Notice, e envelope) (Notice, error) { return parseLifecycle(n, ASGLaunch, e.Detail) }

func parseLifecycle(n Notice, kind Kind, detail json.RawMessage) (Notice, error) {
	var d struct {
		Event string
		lifecycle
	}
	if err := decode(detail, &d); err != nil {
		return n, err
	}
	if d.Event == testNotification || d.LifecycleTransition == testNotification {
		return Notice{Ignored: TestNotification}, nil
	}
	return parseHook(n, kind, d.lifecycle)
}

// parseHook refuses what Auto Scaling would refuse: a completion with such a field
// never succeeds.
func parseHook(n Notice, kind Kind, d lifecycle) (Notice, error) {
	switch {
	case d.AutoScalingGroupName == "":
		return n, errors.New("AutoScalingGroupName is missing")
	case d.LifecycleHookName == "":
		return n, errors.New("LifecycleHookName is missing")
	case !isGroupName(d.AutoScalingGroupName):
		return n, fmt.Errorf("AutoScalingGroupName is %q, not 1 to %d printable characters",
			clip(d.AutoScalingGroupName), nameLimit)
	case !hookName.MatchString(d.LifecycleHookName):
		return n, fmt.Errorf("LifecycleHookName is %q, not 1 to %d letters of ASCII, digits, -, _ and /",
			clip(d.LifecycleHookName), nameLimit)
	case d.LifecycleActionToken != "" && !hookToken.MatchString(d.LifecycleActionToken):
		return n, fmt.Errorf("LifecycleActionToken is %q, not the 36 characters of a UUID", clip(d.LifecycleActionToken))
	}
	n.Kind = kind
	n.Hook = Hook{
		Group:       strings.Clone(d.AutoScalingGroupName),
		Name:        strings.Clone(d.LifecycleHookName),
		Token:       strings.Clone(d.LifecycleActionToken),
		Origin:      identifier(d.Origin),
		Destination: identifier(d.Destination),
		Action:      identifier(d.Action),
	}
	return withInstance(n, "EC2InstanceId", d.EC2InstanceID)
}

// isGroupName reports whether a group can have the name. New ones are of ASCII
// alone; the API's own pattern lets more through, but nothing that steers a
// terminal, changes the direction of a text or ends its line.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_CreateAutoScalingGroup.html
func isGroupName(name string) bool {
	return utf8.ValidString(name) && utf8.RuneCountInString(name) <= nameLimit &&
		!strings.ContainsFunc(name, isUnprintable)
}

// testNotification is what Auto Scaling sends to a hook's target to try it out, as
// the event or the transition.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/prepare-for-lifecycle-notifications.html
const testNotification = "autoscaling:TEST_NOTIFICATION"
