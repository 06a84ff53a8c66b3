package awssim

import (
	"context"
	"encoding/xml"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

var ec2Operations = map[string]operation{
	"DescribeInstances":  describeInstances,
	"TerminateInstances": terminateInstances,
	"StopInstances":      stopInstances,
	"CreateTags":         createTags,
	"DescribeTags":       describeTags,

	"DescribeInstanceStatus": describeInstanceStatus,
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
		return nil, badRequest("InvalidInstanceID.NotFound", "The instance IDs '%s' do not exist",
			strings.Join(missing, ", "))
	}
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
	Host           string   `xml:"placement>hostId,omitempty"`
	Lifecycle      string   `xml:"instanceLifecycle,omitempty"`
	Reservation    string   `xml:"capacityReservationId,omitempty"`
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
	most, problem := req.pageSize(ids)
	if problem != nil {
		return nil, problem
	}
	if req.form.Get("DryRun") == "true" {
		return nil, dryRun()
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

// pageSize is the MaxResults of a call; 0: it names none.
func (r *request) pageSize(ids []string) (int, *apiError) {
	text := r.form.Get("MaxResults")
	if text == "" {
		return 0, nil
	}
	size, err := strconv.Atoi(text)
	if err != nil || size < 5 || size > 1000 {
		return 0, badRequest("InvalidParameterValue",
			"Value ( %s ) for parameter maxResults is invalid. Expecting a value between 5 and 1000.", text)
	}
	if len(ids) > 0 {
		return 0, badRequest("InvalidParameterCombination",
			"The parameter instancesSet cannot be used with the parameter maxResults")
	}
	return size, nil
}

// dryRun is the error of a call that would have succeeded.
func dryRun() *apiError {
	return &apiError{
		status: http.StatusPreconditionFailed, code: "DryRunOperation",
		message: "Request would have succeeded, but DryRun flag is set.",
	}
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
			LaunchTime:     ec2Time(i.LaunchTime),
			Zone:           i.Zone,
			Host:           i.Host,
			Lifecycle:      i.Lifecycle,
			Reservation:    i.Reservation,
			Tags:           i.tags(),
		}},
	}
}

// tags returns the tags that were put, and the one that Auto Scaling gives to the instances of a
// group.
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

// changeStates brings instances into a state, except those that are in one of the states beyond.
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
