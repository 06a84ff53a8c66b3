package lookup

import (
	"context"
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// CapacityBlock is the lifecycle of an instance in a Capacity Block, as EC2 names it.
const CapacityBlock = "capacity-block"

// membersKept is how old an answer may be to which instances a Capacity Block or a host has. Some may
// be launched until its end, and a message about a foreign one comes back again and again.
const membersKept = time.Minute

// Members are the instances of the Capacity Block, or those on the Dedicated Hosts, that the notice is about.
func (l *Lookup) Members(ctx context.Context, n *notice.Notice) ([]instance.Instance, error) {
	if len(n.Hosts) > 0 {
		return l.OnHosts(ctx, n.Hosts, membersKept)
	}
	found, err := l.InReservation(ctx, n.Reservation, membersKept)
	return slices.DeleteFunc(slices.Clone(found), func(i instance.Instance) bool {
		return i.Lifecycle != CapacityBlock // a reservation of another sort takes no instance away
	}), err
}
