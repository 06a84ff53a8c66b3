package lookup

import (
	"context"
	"fmt"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/instance"
)

// NoEC2 are the [Instances] of a handler that asks AWS nothing.
type NoEC2 struct{}

var errNoEC2 = fmt.Errorf("%w: this handler asks AWS nothing", instance.ErrDenied)

// Get is refused, as the methods below are.
func (NoEC2) Get(context.Context, string, time.Duration) (instance.Instance, bool, error) {
	return instance.Instance{}, false, errNoEC2
}

// GetUrgent is Get.
func (NoEC2) GetUrgent(context.Context, string, time.Duration) (instance.Instance, bool, error) {
	return instance.Instance{}, false, errNoEC2
}

// Known knows nothing.
func (NoEC2) Known(string) (instance.Instance, bool, time.Time) {
	return instance.Instance{}, false, time.Time{}
}

// InReservation is refused.
func (NoEC2) InReservation(context.Context, string, time.Duration) ([]instance.Instance, error) {
	return nil, errNoEC2
}

// OnHosts is refused.
func (NoEC2) OnHosts(context.Context, []string, time.Duration) ([]instance.Instance, error) {
	return nil, errNoEC2
}
