package awssim

import (
	"cmp"
	"context"
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Instance is an EC2 instance.
type Instance struct {
	ID string `json:"id"`
	// State is a name of EC2: pending, running (the default), shutting-down,
	// terminated, stopping, stopped.
	State string `json:"state,omitempty"`
	// PrivateDNSName is, by default, made from the id.
	PrivateDNSName string            `json:"privateDNSName,omitempty"`
	Tags           map[string]string `json:"tags,omitempty"`
	// LaunchTime is, by default, when the instance is put.
	LaunchTime time.Time `json:"launchTime,omitzero"`
	// Zone is, by default, the zone a of the region.
	Zone string `json:"zone,omitempty"`
	// Type is, by default, m5.large.
	Type string `json:"type,omitempty"`
	// Lifecycle is spot, scheduled or, for an on-demand instance, empty.
	Lifecycle string `json:"lifecycle,omitempty"`
}

// ec2States are the states with their codes, as EC2 numbers them.
var ec2States = map[string]int{
	"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80,
}

// instanceID is the form of an instance id; others are malformed to EC2.
var instanceID = regexp.MustCompile(`^i-([0-9a-f]{8}|[0-9a-f]{17})$`)

// PutInstance adds an instance, or replaces what was known of it, as if it had
// always been so: no event tells of it. An instance that is put in the state
// shutting-down or stopping moves on after Options.ShutdownTime.
func (s *Server) PutInstance(config Instance) error {
	if !instanceID.MatchString(config.ID) {
		return fmt.Errorf("put instance: malformed id %q", config.ID)
	}
	setDefault(&config.State, "running")
	if _, ok := ec2States[config.State]; !ok {
		return fmt.Errorf("put instance %s: unknown state %q", config.ID, config.State)
	}
	setDefault(&config.PrivateDNSName, config.ID+".ec2.internal")
	setDefault(&config.Zone, s.opts.Region+"a")
	setDefault(&config.Type, "m5.large")
	config.Tags = maps.Clone(config.Tags)
	s.locked(func(now time.Time) {
		setDefault(&config.LaunchTime, now)
		added := &instance{Instance: config}
		if before, ok := s.instances[config.ID]; ok {
			added.group, added.lifecycleState = before.group, before.lifecycleState
		}
		s.instances[config.ID] = added
		s.schedule(added, now)
	})
	return nil
}

// RemoveInstance makes EC2 forget an instance. It reports whether there was one.
func (s *Server) RemoveInstance(id string) bool {
	var found bool
	s.locked(func(now time.Time) {
		var removed *instance
		if removed, found = s.instances[id]; found {
			s.forget(removed, now)
		}
	})
	return found
}

// SetInstanceState changes the state of an instance and tells of it by an event,
// as EC2 does.
func (s *Server) SetInstanceState(id, state string) error {
	if _, ok := ec2States[state]; !ok {
		return fmt.Errorf("set state of %s: unknown state %q", id, state)
	}
	err := fmt.Errorf("set state of %s: no such instance", id)
	s.locked(func(now time.Time) {
		if i, ok := s.instances[id]; ok {
			s.setState(i, state, now)
			err = nil
		}
	})
	return err
}

// Instances returns the instances, ordered by id, with what time has done to them.
func (s *Server) Instances() []Instance {
	instances := []Instance{}
	s.locked(func(time.Time) {
		for _, i := range s.sortedInstances() {
			config := i.Instance
			config.Tags = maps.Clone(config.Tags)
			instances = append(instances, config)
		}
	})
	return instances
}

// instance is an Instance at work.
type instance struct {
	Instance
	changes time.Time // when it moves on, if it is among Server.moving

	group          *group // that it belongs to, if any
	lifecycleState string // within the group
}

func (s *Server) sortedInstances() []*instance {
	return slices.SortedFunc(maps.Values(s.instances), func(a, b *instance) int { return cmp.Compare(a.ID, b.ID) })
}

// setState changes the state and sends the event that tells of it.
func (s *Server) setState(i *instance, state string, at time.Time) {
	if i.State == state {
		return
	}
	i.State = state
	s.effects.add(Effect{Time: at, Kind: InstanceState, InstanceID: i.ID, Result: state})
	s.schedule(i, at)
	s.emit(s.stateChange(i), at)
}

// schedule notes when the instance will move on by itself.
func (s *Server) schedule(i *instance, at time.Time) {
	delete(s.moving, i.ID)
	switch i.State {
	case "shutting-down", "stopping":
		i.changes = at.Add(s.opts.ShutdownTime)
	case "terminated":
		i.changes = at.Add(s.opts.TerminatedFor)
	default:
		return
	}
	s.moving[i.ID] = i
	s.wake()
}

func (s *Server) moveOn(i *instance, at time.Time) {
	switch i.State {
	case "shutting-down":
		s.setState(i, "terminated", at)
		s.leaveGroup(i, at)
	case "stopping":
		s.setState(i, "stopped", at)
	default:
		s.forget(i, at)
	}
}

func (s *Server) forget(i *instance, at time.Time) {
	s.leaveGroup(i, at)
	delete(s.moving, i.ID)
	delete(s.instances, i.ID)
}

var ec2Operations = map[string]operation{
	"DescribeInstances":  describeInstances,
	"TerminateInstances": terminateInstances,
	"StopInstances":      stopInstances,
	"CreateTags":         createTags,
	"DescribeTags":       describeTags,
}

// named returns the instances of the ids, or the error that fails the whole call.
func (s *Server) named(ids []string) ([]*instance, *apiError) {
	var found []*instance
	var missing []string
	for _, id := range ids {
		if !instanceID.MatchString(id) {
			return nil, badRequest("InvalidInstanceID.Malformed", "Invalid id: %q", id)
		}
		if i, ok := s.instances[id]; ok {
			found = append(found, i)
		} else {
			missing = append(missing, id)
		}
	}
	switch len(missing) {
	case 0:
		return found, nil
	case 1:
		return nil, badRequest("InvalidInstanceID.NotFound", "The instance ID '%s' does not exist", missing[0])
	default:
		return nil, badRequest("InvalidInstanceID.NotFound", "The instance IDs '%s' do not exist", strings.Join(missing, ", "))
	}
}

// filter is one condition of a describe call; its values are alternatives.
type filter struct {
	name   string
	values []string
}

// maxFilterValues is EC2's limit for one call.
const maxFilterValues = 200

func (r *request) filters() ([]filter, *apiError) {
	var filters []filter
	total := 0
	for n := 1; ; n++ {
		prefix := "Filter." + strconv.Itoa(n) + "."
		name := r.form.Get(prefix + "Name")
		if name == "" {
			break
		}
		values := r.list(prefix + "Value.")
		total += len(values)
		filters = append(filters, filter{name, values})
		r.note("filter", name+"="+strings.Join(values, ","))
	}
	if total > maxFilterValues {
		return nil, badRequest("FilterLimitExceeded", "The maximum number of filter values specified on a single call is %d", maxFilterValues)
	}
	return filters, nil
}

// accepts compares with * and ?, as EC2 does.
func (f filter) accepts(value string) bool {
	return slices.ContainsFunc(f.values, func(pattern string) bool {
		ok, err := path.Match(asPathPattern.Replace(pattern), asPathPattern.Replace(value))
		return pattern == value || err == nil && ok
	})
}

// asPathPattern takes away what is special to path.Match and not to EC2.
var asPathPattern = strings.NewReplacer("/", "\x00", "[", "\x01")

// accept reports whether the instance passes all filters.
func accept(i *instance, filters []filter) (bool, *apiError) {
	for _, f := range filters {
		var ok bool
		key, isTag := strings.CutPrefix(f.name, "tag:")
		switch {
		case isTag:
			value, has := i.Tags[key]
			ok = has && f.accepts(value)
		case f.name == "tag-key":
			ok = slices.ContainsFunc(slices.Collect(maps.Keys(i.Tags)), f.accepts)
		case f.name == "instance-id":
			ok = f.accepts(i.ID)
		case f.name == "private-dns-name":
			ok = f.accepts(i.PrivateDNSName)
		case f.name == "instance-state-name":
			ok = f.accepts(i.State)
		default:
			return false, badRequest("InvalidParameterValue", "The filter '%s' is invalid", f.name)
		}
		if !ok {
			return false, nil
		}
	}
	return true, nil
}

type describeInstancesResult struct {
	XMLName      xml.Name         `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ DescribeInstancesResponse"`
	RequestID    string           `xml:"requestId"`
	Reservations []ec2Reservation `xml:"reservationSet>item"`
	NextToken    string           `xml:"nextToken,omitempty"`
}

type ec2Reservation struct {
	ReservationID string        `xml:"reservationId"`
	OwnerID       string        `xml:"ownerId"`
	Instances     []ec2Instance `xml:"instancesSet>item"`
}

type ec2Instance struct {
	InstanceID     string   `xml:"instanceId"`
	State          ec2State `xml:"instanceState"`
	PrivateDNSName string   `xml:"privateDnsName"`
	InstanceType   string   `xml:"instanceType"`
	LaunchTime     string   `xml:"launchTime"`
	Zone           string   `xml:"placement>availabilityZone"`
	Lifecycle      string   `xml:"instanceLifecycle,omitempty"`
	Tags           []ec2Tag `xml:"tagSet>item"`
}

type ec2State struct {
	Code int    `xml:"code"`
	Name string `xml:"name"`
}

type ec2Tag struct {
	ResourceID   string `xml:"resourceId,omitempty"`
	ResourceType string `xml:"resourceType,omitempty"`
	Key          string `xml:"key"`
	Value        string `xml:"value"`
}

func describeInstances(_ context.Context, s *Server, req *request) (any, *apiError) {
	ids := req.list("InstanceId.")
	req.note("instance", ids...)
	filters, problem := req.filters()
	if problem != nil {
		return nil, problem
	}
	most := 0
	if text := req.form.Get("MaxResults"); text != "" {
		var err error
		if most, err = strconv.Atoi(text); err != nil || most < 5 || most > 1000 {
			return nil, badRequest("InvalidParameterValue", "Value ( %s ) for parameter maxResults is invalid. Expecting a value between 5 and 1000.", text)
		}
		if len(ids) > 0 {
			return nil, badRequest("InvalidParameterCombination", "The parameter instancesSet cannot be used with the parameter maxResults")
		}
	}
	if req.form.Get("DryRun") == "true" {
		return nil, &apiError{status: http.StatusPreconditionFailed, code: "DryRunOperation", message: "Request would have succeeded, but DryRun flag is set."}
	}
	output := describeInstancesResult{RequestID: requestID}
	s.locked(func(time.Time) {
		candidates := s.sortedInstances()
		if len(ids) > 0 {
			if candidates, problem = s.named(ids); problem != nil {
				return
			}
		}
		// The token is the last id that was returned, so that pages stay right
		// when instances come and go between them.
		after := req.form.Get("NextToken")
		for _, i := range candidates {
			if after != "" && i.ID <= after {
				continue
			}
			var ok bool
			if ok, problem = accept(i, filters); problem != nil {
				return
			}
			if !ok {
				continue
			}
			if most > 0 && len(output.Reservations) == most {
				output.NextToken = output.Reservations[most-1].Instances[0].InstanceID
				return
			}
			output.Reservations = append(output.Reservations, s.reservation(i))
		}
	})
	req.entries = len(output.Reservations)
	return output, problem
}

func (s *Server) reservation(i *instance) ec2Reservation {
	return ec2Reservation{
		ReservationID: "r-" + strings.TrimPrefix(i.ID, "i-"),
		OwnerID:       s.opts.Account,
		Instances: []ec2Instance{{
			InstanceID:     i.ID,
			State:          ec2State{Code: ec2States[i.State], Name: i.State},
			PrivateDNSName: i.PrivateDNSName,
			InstanceType:   i.Type,
			LaunchTime:     i.LaunchTime.UTC().Format("2006-01-02T15:04:05.000Z"),
			Zone:           i.Zone,
			Lifecycle:      i.Lifecycle,
			Tags:           i.tags(),
		}},
	}
}

// tags are those that were put, and the one that Auto Scaling gives to the
// instances of a group.
func (i *instance) tags() []ec2Tag {
	all := maps.Clone(i.Tags)
	if i.group != nil {
		if all == nil {
			all = map[string]string{}
		}
		all["aws:autoscaling:groupName"] = i.group.Name
	}
	var tags []ec2Tag
	for _, key := range slices.Sorted(maps.Keys(all)) {
		tags = append(tags, ec2Tag{Key: key, Value: all[key]})
	}
	return tags
}

type stateChangesResult struct {
	XMLName   xml.Name
	RequestID string           `xml:"requestId"`
	Instances []ec2StateChange `xml:"instancesSet>item"`
}

type ec2StateChange struct {
	InstanceID string   `xml:"instanceId"`
	Current    ec2State `xml:"currentState"`
	Previous   ec2State `xml:"previousState"`
}

func terminateInstances(_ context.Context, s *Server, req *request) (any, *apiError) {
	return s.changeStates(req, "shutting-down", "terminated")
}

func stopInstances(_ context.Context, s *Server, req *request) (any, *apiError) {
	return s.changeStates(req, "stopping", "stopped", "shutting-down", "terminated")
}

// changeStates brings instances into a state, save for those that are beyond it.
func (s *Server) changeStates(req *request, state string, beyond ...string) (any, *apiError) {
	ids := req.list("InstanceId.")
	req.note("instance", ids...)
	output := stateChangesResult{
		XMLName:   xml.Name{Space: "http://ec2.amazonaws.com/doc/2016-11-15/", Local: req.action + "Response"},
		RequestID: requestID,
	}
	var problem *apiError
	s.locked(func(now time.Time) {
		var found []*instance
		if found, problem = s.named(ids); problem != nil {
			return
		}
		for _, i := range found {
			before := i.State
			if !slices.Contains(beyond, before) {
				s.setState(i, state, now)
			}
			output.Instances = append(output.Instances, ec2StateChange{
				InstanceID: i.ID,
				Current:    ec2State{Code: ec2States[i.State], Name: i.State},
				Previous:   ec2State{Code: ec2States[before], Name: before},
			})
		}
	})
	req.entries = len(output.Instances)
	return output, problem
}

type createTagsResult struct {
	XMLName   xml.Name `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ CreateTagsResponse"`
	RequestID string   `xml:"requestId"`
	Return    bool     `xml:"return"`
}

func createTags(_ context.Context, s *Server, req *request) (any, *apiError) {
	ids := req.list("ResourceId.")
	req.note("instance", ids...)
	tags := map[string]string{}
	for n := 1; req.form.Has("Tag." + strconv.Itoa(n) + ".Key"); n++ {
		prefix := "Tag." + strconv.Itoa(n)
		tags[req.form.Get(prefix+".Key")] = req.form.Get(prefix + ".Value")
	}
	var problem *apiError
	s.locked(func(time.Time) {
		var found []*instance
		if found, problem = s.named(ids); problem != nil {
			return
		}
		for _, i := range found {
			merged := map[string]string{}
			maps.Copy(merged, i.Tags)
			maps.Copy(merged, tags)
			i.Tags = merged
		}
	})
	return createTagsResult{RequestID: requestID, Return: true}, problem
}

type describeTagsResult struct {
	XMLName   xml.Name `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ DescribeTagsResponse"`
	RequestID string   `xml:"requestId"`
	Tags      []ec2Tag `xml:"tagSet>item"`
}

func describeTags(_ context.Context, s *Server, req *request) (any, *apiError) {
	filters, problem := req.filters()
	if problem != nil {
		return nil, problem
	}
	output := describeTagsResult{RequestID: requestID}
	s.locked(func(time.Time) {
		for _, i := range s.sortedInstances() {
			for _, tag := range i.tags() {
				tag.ResourceID, tag.ResourceType = i.ID, "instance"
				if tag.passes(filters) {
					output.Tags = append(output.Tags, tag)
				}
			}
		}
	})
	req.entries = len(output.Tags)
	return output, nil
}

func (t ec2Tag) passes(filters []filter) bool {
	fields := map[string]string{"resource-id": t.ResourceID, "resource-type": t.ResourceType, "key": t.Key, "value": t.Value}
	return !slices.ContainsFunc(filters, func(f filter) bool { return !f.accepts(fields[f.name]) })
}
